// The page: a chat and live plots over the server's own API. No dependency, no build step. What a model wrote never
// becomes markup: elements are made by name and text goes in as text, which the page's policy enforces.
"use strict";

const $ = (id) => document.getElementById(id);

function make(name, props = {}, ...children) {
  const element = Object.assign(document.createElement(name), props);
  element.append(...children);
  return element;
}

// ---- the server ----------------------------------------------------------------------------------------------------

const KEY = "octavo.key";

function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  return fetch(path, { ...options, headers, credentials: "omit" });
}

// Asks for a key until the server takes it.
async function admitted(path) {
  for (let tries = 0; ; tries++) {
    const answer = await ask(path);
    if (answer.status !== 401) return answer;
    $("key-fault").textContent = tries && sessionStorage.getItem(KEY)
      ? "The server does not know this key." : "It is kept in this tab until you close it.";
    $("key").value = "";
    if (!$("ask-key").open) $("ask-key").showModal();
    await new Promise((done) => $("ask-key").addEventListener("close", done, { once: true }));
    sessionStorage.setItem(KEY, $("key").value.trim());
  }
}

// Events of a stream, each the value of one `data:` line.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

// ---- settings ------------------------------------------------------------------------------------------------------

const DEFAULTS = { system: "", temperature: 0.7, top_p: 1, max_tokens: "", seed: "", logprobs: true, tools: "" };
const settings = { ...DEFAULTS, ...JSON.parse(localStorage.getItem("octavo.settings") || "{}") };

function showSettings() {
  for (const name in DEFAULTS) {
    const field = $(name);
    if (field.type === "checkbox") field.checked = settings[name];
    else field.value = settings[name];
    const output = document.querySelector(`output[for="${name}"]`);
    if (output) output.value = Number(settings[name]).toFixed(2);
  }
  $("tools-fault").textContent = toolsFault();
}

function toolsFault() {
  try {
    return !settings.tools.trim() || Array.isArray(JSON.parse(settings.tools)) ? "" : "Not a list.";
  } catch (error) {
    return `Not JSON: ${error.message}`;
  }
}

function changeSetting(event) {
  const field = event.target;
  if (!(field.id in DEFAULTS)) return;
  settings[field.id] = field.type === "checkbox" ? field.checked : field.type === "range" ? Number(field.value) : field.value;
  localStorage.setItem("octavo.settings", JSON.stringify(settings));
  showSettings();
}

function requestBody() {
  const messages = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  for (const turn of turns) messages.push(...turn.messages());
  const body = { model: $("model").value, messages, stream: true, stream_options: { include_usage: true } };
  Object.assign(body, { temperature: settings.temperature, top_p: settings.top_p });
  if (settings.max_tokens) body.max_tokens = Number(settings.max_tokens);
  if (settings.seed !== "") body.seed = Number(settings.seed);
  if (settings.logprobs) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  if (settings.tools.trim() && !toolsFault()) body.tools = JSON.parse(settings.tools);
  return body;
}

// ---- markdown ------------------------------------------------------------------------------------------------------

