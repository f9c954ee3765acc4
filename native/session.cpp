// Opening a session and preparing its steps: weights, caches, binding, placing, checking. The walk is in execute.cpp.
#include "session.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace octavo {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

size_t align(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

int32_t find_or_add(std::vector<std::string>& names, const std::string& name) {
  const auto at = std::find(names.begin(), names.end(), name);
  if (at != names.end()) return static_cast<int32_t>(at - names.begin());
  names.push_back(name);
  return static_cast<int32_t>(names.size()) - 1;
}

bool reads_latents(OpKind kind) { return kind == OpKind::LATENT_ATTENTION || kind == OpKind::INDEX_TOPK; }

bool is_linear(OpKind kind) {
  return kind == OpKind::LINEAR || kind == OpKind::QKV || kind == OpKind::LINEAR_ADD || kind == OpKind::GATE_UP;
}

bool is_expert_linear(OpKind kind) { return kind == OpKind::EXPERT_LINEAR || kind == OpKind::EXPERT_GATE_UP; }

bool is_recurrent(OpKind kind) {
  return kind == OpKind::CONV_STATE || kind == OpKind::DELTA_GATES || kind == OpKind::DELTA_RULE;
}

}  // namespace

Session::Session(Isa isa, const SessionLimits& limits) : isa_(isa), limits_(limits), weights_(std::max(limits.threads, 1)) {
  if (limits.block_tokens <= 0 || limits.block_tokens % PAGE_TOKENS != 0) fail("block_tokens must be a multiple of 16");
  if (limits.threads < 1 || limits.num_blocks < 1 || limits.max_seqs < 1) fail("limits must be positive");
}

void Session::add_program(const int32_t* words, size_t count) {
  auto program = std::make_unique<LoadedProgram>();
  program->record = decode_program(words, count);
  for (const std::string& group : program->record.groups) program->groups.push_back(find_or_add(groups_, group));
  for (const CacheRecord& cache : program->record.caches) {
    tensors_.emplace(cache.name, Tensor{program->groups.at(cache.group), cache.kv_heads, cache.d, cache.layout, cache.type, 0, 0});
  }
  for (const StateRecord& state : program->record.states) states_.add(state);
  place_caches(program->record);
  place_rows(program->record);
  programs_.push_back(std::move(program));
}

// Keys and values of one layer side by side: see cache.h.
void Session::place_caches(const ProgramRecord& program) {
  for (const OpRecord& op : program.ops) {
    if (op.caches.size() != 2) continue;
    Tensor &k = tensors_.at(program.caches[op.caches[0]].name), &v = tensors_.at(program.caches[op.caches[1]].name);
    if (k.group != v.group || k.kv_heads != v.kv_heads || k.d != v.d) fail(op.name + ": K and V caches differ in shape");
    if (k.stride == 0 && v.stride == 0) {
      k.offset = block_bytes_, v.offset = block_bytes_ + page_bytes(k.type, k.d);
      k.stride = v.stride = page_bytes(k.type, k.d) + page_bytes(v.type, v.d);
      block_bytes_ += static_cast<size_t>(limits_.block_tokens / PAGE_TOKENS) * k.kv_heads * k.stride;
    }
    if (v.offset != k.offset + page_bytes(k.type, k.d)) fail(op.name + ": its caches belong to other layers");
  }
}

