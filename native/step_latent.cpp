// Steps of attention over latents: matrices by head, the rows of the cache, attention, the index.
#include <algorithm>

#include "step.h"

namespace octavo {

// Panels of all heads are handed out as those of one matrix; within a piece every head is a linear of its own.
void Step::head_linear(const BoundOp& op, int thread, uint8_t* own) const {
  const OpRecord& record = *op.record;
  const BufferRecord &in = buffer(record.ins[0]), &out = buffer(record.outs[0]);
  const int32_t heads = record.ints[0], rows_in = rows(record.ins[0]);
  if (rows_in == 0) return;
  PackedLinear head = *op.table;
  head.m /= heads, head.panels /= heads;
  LinearArgs a{};
  a.w = &head, a.input = ActKind::BF16, a.rows = rows_in, a.ldx = in.ld, a.epilogue = Epilogue::STORE, a.ldo = out.ld;
  Range piece{};
  const int pieces = rows_in < MANY_ROWS ? PIECES_FEW_ROWS : PIECES_MANY_ROWS;
  for (int victim = 0; claim(op, op.panels, pieces, thread, &victim, &piece);) {
    while (piece.begin < piece.end) {
      const int32_t number = piece.begin / head.panels, first = number * head.panels;
      const int32_t end = std::min(piece.end, first + head.panels);
      head.data = op.table->data + static_cast<size_t>(first) * head.panel_bytes;
      a.x = data<const uint16_t>(record.ins[0]) + static_cast<size_t>(number) * head.n;
      a.out = data<float>(record.outs[0]) + static_cast<size_t>(number) * head.m;
      linear.prepare(a, own);
      linear.run(a, piece.begin - first, end - first, own);
      piece.begin = end;
    }
  }
}

void Step::latent_write(const BoundOp& op, Range r) const {
  const OpRecord& record = *op.record;
  LatentWriteArgs a{};
  a.cache = op.latent;
  for (size_t i = 0; i < record.ins.size() && i < 2; ++i) {
    a.parts[i] = data<const float>(record.ins[i]), a.widths[i] = buffer(record.ins[i]).width;
  }
  a.index = header.index, a.request = header.request, a.flags = header.flags, a.slot = header.slot;
  latent_kernels(isa).write(a, r.begin, r.end);
}

void Step::latent_attention(const BoundOp& op, uint8_t* own) const {
  const OpRecord& record = *op.record;
  const BufferRecord& out = buffer(record.outs[0]);
  LatentArgs a{};
  a.cache = op.latent;
  a.first = data<const float>(record.ins[0]), a.last = data<const float>(record.ins[1]);
  if (out.dtype == DType::BF16) a.out16 = data<uint16_t>(record.outs[0]);
  else a.out = data<float>(record.outs[0]);
  a.ldo = out.ld, a.heads = record.ints[0], a.values = out.width / a.heads, a.scale = record.floats[0];
  a.top_k = record.ints[1];
  if (a.top_k > 0) a.chosen = data<const int32_t>(record.ins[2]);
  a.index = header.index, a.parent = header.parent;
  const std::vector<Tile>& tiles = latent_tiles.at(a.chosen ? 1 : latent_tile_rows(a.heads));
  a.tiles = tiles.data();
  a.task_heads = latent_task_heads(a.heads), a.tasks_of_tile = (a.heads + a.task_heads - 1) / a.task_heads;
  // Too few tasks for the threads: their segments are shared out too. The merge is the same either way.
  const int32_t base = static_cast<int32_t>(tiles.size()) * a.tasks_of_tile;
  const int32_t most = a.chosen ? (a.top_k + SEGMENT_TOKENS - 1) / SEGMENT_TOKENS : segments;
  const bool few = threads > 1 && base > 0 && base < FEW_TASKS * threads;
  const int32_t parts = few ? std::min({segments, most, (2 * FEW_TASKS * threads + base - 1) / base}) : 1;
  a.partial = partial, a.arrived = arrived;
  a.segment_floats = latent_segment_floats(a.values), a.task_floats = a.segment_floats * max_segments;
  std::atomic<int32_t>& next = counters(op)->taken;
  for (int32_t number; (number = next.fetch_add(1, std::memory_order_relaxed)) < base * parts;) {
    const int32_t task = number / parts, head = task % a.tasks_of_tile * a.task_heads;
    const LatentTask one = {task / a.tasks_of_tile, head, std::min(a.task_heads, a.heads - head), number % parts, parts};
    latent_kernels(isa).attention(a, one, own);
  }
}

// A row is scored and chosen by one thread; where rows are fewer than threads could take, its chunks are shared out and
// whoever is last chooses.
void Step::index_topk(const BoundOp& op, int thread, uint8_t* own) const {
  const OpRecord& record = *op.record;
  IndexArgs a{};
  a.cache = op.latent;
  a.q = data<const float>(record.ins[0]), a.weights = data<const float>(record.ins[1]), a.out = data<int32_t>(record.outs[0]);
  a.heads = record.ints[0], a.top_k = record.ints[1], a.scale = record.floats[0];
  a.index = header.index, a.parent = header.parent, a.request = header.request, a.slot = header.slot;
  const LatentKernels& k = latent_kernels(isa);
  const int32_t count = header.T;
  const bool few = threads > 1 && count > 0 && count < FEW_TASKS * threads;
  const int32_t parts = few ? (2 * FEW_TASKS * threads + count - 1) / count : 1;
  std::atomic<int32_t>& next = counters(op)->taken;
  for (int32_t number; (number = next.fetch_add(1, std::memory_order_relaxed)) < count * parts;) {
    const int32_t row = number / parts, part = number % parts, places = places_of(header.index, header.parent, row);
    float* scores = this->scores + static_cast<size_t>(parts == 1 ? thread : threads + row) * longest;
    if (places > a.top_k) {
      const int32_t chunks = (places + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
      const auto at = [&](int32_t p) { return std::min<int32_t>(int64_t{chunks} * p / parts * CHUNK_TOKENS, places); };
      k.score(a, row, at(part), at(part + 1), scores, own);
    }
    if (parts > 1) {
      if (__atomic_add_fetch(arrived + row, 1, __ATOMIC_ACQ_REL) < parts) continue;
      __atomic_store_n(arrived + row, 0, __ATOMIC_RELAXED);
    }
    k.choose(a, row, places, scores);
  }
}

}  // namespace octavo