const INLINE = /(`+)(.+?)\1|\*\*(\S(?:.*?\S)?)\*\*|__(\S(?:.*?\S)?)__|~~(\S(?:.*?\S)?)~~|\*(\S(?:.*?\S)?)\*|(?<!\w)_(\S(?:.*?\S)?)_(?!\w)|!?\[([^\]]*)\]\((\S+?)(?:\s+"[^"]*")?\)|(https?:\/\/[^\s<>)\]]+)|\\([\\`*_{}[\]()#+\-.!|~])/s;

function inline(text) {
  const nodes = [];
  for (let match; (match = INLINE.exec(text)); text = text.slice(match.index + match[0].length)) {
    if (match.index) nodes.push(text.slice(0, match.index));
    const [whole, , code, strong, strong2, gone, em, em2, label, href, url, escaped] = match;
    if (code !== undefined) nodes.push(make("code", { textContent: code.trim() || code }));
    else if (strong ?? strong2) nodes.push(make("strong", {}, ...inline(strong ?? strong2)));
    else if (gone) nodes.push(make("s", {}, ...inline(gone)));
    else if (em ?? em2) nodes.push(make("em", {}, ...inline(em ?? em2)));
    else if (escaped) nodes.push(escaped);
    else if (/^(https?:|mailto:)/.test(href ?? url ?? "")) nodes.push(link(href ?? url, label ?? url));
    else nodes.push(whole);
  }
  if (text) nodes.push(text);
  return nodes;
}

function link(href, label) {
  return make("a", { href, target: "_blank", rel: "noopener noreferrer", textContent: label || href });
}

// Each rule looks at lines[at] and answers [element, lines taken], or nothing.
const BLOCKS = [
  (lines, at) => {
    const open = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/.exec(lines[at]);
    if (!open) return null;
    let end = at + 1;
    while (end < lines.length && !lines[end].trim().startsWith(open[1])) end++;
    const text = lines.slice(at + 1, end).join("\n");
    const copy = make("button", { type: "button", textContent: "Copy", onclick: (event) => copied(event.target, text) });
    return [make("pre", { title: open[2] }, make("code", { textContent: text }), copy), end + 1 - at];
  },
  (lines, at) => {
    const head = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/.exec(lines[at]);
    return head && [make(`h${Math.min(head[1].length + 1, 4)}`, {}, ...inline(head[2])), 1];
  },
  (lines, at) => /^ {0,3}([-*_])( *\1){2,} *$/.test(lines[at]) && [make("hr"), 1],
  (lines, at) => {
    let end = at;
    while (end < lines.length && /^ {0,3}>/.test(lines[end])) end++;
    const inner = lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, ""));
    return end > at && [make("blockquote", {}, ...blocks(inner)), end - at];
  },
  list,
  table,
];

const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;

function list(lines, at) {
  const first = ITEM.exec(lines[at]);
  if (!first || first[1].length > 3) return null;
  const ordered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (item && item[1].length <= first[1].length + 1) {
      if (/\d/.test(item[2]) !== ordered) break;
      items.push([lines[end].slice(item[0].length)]);
    } else if (/^\s{2,}\S/.test(lines[end]) || (lines[end].trim() && lines[end - 1].trim() && !item)) {
      items.at(-1).push(lines[end].replace(/^ {1,4}/, ""));
    } else if (!lines[end].trim() && /^(\s{2,}\S|\s*([-*+]|\d+[.)])\s)/.test(lines[end + 1] ?? "")) {
      items.at(-1).push("");
    } else break;
    end++;
  }
  const element = make(ordered ? "ol" : "ul", ordered ? { start: parseInt(first[2], 10) } : {});
  for (const inner of items) {
    const made = blocks(inner);
    const lone = made.length && made[0].tagName === "P" && !inner.slice(1).includes("");
    element.append(make("li", {}, ...(lone ? [...made[0].childNodes, ...made.slice(1)] : made)));
  }
  return [element, end - at];
}

function table(lines, at) {
  if (!/\|/.test(lines[at]) || !/^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[at + 1] ?? "")) return null;
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());
  const row = (line, name) => make("tr", {}, ...cells(line).map((cell) => make(name, {}, ...inline(cell))));
  let end = at + 2;
  while (end < lines.length && /\|/.test(lines[end])) end++;
  const body = make("tbody", {}, ...lines.slice(at + 2, end).map((line) => row(line, "td")));
  return [make("table", {}, make("thead", {}, row(lines[at], "th")), body), end - at];
}

function blocks(lines) {
  const made = [];
  for (let at = 0; at < lines.length; ) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    let found = null;
    for (const rule of BLOCKS) if ((found = rule(lines, at))) break;
    if (!found) {
      let end = at + 1;
      while (end < lines.length && lines[end].trim() && !BLOCKS.some((rule) => rule(lines, end))) end++;
      found = [make("p", {}, ...inline(lines.slice(at, end).join("\n"))), end - at];
    }
    made.push(found[0]);
    at += found[1];
  }
  return made;
}

