// Mixtures of experts within a step: rows are routed and sorted by expert, the experts' panels are claimed by all
// threads. See experts.h.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "experts.h"
#include "step.h"

namespace octavo {

namespace portable {
extern const ExpertKernels EXPERTS;
}
#if defined(__x86_64__)
namespace avx2 {
extern const ExpertKernels EXPERTS;
}
namespace avx512 {
extern const ExpertKernels EXPERTS;
}
namespace amx {
extern const ExpertKernels EXPERTS;
}
#endif

const ExpertKernels& expert_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::AMX) return amx::EXPERTS;
  if (isa == Isa::AVX512) return avx512::EXPERTS;
  if (isa == Isa::AVX2) return avx2::EXPERTS;
#endif
  return portable::EXPERTS;
}

namespace {

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

}  // namespace

// Weights: the stacked matrices, then their biases (all or none), which are vectors of all experts' rows.
void Session::bind_experts(const ProgramRecord& program, BoundOp& op) {
  const OpRecord& r = *op.record;
  const int matrices = r.kind == OpKind::EXPERT_GATE_UP ? 2 : 1;
  const bool biased = static_cast<int>(r.weights.size()) == 2 * matrices;
  if (!biased && static_cast<int>(r.weights.size()) != matrices) fail(r.name + ": wrong number of weights");
  const BufferRecord &x = program.buffers[r.ins.at(0)], &out = program.buffers[r.outs.at(0)];
  if (!is_quantized(x.dtype)) fail(r.name + ": a linear eats quantized values only");
  LinearArgs& a = op.linears[0];
  a = {};
  for (int i = 0; i < matrices; ++i) {
    const HeldWeight& held = weight(program, r.weights[i]);
    const std::string& name = program.weights[r.weights[i]];
    if (held.vector || held.matrix.n != x.width || held.matrix.m != out.width) fail(r.name + ": weight " + name + " does not fit");
    if (i && held.count != op.experts) fail(r.name + ": " + name + " is of another number of experts");
    const bool grouped = is_whole(held.matrix.kind);
    if (act_kind(x.dtype) != ActKind::BF16 && !grouped) fail(r.name + ": integer activations need i8 or u4 weights");
    op.experts = held.count;
    (i ? a.w2 : a.w) = &held.matrix;
    if (!biased) continue;
    const HeldWeight& vector = weight(program, r.weights[matrices + i]);
    if (!vector.vector || vector.length != held.count * held.matrix.m) fail(r.name + ": a bias does not fit");
    (i ? a.bias2 : a.bias) = vector.vector;
  }
  if (op.experts > MAX_EXPERTS || program.buffers[r.ins.at(1)].b != op.experts + 1) fail(r.name + ": another number of experts");
  a.input = act_kind(x.dtype), a.output = act_kind(out.dtype);
  a.ldx = x.ld, a.ldo = out.ld;
  if (matrices == 2) {
    a.epilogue = Epilogue::GLU, a.activation = r.ints.at(0), a.alpha = r.floats.at(0), a.limit = r.floats.at(1);
    if (act_row_scale(a.output)) fail(r.name + ": a panel sees no whole row to scale");
  }
  op.panels = a.w->panels;
  expert_scratch_ = std::max(expert_scratch_, EXPERT_ROWS * x.row_bytes());
}

// Weights of operators over plain float32: a matrix in rows, then perhaps a bias; of route a bias alone.
void Session::bind_plain(const ProgramRecord& program, BoundOp& op) {
  const OpRecord& r = *op.record;
  const int64_t m = r.kind == OpKind::ROUTE ? 1 : program.buffers[r.outs.at(0)].width;
  const int64_t n = program.buffers[r.ins.at(0)].width;
  for (size_t i = 0; i < r.weights.size(); ++i) {
    const HeldWeight& held = weight(program, r.weights[i]);
    const int64_t length = r.kind == OpKind::ROUTE ? n : i == 0 ? m * n : m;
    if (!held.vector || held.length != length) fail(r.name + ": weight " + program.weights[r.weights[i]] + " does not fit");
    (r.kind == OpKind::ROUTE || i ? op.bias : op.vector) = held.vector;
  }
  if (r.kind == OpKind::ROUTE && n > MAX_EXPERTS) fail(r.name + ": " + std::to_string(n) + " experts");
}

void Step::route(const BoundOp& op, Range r) const {
  const OpRecord& record = *op.record;
  const std::vector<int32_t>& n = record.ints;
  RouteArgs a{};
  a.logits = data<const float>(record.ins[0]), a.bias = op.bias;
  a.ids = data<int32_t>(record.outs[0]), a.shares = data<float>(record.outs[1]);
  a.experts = buffer(record.ins[0]).width, a.k = buffer(record.outs[0]).width;
  a.sigmoid = n[0], a.normalize = n[1], a.groups = n[2], a.top_groups = n[3], a.group_pairs = n[4];
  a.scale = record.floats[0];
  expert_kernels(isa).route(a, r.begin, r.end);
}

// Positions by expert and row: one thread counts, sums and places.
void Step::dispatch(const BoundOp& op, int thread) const {
  if (thread != 0) return;
  const OpRecord& record = *op.record;
  const auto* ids = data<const int32_t>(record.ins[0]);
  auto *begin = data<int32_t>(record.outs[0]), *row = data<int32_t>(record.outs[1]), *place = data<int32_t>(record.outs[2]);
  const int32_t experts = buffer(record.outs[0]).b - 1, k = buffer(record.ins[0]).width, count = rows(record.ins[0]) * k;
  int32_t next[MAX_EXPERTS + 1] = {};
  for (int32_t i = 0; i < count; ++i) ++next[ids[i] + 1];
  for (int32_t e = 0; e < experts; ++e) next[e + 1] += next[e];
  std::memcpy(begin, next, (experts + 1) * sizeof(int32_t));
  for (int32_t i = 0; i < count; ++i) {
    const int32_t at = next[ids[i]]++;
    row[at] = i / k, place[i] = at;
  }
}

