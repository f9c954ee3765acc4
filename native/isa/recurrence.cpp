// Kernels of recurrent state of one instruction-set class: convolution, gates, the gated delta rule. See recurrence.h.
#include "recurrence.h"

#include <cstring>

#include "isa/lanes.h"

namespace octavo::OCTAVO_ISA_NAME {

extern const RecurrenceKernels RECURRENCE;

namespace {

constexpr int MAX_TAPS = 8;

OCTAVO_INLINE vf some(const float* x, int n) { return n >= LANES ? vload(x) : vload_n(x, n); }
OCTAVO_INLINE void put(float* out, vf x, int n) {
  if (n >= LANES) vstore(out, x);
  else vstore_n(out, x, n);
}
vf sigmoid(vf x) { return vdiv(vset(1.0f), vadd(vset(1.0f), vexp2(vmul(x, vset(-LOG2E))))); }

// ---- convolution

// The inputs of one request in the order of its tokens: position -1 is the newest of the state.
struct Inputs {
  const ConvArgs& a;
  const Sequence& s;

  const float* at(int32_t position) const {
    if (position < 0) return a.state.slot(s.slot) + static_cast<size_t>(a.taps - 1 + position) * a.channels;
    if (position < s.replay) return a.state.tail(s, true, position);
    return row(s.row + position - s.replay);
  }
  const float* row(int32_t number) const { return a.x + static_cast<size_t>(number) * a.channels; }

  // The taps of a draft: itself and what its path has before it, newest last.
  void path(int32_t draft, const float** taps) const {
    const int32_t first = s.row + s.firm;
    int32_t row_number = draft, tap = a.taps - 1;
    for (; tap >= 0 && row_number >= first; --tap) {
      taps[tap] = row(row_number);
      row_number = a.parent[row_number] < 0 ? row_number - 1 : a.parent[row_number];
    }
    for (int32_t position = s.replay + s.firm - 1; tap >= 0; --tap, --position) taps[tap] = at(position);
  }
};

void conv_row(const ConvArgs& a, const float* const* taps, float* out, int begin, int end) {
  for (int c = begin; c < end; c += LANES) {
    const int n = end - c;
    vf sum = vmul(some(a.weight + c, n), some(taps[0] + c, n));
    for (int t = 1; t < a.taps; ++t) {
      sum = vfma(some(a.weight + static_cast<size_t>(t) * a.channels + c, n), some(taps[t] + c, n), sum);
    }
    put(out + c, vmul(sum, sigmoid(sum)), n);
  }
}

// The state after `tokens` of the request's own, to a place that may be the one before: rows move down only.
void keep_inputs(const Inputs& in, int32_t tokens, float* to, int begin, int end) {
  const int32_t held = in.a.taps - 1;
  for (int32_t i = 0; i < held; ++i) {
    const float* from = in.at(tokens - held + i) + begin;
    float* out = to + static_cast<size_t>(i) * in.a.channels + begin;
    if (out != from) std::memmove(out, from, (end - begin) * sizeof(float));
  }
}

void conv(const ConvArgs& a, int begin, int end) {
  const float* taps[MAX_TAPS];
  if (begin >= end) return;
  for (int32_t n = 0; n < a.count; ++n) {
    const Sequence& s = a.sequences[n];
    const Inputs in{a, s};
    const auto out = [&](int32_t row) { return a.out + static_cast<size_t>(row) * a.channels; };
    for (int32_t i = 0; i < s.firm; ++i) {
      for (int32_t t = 0; t < a.taps; ++t) taps[t] = in.at(s.replay + i - (a.taps - 1) + t);
      conv_row(a, taps, out(s.row + i), begin, end);
    }
    for (int32_t i = s.firm; i < s.firm + s.drafts; ++i) {
      in.path(s.row + i, taps);
      conv_row(a, taps, out(s.row + i), begin, end);
      std::memcpy(a.state.tail(s, false, i - s.firm) + begin, in.row(s.row + i) + begin, (end - begin) * sizeof(float));
    }
    for (int32_t i = 0; i < s.taken; ++i) {
      keep_inputs(in, s.snapshots[3 * i + 1], a.state.snapshot(s.snapshots[3 * i + 2]), begin, end);
    }
    keep_inputs(in, s.replay + s.firm, a.state.slot(s.slot), begin, end);
  }
}

// ---- gates

// log(1 + e^x) = max(x, 0) + log(1 + t), t = e^-|x|: twice the area tangent of t / (2 + t), at most 1/3.
vf softplus(vf x) {
  const vf zero = vset(0.0f), t = vexp2(vmul(vmax(x, vsub(zero, x)), vset(-LOG2E)));
  const vf s = vdiv(t, vadd(vset(2.0f), t)), s2 = vmul(s, s);
  vf p = vset(1.0f / 15);
  for (int odd = 13; odd > 0; odd -= 2) p = vfma(p, s2, vset(1.0f / static_cast<float>(odd)));
  return vadd(vmax(x, zero), vmul(vadd(s, s), p));
}

void delta_gates(const DeltaGatesArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float *b = a.x + static_cast<size_t>(row) * 2 * a.heads, *raw = b + a.heads;
    for (int h = 0; h < a.heads; h += LANES) {
      const int n = a.heads - h;
      const size_t to = static_cast<size_t>(row) * a.heads + h;
      const vf rate = vexp2(vmul(some(a.a_log + h, n), vset(LOG2E)));
      const vf step = softplus(vadd(some(raw + h, n), some(a.dt_bias + h, n)));
      put(a.decay + to, vexp2(vmul(vmul(rate, step), vset(-LOG2E))), n);
      put(a.beta + to, sigmoid(some(b + h, n)), n);
    }
  }
}

// ---- delta rule

// x / sqrt(sum x^2 + 1e-6) * scale
void unit(const float* x, int n, float scale, float* out) {
  vf sum = vset(0.0f);
  for (int i = 0; i < n; i += LANES) {
    const vf v = some(x + i, n - i);
    sum = vfma(v, v, sum);
  }
  const vf r = vset(scale / __builtin_sqrtf(vsum(sum) + 1e-6f));
  for (int i = 0; i < n; i += LANES) put(out + i, vmul(some(x + i, n - i), r), n - i);
}

// One token in one tile [key_dim][16]. Sums run over the rows i in four chains (i mod 4), joined (0 + 1) + (2 + 3).
// q null: the state alone. Returns S^T q.
vf advance(float* tile, int key_dim, const float* k, const float* q, vf v, float decay, float beta) {
  vf sums[4] = {vset(0.0f), vset(0.0f), vset(0.0f), vset(0.0f)};
  int i = 0;
  for (; i + 4 <= key_dim; i += 4) {
    for (int j = 0; j < 4; ++j) sums[j] = vfma(vload(tile + (i + j) * STATE_COLUMNS), vset(k[i + j]), sums[j]);
  }
  for (; i < key_dim; ++i) sums[i & 3] = vfma(vload(tile + i * STATE_COLUMNS), vset(k[i]), sums[i & 3]);
  const vf kept = vset(decay), seen = vadd(vadd(sums[0], sums[1]), vadd(sums[2], sums[3]));
  const vf u = vmul(vset(beta), vsub(v, vmul(kept, seen)));
  const auto step = [&](int at) {
    const vf s = vfma(vset(k[at]), u, vmul(kept, vload(tile + at * STATE_COLUMNS)));
    vstore(tile + at * STATE_COLUMNS, s);
    return s;
  };
  if (!q) {
    for (i = 0; i < key_dim; ++i) step(i);
    return u;
  }
  for (vf& sum : sums) sum = vset(0.0f);
  for (i = 0; i + 4 <= key_dim; i += 4) {
    for (int j = 0; j < 4; ++j) sums[j] = vfma(step(i + j), vset(q[i + j]), sums[j]);
  }
  for (; i < key_dim; ++i) sums[i & 3] = vfma(step(i), vset(q[i]), sums[i & 3]);
  return vadd(vadd(sums[0], sums[1]), vadd(sums[2], sums[3]));
}

// What one task works on, and its walk over tokens.
struct Delta {
  const DeltaArgs& a;
  const DeltaTask& task;
  const Sequence& s;
  float *keys, *queries;  // scratch [DELTA_TOKENS][padded]
  int padded;