const markdown = (text) => blocks(text.replace(/\r\n?/g, "\n").split("\n"));

async function copied(button, text) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = label), 1200);
}

// ---- turns ---------------------------------------------------------------------------------------------------------

let turns = [];
let writing = null; // the answer that streams

class Question {
  constructor(text) {
    this.text = text;
    this.element = make("li", {}, make("div", { className: "user", textContent: text }));
  }

  messages() {
    return [{ role: "user", content: this.text }];
  }
}

class ToolResult {
  constructor(id, text) {
    Object.assign(this, { id, text });
    this.element = make("li", { className: "tool" }, make("div", { className: "user", textContent: text }));
  }

  messages() {
    return [{ role: "tool", tool_call_id: this.id, content: this.text }];
  }
}

class Answer {
  constructor() {
    Object.assign(this, { text: "", reasoning: "", calls: [], tokens: [], fault: "", id: "", usage: null, reason: "" });
    Object.assign(this, { begun: performance.now(), first: 0, answered: 0, ended: 0 });
    this.stop = new AbortController();
    this.thought = make("details", { className: "thought", hidden: true }, make("summary"), make("div"));
    this.said = make("div", { className: "said writing" });
    this.called = make("div");
    this.wrong = make("p", { className: "wrong", hidden: true });
    this.bar = make("div", { className: "bar" });
    this.facts = make("dl", { hidden: true });
    this.element = make("li", { className: "answer" }, this.thought, this.said, this.called, this.wrong, this.bar, this.facts);
    this.asTokens = false;
    this.dirty = false;
  }

  messages() {
    if (!this.text && !this.calls.length) return [];
    const message = { role: "assistant", content: this.text || null };
    if (this.calls.length) message.tool_calls = this.calls.map(({ index, ...call }) => call);
    return [message];
  }

