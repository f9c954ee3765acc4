// Drives the pages of two running servers in headless Chromium: `node drive.mjs URL SHOTS SCRIPTED KEY`. Prints a line a
// check; any that fails ends it with 1. SHOTS: the folder that the screenshots go to. SCRIPTED: the address of
// bench/clients/server.py, which wants KEY. CHROMIUM: the browser, else `chromium` on the path.
// PLAYWRIGHT: the folder that holds playwright-core. `make page` sets both.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import { join } from "node:path";

const [url, shots, scripted, key] = process.argv.slice(2);
const require = createRequire(join(process.env.PLAYWRIGHT ?? process.cwd(), "package.json"));
const { chromium } = require("playwright-core");
const executablePath = process.env.CHROMIUM ?? execFileSync("which", ["chromium"]).toString().trim();
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });

const faults = [];
const elsewhere = [];

async function open(options = {}, address = url) {
  const context = await browser.newContext({ viewport: { width: 1120, height: 760 }, deviceScaleFactor: 1.5, ...options });
  await context.addInitScript((kept) => localStorage.getItem("octavo.settings") ?? localStorage.setItem("octavo.settings", kept), JSON.stringify({ temperature: 0, max_tokens: "240" }));
  const page = await context.newPage();
  page.on("console", (message) => message.type() === "error" && faults.push(message.text()));
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("request", (request) => new URL(request.url()).origin === new URL(address).origin || request.url().startsWith("data:") || elsewhere.push(request.url()));
  page.setDefaultTimeout(120000); // of a machine that does other things too
  await page.goto(address);
  if (address === url) await page.waitForFunction(() => document.querySelector("#model").options.length > 0);
  return page;
}

const shot = (page, name) => page.screenshot({ path: join(shots, `${name}.png`) });
const said = (page) => page.locator(".answer .said").last();

async function say(page, text, { wait = true } = {}) {
  await page.fill("#input", text);
  await page.keyboard.press("Enter");
  if (wait) await page.waitForFunction(() => document.querySelector("#send").textContent === "Send" && document.querySelector(".answer .bar button"), null, { timeout: 120000 });
}

async function check(name, work) {
  await work();
  console.log(`ok  ${name}`);
}

const page = await open({ colorScheme: "light" });

await check("an answer streams: its text grows before it ends", async () => {
  await page.fill("#input", "Write three short paragraphs about how books were printed in the 16th century.");
  await page.keyboard.press("Enter");
  const lengths = new Set();
  while ((await page.textContent("#send")) === "Stop") {
    lengths.add((await said(page).textContent()).length);
    await page.waitForTimeout(40);
  }
  assert.ok(lengths.size > 5, `only ${lengths.size} different lengths were seen`);
  assert.match(await page.textContent(".answer .bar"), /\d+ tokens · [\d.]+\/s · first after/);
});

await check("stop ends it, here and in the server", async () => {
  await say(page, "Write a long story about a lighthouse, a printer and the sea.", { wait: false });
  await page.waitForFunction(() => [...document.querySelectorAll(".answer .said")].at(-1).textContent.length > 40);
  await page.click("#send");
  await page.waitForFunction(() => document.querySelector("#send").textContent === "Send");
  assert.match(await page.locator(".answer .bar").last().textContent(), /stopped/);
  const running = async () => /octavo_requests_running\{[^}]*\} (\d+)/.exec(await (await fetch(new URL("metrics", url))).text())[1];
  for (let tries = 0; (await running()) !== "0.0" && tries < 40; tries++) await page.waitForTimeout(50);
  assert.match(await running(), /^0/);
});

await check("regenerate replaces the last answer", async () => {
  const before = await page.locator(".answer").count();
  await page.locator(".bar button", { hasText: "Regenerate" }).last().click();
  await page.waitForFunction(() => [...document.querySelectorAll(".answer .said")].at(-1).textContent.length > 10);
  await page.click("#send");
  await page.waitForFunction(() => document.querySelector("#send").textContent === "Send");
  assert.equal(await page.locator(".answer").count(), before);
});

await check("tokens show their probabilities on hover", async () => {
  await page.click("#new");
  await say(page, "What is the capital of France?");
  await page.locator(".bar button", { hasText: "Tokens" }).click();
  await page.locator(".tokens span").nth(3).hover();
  assert.equal(await page.locator("#tip tr.chosen").count(), 1);
  assert.ok((await page.locator("#tip tr").count()) >= 2);
  await page.locator(".bar button", { hasText: "Tokens" }).click();
});

await check("details tell where the time went", async () => {
  await page.locator(".bar button", { hasText: "Details" }).click();
  await page.waitForFunction(() => document.querySelector(".answer dl").textContent.includes("Queue, prefill, decode"));
});