  struct Token {
    const float *k, *v;
    float decay, beta;
    int32_t row;  // of the step; -1: replayed
  };

  Token of_row(int32_t row) const {
    const float* x = a.x + static_cast<size_t>(row) * a.channels;
    const size_t at = static_cast<size_t>(row) * a.heads + task.head;
    return {x + (a.key_heads + key_head()) * a.key_dim, x + 2 * a.key_heads * a.key_dim + task.head * a.value_dim, a.decay[at],
            a.beta[at], row};
  }
  Token of_tail(int32_t number) const {
    const float* x = a.state.tail(s, true, number);
    const float *v = x + a.key_heads * a.key_dim, *gates = v + a.heads * a.value_dim;
    return {x + key_head() * a.key_dim, v + task.head * a.value_dim, gates[task.head], gates[a.heads + task.head], -1};
  }
  Token at(int32_t position) const { return position < s.replay ? of_tail(position) : of_row(s.row + position - s.replay); }
  int32_t key_head() const { return task.head / (a.heads / a.key_heads); }

  void prepare(const Token& token, int32_t place) const {
    unit(token.k, a.key_dim, 1.0f, keys + place * padded);
    if (token.row < 0) return;
    const float* q = a.x + static_cast<size_t>(token.row) * a.channels + key_head() * a.key_dim;
    unit(q, a.key_dim, 1.0f / __builtin_sqrtf(static_cast<float>(a.key_dim)), queries + place * padded);
  }