  async run() {
    const body = JSON.stringify(requestBody());
    const headers = { "content-type": "application/json" };
    try {
      const answer = await ask("v1/chat/completions", { method: "POST", headers, body, signal: this.stop.signal });
      this.id = answer.headers.get("x-request-id") || "";
      if (!answer.ok) throw new Error((await answer.json()).error?.message || `The server said ${answer.status}.`);
      for await (const event of events(answer.body)) this.take(event);
    } catch (error) {
      if (error.name === "AbortError") this.reason = "stopped";
      else this.fault = error instanceof TypeError ? "The connection was lost." : error.message;
    }
    this.ended = performance.now();
    this.show();
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) this.usage = event.usage;
    for (const choice of event.choices) {
      const delta = choice.delta;
      if (!this.first && (delta.content || delta.reasoning_content || delta.tool_calls)) this.first = performance.now();
      if (delta.reasoning_content) this.reasoning += delta.reasoning_content;
      if (delta.content) {
        this.answered ||= performance.now();
        this.text += delta.content;
      }
      for (const call of delta.tool_calls ?? []) this.addCall(call);
      if (choice.logprobs?.content) this.tokens.push(...choice.logprobs.content);
      if (choice.finish_reason) this.reason = choice.finish_reason;
    }
    if (!this.dirty) {
      this.dirty = true;
      requestAnimationFrame(() => this.show());
    }
  }

  addCall(part) {
    const known = this.calls.find((call) => call.index === part.index);
    if (known) known.function.arguments += part.function.arguments;
    else this.calls.push(structuredClone(part));
  }

  show() {
    this.dirty = false;
    const near = $("messages").scrollHeight - $("messages").scrollTop - $("messages").clientHeight < 80;
    const going = !this.ended;
    this.thought.hidden = !this.reasoning;
    if (this.reasoning) {
      const seconds = ((this.answered || this.ended || performance.now()) - this.first) / 1000;
      const spent = seconds < 0.1 ? "Thought" : `Thought for ${seconds.toFixed(1)} s`;
      this.thought.firstChild.textContent = going && !this.answered ? "Thinking" : spent;
      this.thought.lastChild.textContent = this.reasoning.trim();
      if (going && !this.answered) this.thought.open = true;
      else if (this.thought.open && !this.folded) this.thought.open = false;
      this.folded = Boolean(this.answered);
    }
    this.said.classList.toggle("writing", going);
    this.said.classList.toggle("tokens", this.asTokens);
    this.said.replaceChildren(...(this.asTokens ? this.tokens.map(tokenSpan) : markdown(this.text)));
    this.called.replaceChildren(...this.calls.map((call) => this.callBox(call)));
    this.wrong.hidden = !this.fault;
    this.wrong.textContent = this.fault;
    if (!going) this.showBar();
    if (near) $("messages").scrollTop = $("messages").scrollHeight;
  }

  showBar() {
    const button = (label, onclick, pressed) => {
      const made = make("button", { type: "button", textContent: label, onclick });
      if (pressed !== undefined) made.setAttribute("aria-pressed", String(pressed));
      return made;
    };
    const buttons = [button("Copy", (event) => copied(event.target, this.text))];
    if (turns.at(-1) === this) buttons.push(button("Regenerate", () => regenerate()));
    if (this.tokens.length) {
      buttons.push(button("Tokens", () => { this.asTokens = !this.asTokens; this.show(); }, this.asTokens));
    }
    if (this.id) buttons.push(button("Details", () => this.explain(), !this.facts.hidden));
    this.bar.replaceChildren(...buttons, make("span", { textContent: this.summary() }));
  }

  summary() {
    const said = [];
    const count = this.usage?.completion_tokens ?? this.tokens.length;
    if (count) said.push(`${count} tokens`);
    if (this.first && count > 1) said.push(`${(((count - 1) * 1000) / (this.ended - this.first)).toFixed(1)}/s`);
    if (this.first) said.push(`first after ${seconds((this.first - this.begun) / 1000)}`);
    if (this.reason && this.reason !== "stop") said.push(this.reason === "length" ? "cut at the limit" : this.reason.replace("_", " "));
    return said.join(" · ");
  }

  callBox(call) {
    let text = call.function.arguments;
    try {
      text = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // shown as it came
    }
    const box = make("div", { className: "call" }, make("b", { textContent: call.function.name }), make("pre", { textContent: text }));
    const answered = turns.some((turn) => turn instanceof ToolResult && turn.id === call.id);
    if (this.ended && !answered) {
      const input = make("textarea", { rows: 2, placeholder: "What the tool answers" });
      const send = make("button", { type: "button", textContent: "Send result", onclick: () => answerCall(call.id, input.value) });
      box.append(input, send);
    }
    return box;
  }

  async explain() {
    this.facts.hidden = !this.facts.hidden;
    if (!this.facts.hidden) {
      const answer = await ask(`v1/requests/${encodeURIComponent(this.id)}`);
      const rows = answer.ok ? factsOf(await answer.json()) : [["Request", "no longer known to the server"]];
      this.facts.replaceChildren(...rows.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
    }
    this.showBar();
  }
}

function factsOf(record) {
  const [choice = {}] = record.choices;
  const rows = [
    ["Request", record.id],
    ["Prompt", `${record.prompt_tokens} tokens, ${record.cached_tokens} from the prefix cache`],
    ["Before the engine", seconds(record.prepare_seconds)],
    ["Queue, prefill, decode", [choice.queue_seconds, choice.prefill_seconds, choice.decode_seconds].map(seconds).join(", ")],
    ["Longest gap", seconds(choice.longest_gap_seconds)],
    ["Seed", String(choice.seed)],
    ["Sampling", Object.entries(record.sampling ?? {}).filter(([name]) => name !== "seed").map(([name, value]) => `${name} ${value}`).join(", ")],
  ];
  if (choice.preemptions) rows.push(["Preemptions", String(choice.preemptions)]);
  if (record.structure) rows.push(["Structure", `${record.structure.kind}, compiled in ${seconds(record.structure.compile_seconds)}, masks ${seconds(record.structure.mask_seconds)}`]);
  return rows;
}