await check("what a model writes never becomes markup", async () => {
  await page.evaluate(() => {
    const box = document.createElement("div");
    box.id = "probe";
    box.append(...markdown('<img src=x onerror=alert(1)> [a](javascript:alert(1)) **b**\n\n```html\n<script>alert(2)</script>\n```\n- one\n  - two\n\n| a | b |\n|---|---|\n| 1 | *2* |'));
    document.body.append(box);
  });
  assert.equal(await page.locator("#probe img, #probe script, #probe a").count(), 0);
  assert.deepEqual(await page.$$eval("#probe *", (all) => [...new Set(all.map((each) => each.tagName))].sort()),
    ["BUTTON", "CODE", "EM", "LI", "P", "PRE", "STRONG", "TABLE", "TBODY", "TD", "TH", "THEAD", "TR", "UL"]);
  assert.ok(await page.evaluate(() => { try { document.body.innerHTML += ""; return false; } catch { return true; } }), "markup from text is let in");
  await page.evaluate(() => document.querySelector("#probe").remove());
});

await check("settings reach the request", async () => {
  await page.click("#to-settings");
  await page.fill("#system", "Answer in two or three sentences.");
  await page.fill("#seed", "7");
  await page.fill("#max_tokens", "160");
  const [request] = await Promise.all([page.waitForRequest(/chat\/completions/), say(page, "Tell me two things about it.")]);
  const body = request.postDataJSON();
  assert.deepEqual([body.seed, body.max_tokens, body.messages[0].role, body.top_logprobs], [7, 160, "system", 5]);
});
await page.evaluate(() => document.activeElement.blur());
await page.evaluate(() => ($("messages").scrollTop = 0));
await shot(page, "chat");
await page.locator(".bar button", { hasText: "Tokens" }).last().click();
await page.locator(".tokens span").nth(9).hover();
await shot(page, "tokens");
await page.click("#to-settings");

await check("plots move while requests run", async () => {
  await page.click("#to-live");
  const ask = (n) => page.evaluate((n) => Promise.all(Array.from({ length: n }, (_, i) => ask("v1/chat/completions", {
    method: "POST", headers: { "content-type": "application/json" },
    body: JSON.stringify({ model: "default", max_tokens: 40 + 30 * i, temperature: 0.8, messages: [{ role: "user", content: `Tell me story number ${i} about the sea, a lighthouse and a printer.` }] }),
  }).then((answer) => answer.status))), n);
  const pixels = () => page.$$eval("canvas", (all) => all.map((canvas) => canvas.toDataURL()));
  const before = await pixels();
  for (const n of [1, 3, 6, 2, 4]) assert.ok((await ask(n)).every((status) => status === 200));
  const going = ask(5);
  await page.waitForTimeout(2500);
  const after = await pixels();
  assert.equal(after.length, 6);
  assert.ok(after.every((plot, place) => plot !== before[place]), "a plot stood still");
  assert.match(await page.textContent("#status"), /tokens\/s|^$/);
  await shot(page, "metrics");
  await going;
});

const dark = await open({ colorScheme: "dark" });
await say(dark, "Tell me how paper is made, in two short paragraphs.");
await check("dark follows the system", async () => {
  assert.equal(await dark.evaluate(() => getComputedStyle(document.body).colorScheme), "dark");
});
await shot(dark, "dark");

const narrow = await open({ viewport: { width: 390, height: 780 }, deviceScaleFactor: 2, colorScheme: "light", isMobile: true, hasTouch: true });
await say(narrow, "List three things that a sailor packs.");
await check("a narrow screen scrolls in one direction", async () => {
  assert.ok(await narrow.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
});
await shot(narrow, "narrow");

const told = await open({ colorScheme: "light" }, scripted);
await check("a key is asked for until it is right, and stays in the tab", async () => {
  for (const given of ["a wrong one", key]) {
    await told.waitForSelector("#ask-key[open]");
    if (given === key) assert.match(await told.textContent("#key-fault"), /does not know/);
    await told.fill("#key", given);
    await told.keyboard.press("Enter");
  }
  await told.waitForFunction(() => document.querySelector("#model").options.length > 1);
  await told.reload();
  await told.waitForFunction(() => document.querySelector("#model").options.length > 1);
  assert.ok(await told.evaluate(() => !JSON.stringify(localStorage).includes("key of")));
});

await check("reasoning stands apart; a call is shown and answered", async () => {
  await told.click("#to-settings");
  await told.fill("#tools", JSON.stringify([{ type: "function", function: { name: "weather", parameters: { type: "object" } } }]));
  await told.click("#to-settings");
  await say(told, 'call weather {"city": "Paris"}');
  assert.equal(await told.textContent(".thought div"), "I was told to.");
  assert.equal((await told.locator(".answer .said").first().textContent()).trim(), "Calling.");
  assert.match(await told.textContent(".call"), /weather.*"city": "Paris"/s);
  await shot(told, "tools");
  await told.fill(".call textarea", "Sunny, 21 degrees");
  await told.click(".call button");
  await told.waitForFunction(() => document.querySelectorAll(".answer .bar button").length > 3 && document.querySelector("#send").textContent === "Send");
  assert.equal((await said(told).textContent()).trim(), "The tool said: Sunny, 21 degrees");
});

await check("nothing came from elsewhere, nothing went wrong", async () => {
  assert.deepEqual(elsewhere, []);
  assert.deepEqual(faults.filter((fault) => !/Trusted ?Type|TrustedHTML|status of 401/i.test(fault)), []);
});
await browser.close();