void Session::finish() {
  cache_ = Mapping(block_bytes_ * limits_.num_blocks);
  const size_t entries = static_cast<size_t>(limits_.max_seqs) * limits_.max_blocks;
  tables_.assign(groups_.size(), std::vector<int32_t>(entries, 0));
  int32_t tail = 0;
  for (const auto& program : programs_) {
    for (const int32_t drafts : program->record.tails) tail = std::max(tail, drafts);
  }
  states_.open(limits_.max_seqs, limits_.num_snapshots, tail);
  int max_n = K_ALIGN;
  weights_.packed();
  for (const auto& [name, held] : weights_.all()) {
    if (!held.vector) max_n = std::max(max_n, held.matrix.n);
  }
  linear_scratch_ = align(linear_scratch_bytes(max_n, std::max(limits_.max_tokens, limits_.max_rows)), 128);
  size_t attention_scratch = 0, apart_scratch = 0, segment = 0;
  for (const auto& program : programs_) {
    LoadedProgram& p = *program;
    place(p, limits_.max_tokens, limits_.max_rows, limits_.max_seqs);
    const size_t arena = p.region_at.back();
    p.arena = Mapping(arena);
    place(p, 0, 0, 0);
    p.nanoseconds.assign(p.record.ops.size(), 0);
    for (const BufferRecord& b : p.record.buffers) {
      if (b.kind == BufferKind::EXPORT) exports_.emplace(b.name, Export{&p, &b, {}});
    }
    bind_ops(p);
    bind_claims(p);
    apart_scratch = std::max(apart_scratch, bind_apart(p));
    for (const BoundOp& op : p.ops) {
      if (reads_latents(op.record->kind)) {
        attention_scratch = std::max(attention_scratch, latent_needs(p.record, op, &segment));
      }
      if (op.record->kind != OpKind::ATTENTION) continue;
      const int group = op.record->ints.at(0) / op.record->ints.at(1);
      tiles_[group] = {};
      attention_scratch = std::max(attention_scratch, attention_scratch_bytes(op.cache, group));
      segment = std::max(segment, segment_floats(op.cache.d, group));
    }
  }
  scratch_bytes_ = align(3 * linear_scratch_ + std::max({attention_scratch, apart_scratch, expert_scratch_, delta_scratch_}), 4096) + 256;
  scratch_ = Mapping(scratch_bytes_ * limits_.threads);
  max_segments_ = limits_.max_blocks * limits_.block_tokens / SEGMENT_TOKENS + 1;
  arrived_.assign(FEW_TASKS * limits_.threads, 0);
  if (limits_.threads > 1) partial_ = Mapping(arrived_.size() * max_segments_ * segment * sizeof(float));
}

const HeldWeight& Session::weight(const ProgramRecord& program, int32_t id) const {
  const HeldWeight* held = weights_.find(program.weights.at(id));
  if (!held) fail("weight " + program.weights[id] + " was not given");
  return *held;
}

void Session::bind_ops(LoadedProgram& p) {
  for (const OpRecord& record : p.record.ops) {
    BoundOp op;
    op.record = &record;
    if (record.kind == OpKind::FEED) bind_feed(p, op);
    if (is_linear(record.kind)) bind_linears(p.record, op);
    if (record.kind == OpKind::LINEAR) bind_tops(p, op);
    if (is_expert_linear(record.kind)) bind_experts(p.record, op);
    if (is_recurrent(record.kind)) bind_recurrence(p.record, op);
    if (record.kind == OpKind::LINEAR_F32 || record.kind == OpKind::ROUTE) bind_plain(p.record, op);
    if (record.kind == OpKind::EMBED || record.kind == OpKind::NORM) bind_table(p.record, op);
    if (record.kind == OpKind::KV_WRITE || record.kind == OpKind::ATTENTION) bind_cache(p.record, op);
    if (record.kind == OpKind::ATTENTION && !record.weights.empty()) {
      const HeldWeight& sinks = weight(p.record, record.weights[0]);
      if (!sinks.vector || sinks.length != record.ints.at(0)) fail(record.name + ": not one sink a head");
      op.vector = sinks.vector;
    }
    if (record.kind == OpKind::HEAD_LINEAR) bind_heads(p.record, op);
    if (reads_latents(record.kind) || record.kind == OpKind::LATENT_WRITE) bind_latent(p.record, op);
    p.ops.push_back(std::move(op));
  }
}

void Session::bind_table(const ProgramRecord& program, BoundOp& op) {
  const OpRecord& r = *op.record;
  const int32_t width = program.buffers[r.outs.at(0)].width;
  const auto vector = [&](size_t position, int32_t groups) -> const float* {
    if (position >= r.weights.size()) return nullptr;
    const HeldWeight& held = weight(program, r.weights[position]);
    if (!held.vector || held.length * groups != width) fail(r.name + ": a vector has another width");
    return held.vector;
  };
  if (r.kind == OpKind::EMBED) {
    const HeldWeight& held = weight(program, r.weights.at(0));
    if (held.vector || held.matrix.n != width) fail(r.name + ": the embedding has another width");
    op.table = &held.matrix, op.vector = vector(1, 1);
  } else {
    const int32_t groups = std::max(r.ints.at(1), 1);
    op.vector = vector(0, groups), op.bias = vector(1, groups);
    if (!op.vector && r.ints.at(2) != static_cast<int32_t>(NormRule::L2)) fail(r.name + ": the norm has no weight");
  }
}