function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value < 0.9995) return `${(value * 1000).toFixed(value < 0.0095 ? 1 : 0)} ms`;
  return value < 120 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : `${(value / 60).toFixed(1)} min`;
}

// ---- tokens --------------------------------------------------------------------------------------------------------

function tokenSpan(token) {
  const p = Math.exp(token.logprob);
  const shade = p > 0.9 ? "" : p > 0.6 ? "p1" : p > 0.3 ? "p2" : p > 0.1 ? "p3" : "p4";
  const span = make("span", { className: shade, textContent: token.token, tabIndex: 0 });
  span.token = token;
  return span;
}

function percent(p) {
  return p >= 0.9995 ? "100 %" : p >= 0.001 ? `${(p * 100).toFixed(1)} %` : "< 0.1 %";
}

function showTip(event) {
  const token = event.target.token;
  $("tip").hidden = !token;
  if (!token) return;
  const others = token.top_logprobs.filter((other) => other.token !== token.token);
  const rows = [token, ...others].sort((a, b) => b.logprob - a.logprob).map((each) =>
    make("tr", { className: each === token ? "chosen" : "" },
      make("td", { textContent: visible(each.token) }), make("td", { textContent: percent(Math.exp(each.logprob)) })));
  $("tip").replaceChildren(make("table", {}, make("tbody", {}, ...rows)));
  const place = event.target.getBoundingClientRect();
  const { width, height } = $("tip").getBoundingClientRect();
  $("tip").style.left = `${Math.max(8, Math.min(place.left, innerWidth - width - 8))}px`;
  $("tip").style.top = `${place.bottom + height + 12 < innerHeight ? place.bottom + 6 : place.top - height - 6}px`;
}

const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·") || "(end)";

// ---- the conversation ----------------------------------------------------------------------------------------------

function add(turn) {
  turns.push(turn);
  $("messages").append(turn.element);
  $("messages").scrollTop = $("messages").scrollHeight;
}

async function answer() {
  const before = turns.at(-1);
  writing = new Answer();
  add(writing);
  if (before instanceof Answer || turns.length > 2) turns.filter((turn) => turn instanceof Answer && turn.ended).forEach((turn) => turn.show());
  $("send").textContent = "Stop";
  keep();
  await writing.run();
  writing = null;
  $("send").textContent = "Send";
  keep();
}

function submit(event) {
  event.preventDefault();
  if (writing) {
    writing.stop.abort();
    return;
  }
  const text = $("input").value.trim();
  if (!text) return;
  $("input").value = "";
  grow();
  add(new Question(text));
  answer();
}

function regenerate() {
  if (writing || !(turns.at(-1) instanceof Answer)) return;
  turns.pop().element.remove();
  answer();
}

function answerCall(id, text) {
  if (writing) return;
  add(new ToolResult(id, text));
  const calls = turns.findLast((turn) => turn instanceof Answer).calls;
  const open = calls.filter((call) => !turns.some((turn) => turn instanceof ToolResult && turn.id === call.id));
  turns.filter((turn) => turn instanceof Answer).forEach((turn) => turn.show());
  if (!open.length) answer();
}

function fresh() {
  writing?.stop.abort();
  turns = [];
  $("messages").replaceChildren();
  keep();
  $("input").focus();
}

// The conversation outlives a reload of its tab.
function keep() {
  const plain = turns.map((turn) => turn instanceof Question ? { q: turn.text }
    : turn instanceof ToolResult ? { tool: turn.text, id: turn.id }
    : { a: turn.text, thought: turn.reasoning, calls: turn.calls });
  try {
    sessionStorage.setItem("octavo.turns", JSON.stringify(plain));
  } catch {
    // too long to be kept
  }
}

