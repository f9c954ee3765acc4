// Decoding of encoded programs. See program.h.
#include "program.h"

#include <cstring>
#include <stdexcept>
#include <utility>

namespace octavo {
namespace {

constexpr int32_t MAGIC = 0x4f435456, ENCODING = 5;

constexpr std::pair<const char*, OpKind> KINDS[] = {
    {"embed", OpKind::EMBED},
    {"take", OpKind::TAKE},
    {"feed", OpKind::FEED},
    {"norm", OpKind::NORM},
    {"fused.norm", OpKind::NORM},
    {"add", OpKind::ADD},
    {"concat", OpKind::CONCAT},
    {"glu", OpKind::GLU},
    {"linear", OpKind::LINEAR},
    {"fused.qkv", OpKind::QKV},
    {"fused.linear_add", OpKind::LINEAR_ADD},
    {"fused.gate_up", OpKind::GATE_UP},
    {"rope_angles", OpKind::ROPE_ANGLES},
    {"rope", OpKind::ROPE},
    {"kv_write", OpKind::KV_WRITE},
    {"attention", OpKind::ATTENTION},
    {"fused.attention", OpKind::ATTENTION},
    {"quantize", OpKind::QUANTIZE},
    {"act", OpKind::ACT},
    {"fused.act", OpKind::ACT},
    {"cap", OpKind::ACT},
    {"pool", OpKind::POOL},
    {"linear_f32", OpKind::LINEAR_F32},
    {"route", OpKind::ROUTE},
    {"dispatch", OpKind::DISPATCH},
    {"expert_linear", OpKind::EXPERT_LINEAR},
    {"fused.expert_gate_up", OpKind::EXPERT_GATE_UP},
    {"combine", OpKind::COMBINE},
    {"gate", OpKind::GATE},
    {"head_linear", OpKind::HEAD_LINEAR},
    {"latent_write", OpKind::LATENT_WRITE},
    {"latent_attention", OpKind::LATENT_ATTENTION},
    {"fused.latent_attention", OpKind::LATENT_ATTENTION},
    {"index_topk", OpKind::INDEX_TOPK},
    {"conv_state", OpKind::CONV_STATE},
    {"delta_gates", OpKind::DELTA_GATES},
    {"delta_rule", OpKind::DELTA_RULE},
};

class Reader {
 public:
  Reader(const int32_t* words, size_t count) : at_(words), end_(words + count) {}

  int32_t word() {
    if (at_ == end_) throw std::runtime_error("encoded program ends early");
    return *at_++;
  }
  int32_t count() {
    const int32_t n = word();
    if (n < 0 || n > end_ - at_) throw std::runtime_error("encoded program has a count that does not fit");
    return n;
  }
  std::string text() {
    const int32_t bytes = word();
    if (bytes < 0 || (bytes + 3) / 4 > end_ - at_) throw std::runtime_error("encoded program ends in a name");
    std::string s(reinterpret_cast<const char*>(at_), bytes);
    at_ += (bytes + 3) / 4;
    return s;
  }
  std::vector<int32_t> list() {
    const int32_t n = count();
    std::vector<int32_t> v(at_, at_ + n);
    at_ += n;
    return v;
  }
  bool done() const { return at_ == end_; }

 private:
  const int32_t *at_, *end_;
};

OpKind kind_of(const std::string& name) {
  for (const auto& [text, kind] : KINDS) {
    if (name == text) return kind;
  }
  throw std::runtime_error("operator " + name + " has no kernel");
}

BufferRecord read_buffer(Reader& in) {
  BufferRecord b;
  b.name = in.text();
  b.kind = static_cast<BufferKind>(in.word());
  b.field = in.word();
  b.dtype = static_cast<DType>(in.word());
  b.symbol = static_cast<Symbol>(in.word() & 3);
  b.a = in.word(), b.b = in.word(), b.width = in.word(), b.ld = in.word(), b.region = in.word();
  return b;
}

void check_ids(const std::vector<int32_t>& ids, size_t limit, const std::string& op) {
  for (int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= limit) throw std::runtime_error("operator " + op + " names what is not there");
  }
}

OpRecord read_op(Reader& in, const ProgramRecord& program) {
  OpRecord op;
  op.kind = kind_of(in.text());
  op.name = in.text();
  op.barrier = in.word() != 0;
  op.ins = in.list(), op.outs = in.list(), op.weights = in.list(), op.caches = in.list(), op.states = in.list();
  op.ints = in.list();
  const std::vector<int32_t> bits = in.list();
  op.floats.resize(bits.size());
  if (!bits.empty()) std::memcpy(op.floats.data(), bits.data(), bits.size() * sizeof(float));
  check_ids(op.ins, program.buffers.size(), op.name);
  check_ids(op.outs, program.buffers.size(), op.name);
  check_ids(op.weights, program.weights.size(), op.name);
  check_ids(op.caches, program.caches.size(), op.name);
  check_ids(op.states, program.states.size(), op.name);
  return op;
}

}  // namespace

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const auto& entry : KINDS) names.emplace_back(entry.first);
  return names;
}

ProgramRecord decode_program(const int32_t* words, size_t count) {
  Reader in(words, count);
  if (in.word() != MAGIC || in.word() != ENCODING) throw std::runtime_error("not an encoded program of this version");
  ProgramRecord p;
  p.name = in.text();
  for (int32_t n = in.count(); n > 0; --n) p.groups.push_back(in.text()), p.tails.push_back(in.word());
  for (int32_t n = in.count(); n > 0; --n) {
    CacheRecord c;
    c.name = in.text();
    c.group = in.word(), c.kv_heads = in.word(), c.d = in.word(), c.layout = static_cast<CacheLayout>(in.word());
    c.type = static_cast<CacheType>(in.word());
    p.caches.push_back(c);
  }
  for (int32_t n = in.count(); n > 0; --n) {
    StateRecord s;
    s.name = in.text();
    s.floats = in.word(), s.tail = in.word();
    p.states.push_back(s);
  }
  for (int32_t n = in.count(); n > 0; --n) p.weights.push_back(in.text());
  p.regions = in.word();
  for (int32_t n = in.count(); n > 0; --n) p.buffers.push_back(read_buffer(in));
  for (int32_t n = in.count(); n > 0; --n) p.ops.push_back(read_op(in, p));
  if (!in.done()) throw std::runtime_error("encoded program has words left over");
  return p;
}

}  // namespace octavo