// Weights of a linear operator: its matrices, then their biases.
void Session::bind_linears(const ProgramRecord& program, BoundOp& op) {
  const OpRecord& r = *op.record;
  const int matrices = r.kind == OpKind::QKV ? 3 : r.kind == OpKind::GATE_UP ? 2 : 1;
  const bool biased = static_cast<int>(r.weights.size()) == 2 * matrices;
  if (!biased && static_cast<int>(r.weights.size()) != matrices) fail(r.name + ": wrong number of weights");
  const PackedLinear* w[3] = {nullptr, nullptr, nullptr};
  const float* bias[3] = {nullptr, nullptr, nullptr};
  const int32_t n = program.buffers[r.ins.at(0)].width;
  const ActKind input = act_kind(program.buffers[r.ins[0]].dtype);
  if (!is_quantized(program.buffers[r.ins[0]].dtype)) fail(r.name + ": a linear eats quantized values only");
  for (int i = 0; i < matrices; ++i) {
    const HeldWeight& held = weight(program, r.weights[i]);
    if (held.vector || held.matrix.n != n) fail(r.name + ": weight " + program.weights[r.weights[i]] + " does not fit");
    w[i] = &held.matrix;
    const bool grouped = is_whole(held.matrix.kind);
    if (input != ActKind::BF16 && !grouped) fail(r.name + ": integer activations need i8 or u4 weights");
    if (!biased) continue;
    const HeldWeight& vector = weight(program, r.weights[matrices + i]);
    if (!vector.vector || vector.length != held.matrix.m) fail(r.name + ": a bias does not fit");
    bias[i] = vector.vector;
  }
  op.linear_count = r.kind == OpKind::QKV ? 3 : 1;
  for (int i = 0; i < op.linear_count; ++i) {
    LinearArgs& a = op.linears[i];
    a = {};
    a.w = w[i], a.bias = bias[i];
    if (r.kind == OpKind::GATE_UP) a.w2 = w[1], a.bias2 = bias[1], a.activation = r.ints.at(0);
    if (r.kind == OpKind::GATE_UP) a.alpha = r.floats.at(0), a.limit = r.floats.at(1);
    a.epilogue = r.kind == OpKind::GATE_UP      ? Epilogue::GLU
                 : r.kind == OpKind::LINEAR_ADD ? Epilogue::ADD
                                                : Epilogue::STORE;
    const BufferRecord& out = program.buffers[r.outs.at(i)];
    if (out.width != w[i]->m) fail(r.name + ": its output has another width");
    a.ldx = program.buffers[r.ins[0]].ld, a.ldo = out.ld;
    a.input = input, a.output = act_kind(out.dtype);
    op.panels += w[i]->panels;
    if (a.epilogue == Epilogue::GLU && act_row_scale(a.output)) fail(r.name + ": a panel sees no whole row to scale");
  }
}

// Of what leaves the step: whoever looks for the largest, as a sampler does, then reads a few numbers of it only.
void Session::bind_tops(const LoadedProgram& p, BoundOp& op) {
  const BufferRecord& out = p.record.buffers[op.record->outs.at(0)];
  if (out.kind != BufferKind::EXPORT || out.dtype != DType::F32 || out.ld != out.width) return;
  Export& kept = exports_.at(out.name);
  if (kept.buffer != &out) return;
  const auto rows = static_cast<size_t>(out.rows(limits_.max_tokens, limits_.max_rows, limits_.max_seqs));
  kept.tops.resize(rows * op.linears[0].w->panels);
  op.tops = kept.tops.data();
}