  // state: the first tile of the task.
  void one(const Token& token, int32_t place, float* tile, int32_t number, bool answers) const {
    const int n = a.value_dim - number * STATE_COLUMNS;
    const float* q = answers ? queries + place * padded : nullptr;
    const vf out = advance(tile, a.key_dim, keys + place * padded, q, some(token.v + number * STATE_COLUMNS, n), token.decay, token.beta);
    if (!answers) return;
    const size_t to = (static_cast<size_t>(token.row) * a.heads + task.head) * a.value_dim + number * STATE_COLUMNS;
    put(a.out + to, out, n);
  }

  // Tokens [begin, end) of the request, at most DELTA_TOKENS; tile by tile.
  void firm(float* state, int32_t begin, int32_t end) const {
    Token tokens[DELTA_TOKENS];
    for (int32_t p = begin; p < end; ++p) {
      tokens[p - begin] = at(p);
      prepare(tokens[p - begin], p - begin);
    }
    for (int32_t t = task.begin; t < task.end; ++t, state += a.tile_floats()) {
      for (int32_t i = 0; i < end - begin; ++i) one(tokens[i], i, state, t, tokens[i].row >= 0);
    }
  }

  // One draft after its ancestors; `state` is a copy. answers: of the last one alone.
  void along(float* state, int32_t row, bool answers) const {
    const Token token = of_row(row);
    prepare(token, 0);
    for (int32_t t = task.begin; t < task.end; ++t, state += a.tile_floats()) one(token, 0, state, t, answers);
  }
};

size_t task_floats(const DeltaArgs& a, const DeltaTask& task) { return (task.end - task.begin) * a.tile_floats(); }

// From the state after the last firm token to the one before `row`: its ancestors among the drafts, eldest first.
void replay_path(const Delta& d, float* copy, int32_t row) {
  const int32_t first = d.s.row + d.s.firm, parent = d.a.parent[row];
  if (parent < first) return;
  replay_path(d, copy, parent);
  d.along(copy, parent, false);
}

void draft_rows(const Delta& d, const float* state, float* copy) {
  const Sequence& s = d.s;
  const size_t bytes = task_floats(d.a, d.task) * sizeof(float);
  int32_t reached = s.row + s.firm - 1;  // the copy holds the state after this row
  std::memcpy(copy, state, bytes);
  for (int32_t row = s.row + s.firm; row < s.row + s.firm + s.drafts; ++row) {
    const int32_t parent = d.a.parent[row];
    if (parent >= 0 && parent != reached) {
      std::memcpy(copy, state, bytes);
      replay_path(d, copy, row);
    }
    d.along(copy, row, true);
    reached = row;
  }
}

// The task's share of what the drafts would add: each value is written by one task.
void fill_tail(const Delta& d) {
  const DeltaArgs& a = d.a;
  const int32_t first = d.task.begin * STATE_COLUMNS, group = a.heads / a.key_heads;
  const int32_t last = d.task.end * STATE_COLUMNS < a.value_dim ? d.task.end * STATE_COLUMNS : a.value_dim;
  for (int32_t i = 0; i < d.s.drafts; ++i) {
    const Delta::Token token = d.of_row(d.s.row + d.s.firm + i);
    float* to = a.state.tail(d.s, false, i);
    float *v = to + a.key_heads * a.key_dim, *gates = v + a.heads * a.value_dim;
    if (d.task.begin == 0 && d.task.head % group == 0) {
      std::memcpy(to + d.key_head() * a.key_dim, token.k, a.key_dim * sizeof(float));
    }
    std::memcpy(v + d.task.head * a.value_dim + first, token.v + first, (last - first) * sizeof(float));
    if (d.task.begin == 0) gates[d.task.head] = token.decay, gates[a.heads + d.task.head] = token.beta;
  }
}

void delta_rule(const DeltaArgs& a, const DeltaTask& task, float* scratch) {
  const Sequence& s = *task.sequence;
  const int padded = (a.key_dim + LANES - 1) / LANES * LANES;
  const Delta d{a, task, s, scratch, scratch + DELTA_TOKENS * padded, padded};
  const size_t at = (static_cast<size_t>(task.head) * a.tiles() + task.begin) * a.tile_floats();
  float* state = a.state.slot(s.slot) + at;
  const int32_t total = s.replay + s.firm;
  int32_t taken = 0;
  for (int32_t begin = 0; begin < total;) {
    const int32_t until = taken < s.taken ? s.snapshots[3 * taken + 1] : total;
    const int32_t end = until - begin < DELTA_TOKENS ? until : begin + DELTA_TOKENS;
    d.firm(state, begin, end);
    begin = end;
    if (taken < s.taken && end == until) {
      std::memcpy(a.state.snapshot(s.snapshots[3 * taken + 2]) + at, state, task_floats(a, task) * sizeof(float));
      ++taken;
    }
  }
  if (s.drafts == 0) return;
  draft_rows(d, state, scratch + 2 * DELTA_TOKENS * padded);
  fill_tail(d);
}

}  // namespace

const RecurrenceKernels RECURRENCE = {conv, delta_gates, delta_rule};

}  // namespace octavo::OCTAVO_ISA_NAME