function recall() {
  for (const kept of JSON.parse(sessionStorage.getItem("octavo.turns") || "[]")) {
    if (kept.q !== undefined) add(new Question(kept.q));
    else if (kept.tool !== undefined) add(new ToolResult(kept.id, kept.tool));
    else {
      const turn = new Answer();
      Object.assign(turn, { text: kept.a, reasoning: kept.thought, calls: kept.calls, ended: turn.begun, answered: turn.begun });
      add(turn);
    }
  }
  turns.filter((turn) => turn instanceof Answer).forEach((turn) => turn.show());
}

function grow() {
  $("input").style.height = "auto";
  $("input").style.height = `${$("input").scrollHeight + 2}px`;
}

// ---- live plots ----------------------------------------------------------------------------------------------------

const SECONDS = 180;
const WINDOW = 20; // seconds that a median is over
const history = []; // {time, values: Map of samples}, one a second

const PLOTS = [
  { title: "Output tokens", unit: "per second", series: [["tokens", "output"], ["prompt", "prompt"]] },
  { title: "Outputs", unit: "now", series: [["running", "running"], ["waiting", "waiting"]], steps: [2, 4, 6, 8, 10] },
  { title: "KV cache", unit: "%", series: [["kv", "in use"]] },
  { title: "Time to first token", unit: "s", series: [["first", "median"], ["first99", "99 %"]], digits: 2 },
  { title: "Between tokens", unit: "ms", series: [["gap", "median"], ["gap99", "99 %"]], digits: 1 },
  { title: "Prefix hits", unit: "% of prompt tokens", series: [["hits", "hits"]], top: 100 },
];

// name{le} -> value, summed over all other labels.
function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^(octavo_\w+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const le = /(?:^|,)le="([^"]+)"/.exec(match[2] ?? "");
    const name = le ? `${match[1]}|${le[1]}` : match[1];
    found.set(name, (found.get(name) ?? 0) + Number(match[3]));
  }
  return found;
}

// A quantile of what came between two readings, straight lines within a bucket; null for nothing.
function quantile(name, before, after, q) {
  const buckets = [];
  for (const [key, value] of after) {
    if (!key.startsWith(`${name}_bucket|`)) continue;
    const le = key.split("|")[1];
    buckets.push([le === "+Inf" ? Infinity : Number(le), value - (before.get(key) ?? 0)]);
  }
  buckets.sort((a, b) => a[0] - b[0]);
  const total = buckets.at(-1)?.[1] ?? 0;
  if (!total) return null;
  let low = 0, below = 0;
  for (const [le, count] of buckets) {
    if (count >= q * total) return le === Infinity ? low : low + ((le - low) * (q * total - below)) / Math.max(count - below, 1e-9);
    [low, below] = [le, count];
  }
  return low;
}

function figures() {
  const now = history.at(-1);
  const last = history.at(-2);
  if (!last) return {};
  const first = history.find((each) => each.time >= now.time - WINDOW * 1000) ?? last;
  const before = first === now ? last : first;
  const value = (name, at = now) => at.values.get(name) ?? 0;
  const rate = (name, from) => ((value(name) - value(name, from)) * 1000) / (now.time - from.time);
  const used = value("octavo_kv_blocks_used");
  const blocks = used + value("octavo_kv_blocks_cached") + value("octavo_kv_blocks_free");
  const near = history.findLast((each) => each.time <= now.time - 2500) ?? history[0]; // longer than a slow model's steps
  const prompts = value("octavo_prompt_tokens_total") - value("octavo_prompt_tokens_total", before);
  const hits = value("octavo_cached_tokens_total") - value("octavo_cached_tokens_total", before);
  const wait = (q) => quantile("octavo_time_to_first_token_seconds", before.values, now.values, q);
  const gap = (q) => quantile("octavo_inter_token_seconds", before.values, now.values, q);
  const ms = (found) => (found === null ? null : found * 1000);
  return {
    tokens: rate("octavo_output_tokens_total", near),
    prompt: rate("octavo_prompt_tokens_total", near),
    running: value("octavo_requests_running"),
    waiting: value("octavo_requests_waiting"),
    kv: blocks ? (100 * used) / blocks : 0,
    first: wait(0.5), first99: wait(0.99),
    gap: ms(gap(0.5)), gap99: ms(gap(0.99)),
    hits: prompts > 0 ? Math.min(100, (100 * hits) / prompts) : null,
  };
}