void Session::bind_claims(LoadedProgram& p) const {
  int32_t epoch = 0, used = 0;
  std::vector<std::pair<int32_t, int32_t>> places;
  for (const BoundOp& op : p.ops) {
    if (op.record->barrier) ++epoch, used = 0;
    const OpKind kind = op.record->kind;
    const bool by_panels = is_linear(kind) || is_expert_linear(kind) || kind == OpKind::HEAD_LINEAR;
    const bool claimed = by_panels || kind == OpKind::ATTENTION || reads_latents(kind) || kind == OpKind::DELTA_RULE;
    places.emplace_back(epoch % CLAIM_EPOCHS, used);
    used += claimed;
    p.sets = std::max(p.sets, used);
  }
  for (size_t i = 0; i < p.ops.size(); ++i) p.ops[i].claims = (places[i].first * p.sets + places[i].second) * limits_.threads;
  p.counters = std::make_unique<Counter[]>(static_cast<size_t>(CLAIM_EPOCHS) * p.sets * limits_.threads);
}

// Finds the norms, and what else feeds one linear, that threads may compute apart; the bytes that one thread needs for it. Such a norm has a barrier before
// it and another behind it, which then falls away: so nothing but the linear may read what it writes, and nothing may
// write what it reads until the next one.
size_t Session::bind_apart(LoadedProgram& p) const {
  const auto region = [&p](int32_t id) { return p.record.buffers[id].region; };
  std::vector<int32_t> readers(p.record.buffers.size(), 0);
  for (const BoundOp& op : p.ops) {
    for (const int32_t id : op.record->ins) ++readers[id];
  }
  size_t bytes = 0;
  for (size_t i = 0; i + 1 < p.ops.size(); ++i) {
    const OpRecord &norm = *p.ops[i].record, &linear = *p.ops[i + 1].record;
    if ((norm.kind != OpKind::NORM && norm.kind != OpKind::QUANTIZE) || !is_linear(linear.kind) || !norm.barrier || !linear.barrier) continue;
    const int32_t out = norm.outs[0];
    const BufferRecord& buffer = p.record.buffers[out];
    if (linear.ins[0] != out || readers[out] != 1 || buffer.kind != BufferKind::VALUE || buffer.symbol == Symbol::CONSTANT) continue;
    bool kept = true;
    for (size_t j = i + 1; j < p.ops.size() && (j == i + 1 || !p.ops[j].record->barrier); ++j) {
      for (const int32_t id : p.ops[j].record->outs) kept = kept && region(id) != region(norm.ins[0]);
    }
    if (!kept) continue;
    p.ops[i].feeds = &p.ops[i + 1], p.ops[i + 1].eats = &p.ops[i];
    bytes = std::max(bytes, align(APART_ROWS, 16) * buffer.row_bytes());
  }
  return bytes;
}

void Session::bind_cache(const ProgramRecord& program, BoundOp& op) {
  const OpRecord& r = *op.record;
  const CacheRecord& record = program.caches[r.caches.at(0)];
  const Tensor &k = tensors_.at(record.name), &v = tensors_.at(program.caches[r.caches.at(1)].name);
  CacheView& c = op.cache;
  c.base = cache_.data();
  c.block_bytes = block_bytes_, c.offset = k.offset, c.k_type = k.type, c.v_type = v.type;
  c.k_page = page_bytes(k.type, k.d), c.v_page = page_bytes(v.type, v.d);
  c.kv_heads = k.kv_heads, c.d = k.d, c.block_tokens = limits_.block_tokens;
  c.table = tables_[k.group].data(), c.max_blocks = limits_.max_blocks;
}

// Arena offsets for this step's sizes: a region is as large as the largest value that lives in it.
void Session::place(LoadedProgram& p, int32_t T, int32_t R, int32_t N) {
  if (!p.region_at.empty() && p.T == T && p.R == R && p.N == N) return;
  p.T = T, p.R = R, p.N = N;
  std::vector<size_t> bytes(p.record.regions, 0);
  for (const BufferRecord& b : p.record.buffers) {
    if (b.region < 0) continue;
    // Linears may read whole tiles of 16 rows of what they eat.
    const size_t rows = b.rows(T, R, N), padded = b.dtype == DType::BF16 ? align(rows, 16) : rows;
    bytes.at(b.region) = std::max(bytes[b.region], padded * b.row_bytes());
  }
  p.region_at.assign(p.record.regions + 1, 0);
  for (int32_t i = 0; i < p.record.regions; ++i) p.region_at[i + 1] = p.region_at[i] + align(bytes[i], 64) + 128;
}

