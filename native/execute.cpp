// One step: every thread walks the operators; rows are split, panels and attention tasks are claimed.
#include <algorithm>
#include <chrono>

#include "denormals.h"
#include "pool.h"
#include "step.h"

namespace octavo {
namespace {

uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// Of the weights that a thread asks for while it norms.
constexpr size_t FETCH_BYTES = size_t{8} << 10;

// Keys and values of one chunk that a task reads, at most, where it takes several KV heads.
constexpr size_t CHUNK_BYTES = size_t{256} << 10;

}  // namespace

void Step::embed(const BoundOp& op, Range r) const {
  const int32_t out = op.record->outs[0], width = buffer(out).width;
  const int32_t* token = field(op.record->ins[0]);
  auto* to = data<float>(out);
  for (int32_t row = r.begin; row < r.end; ++row) unpack_row(*op.table, token[row], to + static_cast<size_t>(row) * width);
  ElementArgs e{};
  e.a = to, e.out = to, e.width = width, e.scale = op.record->floats[0];
  if (e.scale != 1.0f) kernels.scale(e, r.begin, r.end);
  if (!op.vector) return;
  e.b = op.vector;
  for (int32_t row = r.begin; row < r.end; ++row) {
    e.a = e.out = to + static_cast<size_t>(row) * width;
    kernels.add(e, 0, 1);
  }
}

void Step::pool(const BoundOp& op, Range r) const {
  const OpRecord& record = *op.record;
  PoolArgs p{};
  p.x = data<const float>(record.ins[0]), p.out = data<float>(record.outs[0]), p.row_begin = header.row_begin;
  p.width = buffer(record.outs[0]).width, p.mode = static_cast<PoolArgs::Mode>(record.ints[0]);
  kernels.pool(p, r.begin, r.end);
}

void Step::feed(const BoundOp& op, Range r) const {
  const int32_t out = op.record->outs[0];
  const size_t bytes = buffer(out).row_bytes();
  const std::vector<const uint8_t*>& rows = program.feeds[op.feed].rows;
  auto* to = data<uint8_t>(out);
  for (int32_t row = r.begin; row < r.end; ++row) __builtin_memcpy(to + row * bytes, rows[row], bytes);
}

void Step::take(const BoundOp& op, Range r) const {
  const int32_t out = op.record->outs[0];
  const size_t bytes = buffer(out).row_bytes();
  const auto* from = data<const uint8_t>(op.record->ins[0]);
  auto* to = data<uint8_t>(out);
  const int32_t* chosen = field(op.record->ins[1]);
  for (int32_t row = r.begin; row < r.end; ++row) __builtin_memcpy(to + row * bytes, from + chosen[row] * bytes, bytes);
}

void Step::concat(const BoundOp& op, Range r) const {
  const int32_t a = op.record->ins[0], b = op.record->ins[1], out = op.record->outs[0];
  const size_t left = buffer(a).row_bytes(), right = buffer(b).row_bytes(), both = buffer(out).row_bytes();
  for (int32_t row = r.begin; row < r.end; ++row) {
    auto* to = data<uint8_t>(out) + row * both;
    __builtin_memcpy(to, data<const uint8_t>(a) + row * left, left);
    __builtin_memcpy(to + left, data<const uint8_t>(b) + row * right, right);
  }
}

// Asks for the first lines of this thread's share of a linear's weights: they arrive while it is at something else.
void Step::fetch_share(const BoundOp& op, int thread) const {
  auto panel = static_cast<int32_t>(int64_t{op.panels} * thread / threads);
  const LinearArgs* a = op.linears;
  for (; panel >= a->w->panels; ++a) panel -= a->w->panels;
  const uint8_t* at = a->w->data + panel * a->w->panel_bytes;
  const size_t bytes = std::min(FETCH_BYTES, a->w->panel_bytes);
  for (size_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(at + byte, 0, 2);
}

// Of this thread's rows; of all of them, into its own memory, where threads go apart.
void Step::norm(const BoundOp& op, int thread, uint8_t* own) const {
  const OpRecord& record = *op.record;
  const BufferRecord& out = buffer(record.outs[0]);
  Range r = share(record.outs[0], thread);
  NormArgs a{};
  a.x = data<const float>(record.ins[0]), a.weight = op.vector;
  if (op.feeds && apart(op)) {
    fetch_share(*op.feeds, thread);
    r = {0, rows(record.outs[0])};
    aim(a, record.outs[0], own + 3 * linear_scratch);
  } else {
    aim(a, record.outs[0], data<uint8_t>(record.outs[0]));
  }
  a.groups = record.ints[1] > 0 ? record.ints[1] : 1;
  a.width = out.width / a.groups, a.ldo = out.ld;
  a.weight_plus_one = record.ints[0], a.eps = record.floats[0];
  a.rule = static_cast<NormRule>(record.ints[2]), a.bias = op.bias;
  kernels.norm(a, r.begin, r.end);
}

// Apart, as norms are: what feeds a linear.
void Step::element(const BoundOp& op, int thread, uint8_t* own) const {
  const OpRecord& record = *op.record;
  const BufferRecord& out = buffer(record.outs[0]);
  Range r = share(record.outs[0], thread);
  ElementArgs e{};
  e.a = data<const float>(record.ins[0]);
  if (record.ins.size() > 1) e.b = data<const float>(record.ins[1]);
  if (op.feeds && apart(op)) {
    fetch_share(*op.feeds, thread);
    r = {0, rows(record.outs[0])};
    aim(e, record.outs[0], own + 3 * linear_scratch);
  } else {
    aim(e, record.outs[0], data<uint8_t>(record.outs[0]));
  }
  e.width = out.width, e.ldo = out.ld;
  if (record.kind == OpKind::GLU || record.kind == OpKind::ACT) e.activation = record.ints[0];
  if (record.kind == OpKind::ACT) e.scale = record.floats[0];
  if (record.kind == OpKind::GLU) e.alpha = record.floats[0], e.limit = record.floats[1];
  switch (record.kind) {
    case OpKind::ADD: return kernels.add(e, r.begin, r.end);
    case OpKind::GLU: return kernels.glu(e, r.begin, r.end);
    case OpKind::ACT: return kernels.act(e, r.begin, r.end);
    default: return kernels.quantize(e, r.begin, r.end);
  }
}

void Step::rope(const BoundOp& op, Range r) const {
  const OpRecord& record = *op.record;
  if (record.kind == OpKind::ROPE_ANGLES) {
    RopeAnglesArgs a{};
    a.position = field(record.ins[0]), a.inv_freq = record.floats.data() + 1, a.out = data<float>(record.outs[0]);
    a.half = static_cast<int32_t>(record.floats.size()) - 1, a.factor = record.floats[0];
    kernels.rope_angles(a, r.begin, r.end);
    return;
  }
  RopeArgs a{};
  a.x = data<const float>(record.ins[0]), a.angles = data<const float>(record.ins[1]), a.out = data<float>(record.outs[0]);
  a.heads = record.ints[0], a.d = buffer(record.outs[0]).width / a.heads, a.half = record.ints[1] / 2;
  kernels.rope(a, r.begin, r.end);
}

void Step::kv_write(const BoundOp& op, Range r) const {
  KVWriteArgs a{};
  a.cache = op.cache;
  a.k = data<const float>(op.record->ins[0]), a.v = data<const float>(op.record->ins[1]);
  a.index = header.index, a.request = header.request, a.flags = header.flags, a.slot = header.slot;
  kernels.kv_write(a, r.begin, r.end);
}

// The next piece of the `panels` of `op`. *victim: how far along the threads this one has come; starts at 0.
bool Step::claim(const BoundOp& op, int64_t panels, int pieces, int thread, int* victim, Range* out) const {
  for (; *victim < threads; ++*victim) {
    const int owner = (thread + *victim) % threads;
    const auto begin = static_cast<int32_t>(panels * owner / threads);
    const auto end = static_cast<int32_t>(panels * (owner + 1) / threads);
    const int32_t piece = threads == 1 ? end : std::clamp((end - begin + pieces - 1) / pieces, 1, MOST_PANELS);
    std::atomic<int32_t>& taken = counters(op)[owner].taken;
    if (taken.load(std::memory_order_relaxed) >= end - begin) continue;
    const int32_t at = begin + taken.fetch_add(piece, std::memory_order_relaxed);
    if (at >= end) continue;
    *out = {at, std::min(at + piece, end)};
    return true;
  }
  return false;
}

// Thread 0, where `epoch` begins: nobody uses the counters of the epoch after next, which were those of two before. One
// of two neighbours at least begins with a barrier, so that everyone sees them renewed.
void Step::renew_claims(int epoch) const {
  Counter* next = program.counters.get() + (epoch + 2) % CLAIM_EPOCHS * program.sets * threads;
  for (int i = 0; i < program.sets * threads; ++i) next[i].taken.store(0, std::memory_order_relaxed);
}

// The largest of each panel that was just computed, while it is at hand.
void Step::keep_tops(const LinearArgs& a, int32_t begin, int32_t end, float* tops) const {
  KeepDenormals keep;
  const int32_t first = begin * PANEL, columns = std::min(end * PANEL, a.w->m) - first;
  for (int32_t row = 0; row < a.rows; ++row)
    sampling.tops(a.out + static_cast<size_t>(row) * a.ldo + first, columns, PANEL,
                  tops + static_cast<size_t>(row) * a.w->panels + begin);
}

void Step::linears(const BoundOp& op, int thread, uint8_t* own) const {
  const OpRecord& record = *op.record;
  LinearArgs a[3];
  bool prepared[3] = {false, false, false};
  for (int i = 0; i < op.linear_count; ++i) {
    a[i] = op.linears[i];
    a[i].x = op.eats && apart(*op.eats) ? own + 3 * linear_scratch : data<const uint8_t>(record.ins[0]);
    a[i].rows = rows(record.ins[0]);
    if (a[i].epilogue != Epilogue::GLU || !is_quantized(buffer(record.outs[i]).dtype)) a[i].out = data<float>(record.outs[i]);
    else if (a[i].output == ActKind::BF16) a[i].out16 = data<uint16_t>(record.outs[i]);
    else a[i].records = data<uint8_t>(record.outs[i]);
    if (a[i].epilogue == Epilogue::ADD) a[i].addend = data<const float>(record.ins[1]);
  }
  if (a[0].rows == 0) return;
  Range piece{};
  const int pieces = pieces_for(a[0].rows);
  for (int victim = 0; claim(op, op.panels, pieces, thread, &victim, &piece);) {
    for (int32_t i = 0, first = 0; i < op.linear_count; first += a[i].w->panels, ++i) {
      const int32_t begin = std::max(piece.begin - first, 0), end = std::min(piece.end - first, a[i].w->panels);
      if (begin >= end) continue;
      uint8_t* scratch = own + i * linear_scratch;
      if (!prepared[i]) linear.prepare(a[i], scratch), prepared[i] = true;
      linear.run(a[i], begin, end, scratch);
      if (op.tops) keep_tops(a[i], begin, end, op.tops);
    }
  }
}

namespace {

// KV heads that one task takes at most: as many as the working memory holds, for the tile with the most rows, and as
// leave the keys and values of two chunks in the second cache.
int32_t most_heads(const CacheView& cache, int32_t group, const std::vector<Tile>& tiles) {
  int32_t rows = 1;
  for (const Tile& tile : tiles) rows = std::max(rows, tile.rows);
  const auto fit = static_cast<int32_t>(CHUNK_BYTES / (CHUNK_PAGES * cache.pair_bytes()));
  return std::clamp(std::min(tile_rows(group) / rows, fit), 1, cache.kv_heads);
}

}  // namespace

void Step::attention(const BoundOp& op, uint8_t* own) const {
  const OpRecord& record = *op.record;
  const BufferRecord& out = buffer(record.outs[0]);
  const int32_t heads = record.ints[0], kv_heads = record.ints[1];
  const std::vector<Tile>& list = tiles.at(heads / kv_heads);
  AttentionArgs a{};
  a.cache = op.cache;
  a.q = data<const float>(record.ins[0]);
  aim(a, record.outs[0], data<uint8_t>(record.outs[0]));
  a.ldo = out.ld, a.heads = heads, a.window = record.ints[2], a.causal = record.ints[3], a.scale = record.floats[0];
  a.sinks = op.vector;
  a.cap = record.floats[1], a.request = header.request, a.row_begin = header.row_begin;
  a.index = header.index, a.parent = header.parent, a.tiles = list.data();
  // Too few tiles for the threads: their segments are shared out too. The merge is the same either way.
  const int32_t most = most_heads(op.cache, heads / kv_heads, list), whole = static_cast<int32_t>(list.size()) * kv_heads;
  a.task_heads = whole * segments < FEW_TASKS * threads * most ? 1 : most;
  const int32_t of_tile = (kv_heads + a.task_heads - 1) / a.task_heads, base = static_cast<int32_t>(list.size()) * of_tile;
  const bool few = threads > 1 && base > 0 && base < FEW_TASKS * threads;
  const int32_t parts = few ? std::min(segments, (2 * FEW_TASKS * threads + base - 1) / base) : 1;
  a.partial = partial, a.arrived = arrived;
  a.segment_floats = segment_floats(op.cache.d, heads / kv_heads), a.task_floats = a.segment_floats * max_segments;
  const int32_t tasks = base * parts;
  std::atomic<int32_t>& next = counters(op)->taken;
  auto claim_task = [&]() -> Task {
    const int32_t number = next.fetch_add(1, std::memory_order_relaxed), task = number / parts;
    if (number >= tasks) return {-1, 0, 0, 0, 1};
    const int32_t kv_head = task % of_tile * a.task_heads;
    return {task / of_tile, kv_head, std::min(a.task_heads, kv_heads - kv_head), number % parts, parts};
  };
  // One is claimed ahead, so that its first keys are on their way while the one before is computed.
  for (Task task = claim_task(); task.tile >= 0;) {
    const Task following = claim_task();
    kernels.attention(a, task, following, own + 3 * linear_scratch);
    task = following;
  }
}

void Step::run(const BoundOp& op, int thread, uint8_t* own) const {
  const OpRecord& record = *op.record;
  const bool writes_cache = record.kind == OpKind::KV_WRITE || record.kind == OpKind::LATENT_WRITE;
  const Range r = share(writes_cache ? record.ins[0] : record.outs[0], thread);
  switch (record.kind) {
    case OpKind::EMBED: return embed(op, r);
    case OpKind::FEED: return feed(op, r);
    case OpKind::TAKE: return take(op, r);
    case OpKind::CONCAT: return concat(op, r);
    case OpKind::NORM: return norm(op, thread, own);
    case OpKind::ADD:
    case OpKind::GLU:
    case OpKind::ACT:
    case OpKind::QUANTIZE: return element(op, thread, own);
    case OpKind::POOL: return pool(op, r);
    case OpKind::ROPE_ANGLES:
    case OpKind::ROPE: return rope(op, r);
    case OpKind::KV_WRITE: return kv_write(op, r);
    case OpKind::LINEAR:
    case OpKind::QKV:
    case OpKind::LINEAR_ADD:
    case OpKind::GATE_UP: return linears(op, thread, own);
    case OpKind::ATTENTION: return attention(op, own);
    case OpKind::LINEAR_F32: return dot(op, thread);
    case OpKind::ROUTE: return route(op, r);
    case OpKind::DISPATCH: return dispatch(op, thread);
    case OpKind::EXPERT_LINEAR:
    case OpKind::EXPERT_GATE_UP: return expert_linears(op, thread, own);
    case OpKind::COMBINE: return combine(op, r);
    case OpKind::GATE: return gate(op, r);
    case OpKind::HEAD_LINEAR: return head_linear(op, thread, own);
    case OpKind::LATENT_WRITE: return latent_write(op, r);
    case OpKind::LATENT_ATTENTION: return latent_attention(op, own);
    case OpKind::INDEX_TOPK: return index_topk(op, thread, own);
    case OpKind::CONV_STATE: return conv_state(op, thread);
    case OpKind::DELTA_GATES: return delta_gates(op, r);
    case OpKind::DELTA_RULE: return delta_rule(op, own);
  }
}

void Step::walk(int thread) const {
  uint8_t* own = scratch + static_cast<size_t>(thread) * scratch_bytes;
  const bool timed = profiling && thread == 0;
  uint64_t since = timed ? now_ns() : 0;
  int epoch = 0;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const BoundOp& op = program.ops[i];
    if (op.record->barrier) {
      if (!op.eats || !apart(*op.eats)) Pool::instance().wait();
      ++epoch;
      if (thread == 0) renew_claims(epoch);
      if (timed && i > 0) {
        const uint64_t t = now_ns();
        program.nanoseconds[i - 1] += t - since;
        since = t;
      }
    }
    run(op, thread, own);
    if (timed) {
      const uint64_t t = now_ns();
      program.nanoseconds[i] += t - since;
      since = t;
    }
  }
  if (profiling) {  // the last operator's time, too, holds the wait for its slowest thread
    Pool::instance().wait();
    if (timed) program.nanoseconds.back() += now_ns() - since;
  }
}

void Session::run(int32_t number, const int32_t* words, size_t count) {
  LoadedProgram& p = *programs_.at(number);
  Header h;
  if (!parse_header(words, count, h)) throw std::runtime_error("header: its version or its length is wrong");
  check_tables(h);
  apply_tables(h);
  check_header(p, h);
  if (!p.record.states.empty()) states_.check(h);
  find_rows(p, h);
  apply_copies(h);
  if (!p.record.states.empty()) states_.prepare(h);
  place(p, h.T, h.R, h.N);
  make_tiles(h);
  for (int i = 0; i < CLAIM_EPOCHS * p.sets * limits_.threads; ++i) p.counters[i].taken.store(0, std::memory_order_relaxed);
  const Step step{.isa = isa_,
                  .program = p,
                  .header = h,
                  .tiles = tiles_,
                  .latent_tiles = latent_tiles_,
                  .threads = limits_.threads,
                  .scratch = scratch_.data(),
                  .scratch_bytes = scratch_bytes_,
                  .linear_scratch = linear_scratch_,
                  .partial = reinterpret_cast<float*>(partial_.data()),
                  .scores = reinterpret_cast<float*>(scores_.data()),
                  .longest = limits_.max_blocks * limits_.block_tokens,
                  .arrived = arrived_.data(),
                  .sequences = states_.sequences(),
                  .segments = segments_,
                  .max_segments = max_segments_,
                  .profiling = profiling_,
                  .kernels = op_kernels(isa_),
                  .linear = linear_kernels(isa_),
                  .sampling = sampling_kernels(static_cast<int>(isa_))};
  Pool::instance().run(
      limits_.threads, [](void* context, int thread) { static_cast<const Step*>(context)->walk(thread); },
      const_cast<Step*>(&step));
  ++steps_;
  for (const BoundOp& op : p.ops) barriers_ += op.record->barrier && !(op.eats && step.apart(*op.eats));
}

}  // namespace octavo