const points = []; // {time, ...figures}

async function poll() {
  try {
    const answer = await ask("metrics");
    if (!answer.ok) throw new Error();
    history.push({ time: Date.now(), values: parse(await answer.text()) });
    if (history.length > WINDOW + 2) history.shift();
    points.push({ time: Date.now(), ...figures() });
    if (points.length > SECONDS + 5) points.shift();
    const now = points.at(-1);
    $("status").textContent = now.running || now.waiting
      ? `${now.running} running${now.waiting ? `, ${now.waiting} waiting` : ""} · ${(now.tokens ?? 0).toFixed(0)} tokens/s · KV ${(now.kv ?? 0).toFixed(now.kv < 10 ? 1 : 0)} %` : "";
    if (!$("live").hidden) {
      PLOTS.forEach(draw);
      listRequests();
    }
  } catch {
    $("status").textContent = "The server does not answer.";
  }
}

function draw(plot) {
  const { canvas, value } = plot;
  const scale = devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  Object.assign(canvas, { width: width * scale, height: height * scale });
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const end = points.at(-1)?.time ?? Date.now();
  const most = Math.max(0, ...points.flatMap((point) => plot.series.map(([name]) => point[name] ?? 0)));
  const top = plot.top ?? nice(most, plot.steps);
  const shown = Math.min(SECONDS, Math.max(45, (end - (points[0]?.time ?? end)) / 1000));
  const x = (time) => width - ((end - time) / 1000 / shown) * width;
  const y = (found) => height - 1 - (found / top) * (height - 16);
  pen.strokeStyle = colour("--line");
  pen.fillStyle = colour("--faint");
  pen.font = `11px ${colour("--sans")}`;
  for (const level of [0, 0.5, 1]) {
    pen.beginPath();
    pen.moveTo(0, Math.round(y(level * top)) - 0.5);
    pen.lineTo(width, Math.round(y(level * top)) - 0.5);
    pen.stroke();
    if (level) pen.fillText(String(+(level * top).toPrecision(3)), 0, y(level * top) - 4);
  }
  plot.series.forEach(([name], place) => line(pen, points, name, x, y, height, colour(place ? "--second" : "--accent"), !place));
  const found = points.at(-1)?.[plot.series[0][0]];
  value.textContent = found === null || found === undefined ? "–" : found.toFixed(plot.digits ?? (found < 10 && found % 1 ? 1 : 0));
}

function line(pen, points, name, x, y, height, colour, filled) {
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.lineJoin = "round";
  let run = [];
  const flush = () => {
    if (run.length === 1) run.push([run[0][0] + 1.5, run[0][1]]);
    if (run.length) {
      pen.beginPath();
      run.forEach(([px, py], place) => (place ? pen.lineTo(px, py) : pen.moveTo(px, py)));
      pen.stroke();
      if (filled) {
        pen.lineTo(run.at(-1)[0], height);
        pen.lineTo(run[0][0], height);
        pen.globalAlpha = 0.07;
        pen.fillStyle = colour;
        pen.fill();
        pen.globalAlpha = 1;
      }
    }
    run = [];
  };
  for (const point of points) {
    if (point[name] === null || point[name] === undefined) flush();
    else run.push([x(point.time), y(point[name])]);
  }
  flush();
}