void Session::check_tables(const Header& h) const {
  for (int32_t at = 0; at < h.U;) {
    if (h.U - at < 4) fail("header: a table update ends early");
    const int32_t slot = h.tables[at], group = h.tables[at + 1], first = h.tables[at + 2], count = h.tables[at + 3];
    if (slot < 0 || slot >= limits_.max_seqs || group < 0 || group >= static_cast<int32_t>(groups_.size()) || first < 0 ||
        count < 0 || count > limits_.max_blocks - first || count > h.U - at - 4) {
      fail("header: a table update is out of range");
    }
    for (int32_t i = 0; i < count; ++i) {
      const int32_t block = h.tables[at + 4 + i];
      if (block < 0 || block >= limits_.num_blocks) fail("header: block " + std::to_string(block) + " does not exist");
    }
    at += 4 + count;
  }
}

void Session::apply_tables(const Header& h) {
  for (int32_t at = 0; at < h.U; at += 4 + h.tables[at + 3]) {
    int32_t* table = tables_[h.tables[at + 1]].data() + static_cast<size_t>(h.tables[at]) * limits_.max_blocks;
    std::memcpy(table + h.tables[at + 2], h.tables + at + 4, h.tables[at + 3] * sizeof(int32_t));
  }
}

void Session::check_header(const LoadedProgram& p, const Header& h) const {
  if (h.T > limits_.max_tokens || h.R > limits_.max_rows || h.N > limits_.max_seqs) fail("header: step is over the limits");
  const int32_t longest = limits_.max_blocks * limits_.block_tokens;
  for (int32_t n = 0; n < h.N; ++n) {
    if (h.slot[n] < 0 || h.slot[n] >= limits_.max_seqs) fail("header: slot out of range");
    if (h.row_begin[n] < 0 || h.row_begin[n] > h.row_begin[n + 1] || h.row_begin[n + 1] > h.T) fail("header: row_begin");
  }
  for (int32_t t = 0; t < h.T; ++t) {
    const int32_t index = h.index[t], request = h.request[t];
    if (request < 0 || request >= h.N || t < h.row_begin[request] || t >= h.row_begin[request + 1]) fail("header: request");
    if (index < 0 || index >= longest || h.position[t] < 0) fail("header: index or position out of range");
    if (h.parent[t] >= t || (h.parent[t] >= 0 && h.request[h.parent[t]] != request)) fail("header: parent");
    for (size_t g = 0; g < p.groups.size(); ++g) {
      if (p.record.tails[g] >= 0) continue;
      const int32_t* table = tables_[p.groups[g]].data() + static_cast<size_t>(h.slot[request]) * limits_.max_blocks;
      if (table[index / limits_.block_tokens] == 0) fail("header: index " + std::to_string(index) + " has no block");
    }
  }
  for (int32_t c = 0; c < h.C; ++c) {
    const int32_t* copy = h.copies + 3 * c;
    if (copy[0] < 0 || copy[0] >= limits_.max_seqs || copy[1] < 0 || copy[1] >= longest || copy[2] < 0 || copy[2] >= longest)
      fail("header: copy out of range");
  }
  for (const BoundOp& op : p.ops) {
    const OpRecord& r = *op.record;
    if (r.kind == OpKind::EMBED) {
      const int32_t entries = weight(p.record, r.weights.at(0)).matrix.m;
      const BufferRecord& ids = p.record.buffers[r.ins.at(0)];
      const int32_t* chosen = h.field(ids.field);
      for (int32_t t = 0; t < h.T; ++t) {
        if (chosen[t] >= 0 && chosen[t] < entries) continue;
        const std::string where = ids.field == FIELD_TOKEN ? " is not in the vocabulary" : " is not in its table";
        fail("header: " + ids.name + " " + std::to_string(chosen[t]) + where);
      }
    } else if (r.kind == OpKind::TAKE) {
      const BufferRecord &x = p.record.buffers[r.ins.at(0)], &rows = p.record.buffers[r.ins.at(1)];
      const int32_t limit = x.rows(h.T, h.R, h.N);
      const int32_t* chosen = h.field(rows.field);
      for (int32_t i = 0, n = rows.rows(h.T, h.R, h.N); i < n; ++i) {
        if (chosen[i] < 0 || chosen[i] >= limit) fail("header: " + rows.name + " " + std::to_string(chosen[i]) + " is out of range");
      }
    }
  }
}

