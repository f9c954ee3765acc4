// What a session prepares for attention over latents: rows of the cache, weights by head, scratch.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "session.h"

namespace octavo {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

}  // namespace

void Session::place_rows(const ProgramRecord& program) {
  for (const CacheRecord& cache : program.caches) {
    Tensor& t = tensors_.at(cache.name);
    if (t.layout != CacheLayout::ROWS || t.stride != 0) continue;
    t.stride = latent_entry_bytes(t.type, t.d, t.d / t.kv_heads);
    t.offset = block_bytes_;
    block_bytes_ += t.stride * limits_.block_tokens;
  }
}

void Session::bind_latent(const ProgramRecord& program, BoundOp& op) {
  const OpRecord& r = *op.record;
  const Tensor& t = tensors_.at(program.caches[r.caches.at(0)].name);
  if (t.layout != CacheLayout::ROWS) fail(r.name + ": its cache holds no rows");
  int32_t width = 0;
  const int32_t heads = r.kind == OpKind::LATENT_WRITE ? 1 : r.ints.at(0);
  const size_t parts = r.kind == OpKind::INDEX_TOPK ? 1 : r.kind == OpKind::LATENT_ATTENTION ? 2 : r.ins.size();
  for (size_t i = 0; i < parts; ++i) width += program.buffers[r.ins.at(i)].width;
  if (width != t.d * heads) fail(r.name + ": its inputs do not fit its cache");
  LatentView& c = op.latent;
  c.base = cache_.data();
  c.block_bytes = block_bytes_, c.offset = t.offset, c.entry_bytes = t.stride, c.type = t.type;
  c.d = t.d, c.group = t.d / t.kv_heads, c.block_tokens = limits_.block_tokens;
  c.table = tables_[t.group].data(), c.max_blocks = limits_.max_blocks;
}

// One matrix a head, each of whole panels, over whole blocks of columns.
void Session::bind_heads(const ProgramRecord& program, BoundOp& op) {
  const OpRecord& r = *op.record;
  const int32_t heads = r.ints.at(0);
  const HeldWeight& held = weight(program, r.weights.at(0));
  const BufferRecord &in = program.buffers[r.ins.at(0)], &out = program.buffers[r.outs.at(0)];
  if (held.vector || held.matrix.kind != WeightKind::BF16 || in.dtype != DType::BF16) fail(r.name + ": heads are multiplied in bf16");
  const int32_t m = held.matrix.m / heads, n = held.matrix.n;
  if (m % PANEL || n % K_ALIGN || in.width != heads * n || out.width != heads * m) {
    fail(r.name + ": " + std::to_string(heads) + " matrices of " + std::to_string(m) + " x " + std::to_string(n) +
         " are not whole panels");
  }
  op.table = &held.matrix;
  op.panels = held.matrix.panels;
}

// Scratch that a reader of latents asks for, and floats of a segment's result.
size_t Session::latent_needs(const ProgramRecord& program, const BoundOp& op, size_t* segment) {
  const OpRecord& r = *op.record;
  const int32_t heads = r.ints.at(0), d = op.latent.d;
  if (r.kind == OpKind::INDEX_TOPK) {
    if (heads > INDEX_VECTORS) fail(r.name + ": an index of more than " + std::to_string(INDEX_VECTORS) + " heads");
    const size_t longest = static_cast<size_t>(limits_.max_blocks) * limits_.block_tokens;
    const size_t rows = static_cast<size_t>(limits_.threads) * (1 + FEW_TASKS);
    if (scores_.bytes() == 0) scores_ = Mapping(rows * longest * sizeof(float));
    return latent_scratch_bytes(d, 0, heads);
  }
  const bool chosen = r.ints.at(1) > 0;
  const int32_t rows = chosen ? 1 : latent_tile_rows(heads), values = program.buffers[r.ins.at(0)].width / heads;
  if (values % K_ALIGN || d % 16) fail(r.name + ": values of " + std::to_string(values) + " dims are no whole vectors");
  latent_tiles_[rows] = {};
  *segment = std::max(*segment, latent_segment_floats(values));
  return latent_scratch_bytes(d, values, LATENT_VECTORS);
}

// One token's row; all sources are read before any target is written.
void Session::copy_rows(const Header& h, const Tensor& t) {
  std::vector<uint8_t> rows(t.stride * h.C);
  for (const bool reading : {true, false}) {
    for (int32_t i = 0; i < h.C; ++i) {
      const int32_t* copy = h.copies + 3 * i;
      const int32_t index = reading ? copy[1] : copy[2];
      const int32_t block = tables_[t.group][static_cast<size_t>(copy[0]) * limits_.max_blocks + index / limits_.block_tokens];
      uint8_t* row = cache_.data() + block * block_bytes_ + t.offset + index % limits_.block_tokens * t.stride;
      uint8_t* kept = rows.data() + i * t.stride;
      if (block == 0) {
        if (reading) std::memset(kept, 0, t.stride);
      } else {
        std::memcpy(reading ? kept : row, reading ? row : kept, t.stride);
      }
    }
  }
}

}  // namespace octavo