function nice(most, steps = [1, 2, 3, 4, 5, 6, 8, 10]) {
  if (most <= 0) return steps[0];
  const unit = 10 ** Math.floor(Math.log10(most));
  return steps.find((step) => step * unit >= most) * unit;
}

function layPlots() {
  for (const plot of PLOTS) {
    plot.canvas = make("canvas");
    plot.value = make("b", { textContent: "–" });
    const caption = make("figcaption", {}, plot.title, plot.value, make("small", { textContent: plot.unit }));
    const key = plot.series.length < 2 ? [] : [make("div", { className: "key" }, ...plot.series.map(([, label], place) =>
      make("span", {}, make("i", { className: place ? "second" : "" }), label)))];
    $("plots").append(make("figure", {}, caption, plot.canvas, ...key));
  }
}

async function listRequests() {
  const answer = await ask("v1/requests");
  if (!answer.ok) return;
  const rows = (await answer.json()).data.slice(0, 24).map((request) => {
    const prompt = request.state === "prefill"
      ? `${request.computed_tokens} of ${request.prompt_tokens}` : String(request.prompt_tokens);
    const rate = request.tokens_per_second === null ? "–" : `${request.tokens_per_second.toFixed(1)}/s`;
    const state = request.state === "ended" ? request.finish_reason ?? "ended" : request.state;
    const cells = [request.id, state, prompt, request.cached_tokens, request.output_tokens, seconds(request.first_token_seconds), rate, seconds(request.seconds)];
    return make("tr", { className: request.state === "ended" ? "" : "going" }, ...cells.map((cell) => make("td", { textContent: cell })));
  });
  $("requests").tBodies[0].replaceChildren(...rows);
}

// ---- the frame -----------------------------------------------------------------------------------------------------

function show(view) {
  for (const name of ["chat", "live"]) {
    $(name).hidden = name !== view;
    $(`to-${name}`).setAttribute("aria-pressed", String(name === view));
  }
  if (view === "live") {
    PLOTS.forEach(draw);
    listRequests();
  }
}

const system = matchMedia("(prefers-color-scheme: dark)");

function setTheme(theme) {
  localStorage.setItem("octavo.theme", theme);
  $("theme").value = theme;
  document.documentElement.dataset.theme = theme === "auto" ? (system.matches ? "dark" : "light") : theme;
  if (!$("live").hidden) PLOTS.forEach(draw);
}

const theme = () => localStorage.getItem("octavo.theme") || "auto";

async function begin() {
  setTheme(theme());
  showSettings();
  layPlots();
  recall();
  const answer = await admitted("v1/models");
  const models = answer.ok ? (await answer.json()).data : [];
  $("model").replaceChildren(...models.map((model) => make("option", { textContent: model.id })));
  $("model").disabled = models.length < 2;
  $("input").focus();
  poll();
  setInterval(() => document.hidden || poll(), 1000);
}

$("composer").addEventListener("submit", submit);
$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!writing) $("composer").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && writing) writing.stop.abort();
});
$("new").addEventListener("click", fresh);
$("to-chat").addEventListener("click", () => show("chat"));
$("to-live").addEventListener("click", () => show("live"));
$("to-settings").addEventListener("click", (event) => {
  $("settings").hidden = !$("settings").hidden;
  event.target.setAttribute("aria-expanded", String(!$("settings").hidden));
});
$("settings").addEventListener("input", changeSetting);
$("defaults").addEventListener("click", () => {
  Object.assign(settings, DEFAULTS);
  localStorage.removeItem("octavo.settings");
  showSettings();
});
$("theme").addEventListener("change", (event) => setTheme(event.target.value));
system.addEventListener("change", () => setTheme(theme()));
for (const kind of ["mouseover", "focusin"]) $("messages").addEventListener(kind, showTip);
$("messages").addEventListener("mouseleave", () => ($("tip").hidden = true));
$("messages").addEventListener("scroll", () => ($("tip").hidden = true));
addEventListener("resize", () => $("live").hidden || PLOTS.forEach(draw));
begin();