void Step::combine(const BoundOp& op, Range r) const {
  const OpRecord& record = *op.record;
  CombineArgs a{};
  a.y = data<const float>(record.ins[0]), a.shares = data<const float>(record.ins[1]);
  a.place = data<const int32_t>(record.ins[2]), a.out = data<float>(record.outs[0]);
  a.k = buffer(record.ins[1]).width, a.width = buffer(record.outs[0]).width;
  expert_kernels(isa).combine(a, r.begin, r.end);
}

// Outputs are split where there are enough of them, else rows.
void Step::dot(const BoundOp& op, int thread) const {
  const OpRecord& record = *op.record;
  DotArgs a{};
  a.x = data<const float>(record.ins[0]), a.w = op.vector, a.bias = op.bias, a.out = data<float>(record.outs[0]);
  a.n = buffer(record.ins[0]).width, a.m = buffer(record.outs[0]).width;
  const int32_t count = rows(record.outs[0]);
  if (a.m < 4 * threads) {
    const Range r = share(record.outs[0], thread);
    expert_kernels(isa).dot(a, r.begin, r.end, 0, a.m);
    return;
  }
  const int32_t fours = (a.m + 3) / 4;
  const int32_t begin = fours * thread / threads * 4, end = std::min(fours * (thread + 1) / threads * 4, a.m);
  expert_kernels(isa).dot(a, 0, count, begin, end);
}

void Step::gate(const BoundOp& op, Range r) const {
  const OpRecord& record = *op.record;
  GateArgs a{};
  a.x = data<const float>(record.ins[0]), a.gate = data<const float>(record.ins[1]), a.out = data<float>(record.outs[0]);
  a.width = buffer(record.outs[0]).width, a.gates = buffer(record.ins[1]).width;
  expert_kernels(isa).gate(a, r.begin, r.end);
}

namespace {

// One expert's share of an operator.
LinearArgs of_expert(const LinearArgs& all, PackedLinear* w, int32_t expert) {
  LinearArgs a = all;
  for (int i = 0; i < 2; ++i) {
    const PackedLinear*& from = i ? a.w2 : a.w;
    if (!from) continue;
    w[i] = *from;
    w[i].data += static_cast<size_t>(expert) * from->panels * from->panel_bytes;
    from = &w[i];
    const float*& bias = i ? a.bias2 : a.bias;
    if (bias) bias += static_cast<size_t>(expert) * from->m;
  }
  return a;
}

}  // namespace

// All panels of the experts that have rows, one expert after another, are handed out as one sequence.
void Step::expert_linears(const BoundOp& op, int thread, uint8_t* own) const {
  const OpRecord& record = *op.record;
  const auto* begin = data<const int32_t>(record.ins[1]);
  const int32_t* gathered = record.ins.size() > 2 ? data<const int32_t>(record.ins[2]) : nullptr;
  const LinearArgs& all = op.linears[0];
  const size_t x_row = buffer(record.ins[0]).row_bytes(), out_row = buffer(record.outs[0]).row_bytes();
  const auto* x = data<const uint8_t>(record.ins[0]);
  auto* out = data<uint8_t>(record.outs[0]);
  uint8_t* const rows_here = own + 3 * linear_scratch;
  int32_t active[MAX_EXPERTS], count = 0;
  for (int32_t e = 0; e < op.experts; ++e) {
    if (begin[e + 1] > begin[e]) active[count++] = e;
  }
  if (count == 0) return;
  const int pieces = begin[op.experts] < MANY_ROWS * count ? PIECES_FEW_ROWS : PIECES_MANY_ROWS;
  Range piece{};
  int32_t ready = -1;  // the expert whose rows, all of them, are at hand
  for (int victim = 0; claim(op, int64_t{count} * op.panels, pieces, thread, &victim, &piece);) {
    for (int32_t at = piece.begin; at < piece.end;) {
      const int32_t expert = active[at / op.panels], first = at % op.panels;
      const int32_t last = std::min(op.panels, first + piece.end - at);
      PackedLinear w[2];
      LinearArgs a = of_expert(all, w, expert);
      for (int32_t position = begin[expert]; position < begin[expert + 1]; position += EXPERT_ROWS) {
        a.x = rows_here, a.rows = std::min(begin[expert + 1] - position, EXPERT_ROWS);
        uint8_t* to = out + position * out_row;
        if (a.epilogue != Epilogue::GLU || !is_quantized(buffer(record.outs[0]).dtype)) a.out = reinterpret_cast<float*>(to);
        else if (a.output == ActKind::BF16) a.out16 = reinterpret_cast<uint16_t*>(to);
        else a.records = to;
        if (ready != expert) {
          for (int32_t r = 0; r < a.rows; ++r) {
            const int32_t from = gathered ? gathered[position + r] : position + r;
            std::memcpy(rows_here + r * x_row, x + from * x_row, x_row);
          }
          linear.prepare(a, own);
          ready = begin[expert + 1] - begin[expert] <= EXPERT_ROWS ? expert : -1;
        }
        linear.run(a, first, last, own);
      }
      at += last - first;
    }
  }
}

}  // namespace octavo