// One token's entries in every cache tensor; all sources are read before any target is written.
void Session::apply_copies(const Header& h) {
  if (h.C == 0) return;
  std::vector<uint8_t> entries;
  for (const auto& item : tensors_) {
    const Tensor& t = item.second;
    if (t.layout == CacheLayout::ROWS) {
      copy_rows(h, t);
      continue;
    }
    const bool keys = t.layout == CacheLayout::KEYS;
    const size_t entry = entry_bytes(t.type, t.d);
    entries.resize(entry * t.kv_heads * h.C);
    for (const bool reading : {true, false}) {
      uint8_t* next = entries.data();
      for (int32_t i = 0; i < h.C; ++i) {
        const int32_t* copy = h.copies + 3 * i;
        const int32_t index = reading ? copy[1] : copy[2];
        const int32_t block = tables_[t.group][static_cast<size_t>(copy[0]) * limits_.max_blocks + index / limits_.block_tokens];
        const size_t pages = static_cast<size_t>(index % limits_.block_tokens / PAGE_TOKENS) * t.kv_heads;
        uint8_t* page = cache_.data() + block * block_bytes_ + t.offset + pages * t.stride;
        for (int32_t head = 0; head < t.kv_heads; ++head, next += entry, page += t.stride) {
          if (block == 0) {  // behind a window: there is nothing to take, and nothing is kept
            if (reading) std::memset(next, 0, entry);
          } else if (reading) {
            read_entry(t.type, keys, t.d, page, index % PAGE_TOKENS, next);
          } else {
            write_entry(t.type, keys, t.d, page, index % PAGE_TOKENS, next);
          }
        }
      }
    }
  }
}

// Tiles for this step, longest context first so that the last to finish is short.
void Session::make_tiles(const Header& h) {
  segments_ = 1;
  for (int32_t t = 0; t < h.T; ++t) segments_ = std::max(segments_, h.index[t] / SEGMENT_TOKENS + 1);
  for (auto& [group, tiles] : tiles_) cut_tiles(h, tile_rows(group), tiles);
  for (auto& [rows, tiles] : latent_tiles_) cut_tiles(h, rows, tiles);
}

void Session::cut_tiles(const Header& h, int32_t most, std::vector<Tile>& tiles) {
  tiles.clear();
  for (int32_t n = 0; n < h.N; ++n) {
    for (int32_t row = h.row_begin[n]; row < h.row_begin[n + 1];) {
      int32_t end = row + 1;
      if (h.parent[row] < 0) {
        while (end < h.row_begin[n + 1] && end - row < most && h.parent[end] < 0) ++end;
      }
      tiles.push_back({row, end - row, h.slot[n]});
      row = end;
    }
  }
  auto cost = [&h](const Tile& t) { return int64_t{h.index[t.row + t.rows - 1] + 1} * t.rows; };
  std::stable_sort(tiles.begin(), tiles.end(), [&](const Tile& a, const Tile& b) { return cost(a) > cost(b); });
}

Session::View Session::Export::view() const {
  const auto* data = reinterpret_cast<const float*>(program->arena.data() + program->region_at[buffer->region]);
  return {data, buffer->rows(program->T, program->R, program->N), buffer->width, tops.empty() ? nullptr : tops.data(),
          (buffer->width + PANEL - 1) / PANEL};
}

const Session::Export& Session::exported(const std::string& name) const {
  const auto found = exports_.find(name);
  if (found == exports_.end()) fail("no program exports " + name);
  return found->second;
}

std::vector<std::pair<std::string, size_t>> Session::weight_bytes() const {
  std::vector<std::pair<std::string, size_t>> out;
  for (const auto& [name, w] : weights_.all()) {
    out.emplace_back(name, w.bytes());
  }
  return out;
}

std::vector<std::pair<std::string, double>> Session::profile(int32_t program) const {
  const LoadedProgram& p = *programs_.at(program);
  std::vector<std::pair<std::string, double>> out;
  for (size_t i = 0; i < p.record.ops.size(); ++i) {
    out.emplace_back(p.record.ops[i].name, static_cast<double>(p.nanoseconds[i]) * 1e-9);
  }
  return out;
}

}  // namespace octavo
