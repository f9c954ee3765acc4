// Recurrent state within a step: convolutions are split by channels, the delta rule by heads and tiles of columns.
// See recurrence.h.
#include <algorithm>
#include <stdexcept>

#include "recurrence.h"
#include "step.h"

namespace octavo {

namespace portable {
extern const RecurrenceKernels RECURRENCE;
}
#if defined(__x86_64__)
namespace avx2 {
extern const RecurrenceKernels RECURRENCE;
}
namespace avx512 {
extern const RecurrenceKernels RECURRENCE;
}
namespace amx {
extern const RecurrenceKernels RECURRENCE;
}
#endif

const RecurrenceKernels& recurrence_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::AMX) return amx::RECURRENCE;
  if (isa == Isa::AVX512) return avx512::RECURRENCE;
  if (isa == Isa::AVX2) return avx2::RECURRENCE;
#endif
  return portable::RECURRENCE;
}

namespace {

constexpr int32_t MAX_TAPS = 8;
// Fewer delta-rule tasks than this per thread: heads are cut into parts.
constexpr int32_t FEW_DELTA_TASKS = 4;

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

}  // namespace

// conv_state: its weight is turned to [taps, channels]. delta_gates: A_log and dt_bias stand as they are.
void Session::bind_recurrence(const ProgramRecord& program, BoundOp& op) {
  const OpRecord& r = *op.record;
  const auto vector = [&](int32_t i, int64_t length) {
    const HeldWeight& held = weight(program, r.weights.at(i));
    if (!held.vector || held.length != length) fail(r.name + ": weight " + program.weights[r.weights[i]] + " does not fit");
    return held.vector;
  };
  if (!r.states.empty()) op.state = states_.view(program.states.at(r.states[0]).name);
  const int32_t width = program.buffers[r.outs.at(0)].width;
  if (r.kind == OpKind::CONV_STATE) {
    const int32_t taps = r.ints.at(0);
    if (taps < 2 || taps > MAX_TAPS) fail(r.name + ": a convolution of " + std::to_string(taps) + " taps");
    const float* w = vector(0, int64_t{width} * taps);
    op.turned.resize(static_cast<size_t>(width) * taps);
    for (int32_t c = 0; c < width; ++c) {
      for (int32_t t = 0; t < taps; ++t) op.turned[static_cast<size_t>(t) * width + c] = w[static_cast<size_t>(c) * taps + t];
    }
  } else if (r.kind == OpKind::DELTA_GATES) {
    op.vector = vector(0, width), op.bias = vector(1, width);
  } else {
    const int32_t key_dim = r.ints.at(1), tiles = (r.ints.at(3) + STATE_COLUMNS - 1) / STATE_COLUMNS;
    delta_scratch_ = std::max(delta_scratch_, delta_scratch_floats(key_dim, tiles) * sizeof(float));
  }
}

void Step::conv_state(const BoundOp& op, int thread) const {
  const OpRecord& r = *op.record;
  ConvArgs a{};
  a.state = op.state, a.sequences = sequences.data(), a.count = static_cast<int32_t>(sequences.size());
  a.parent = header.parent, a.x = data<const float>(r.ins[0]), a.out = data<float>(r.outs[0]);
  a.weight = op.turned.data(), a.channels = buffer(r.outs[0]).width, a.taps = r.ints[0];
  const int64_t vectors = (a.channels + STATE_COLUMNS - 1) / STATE_COLUMNS;
  const auto bound = [&](int n) { return std::min(static_cast<int32_t>(vectors * n / threads) * STATE_COLUMNS, a.channels); };
  recurrence_kernels(isa).conv(a, bound(thread), bound(thread + 1));
}

void Step::delta_gates(const BoundOp& op, Range rows) const {
  const OpRecord& r = *op.record;
  DeltaGatesArgs a{};
  a.x = data<const float>(r.ins[0]), a.a_log = op.vector, a.dt_bias = op.bias;
  a.decay = data<float>(r.outs[0]), a.beta = data<float>(r.outs[1]), a.heads = buffer(r.outs[0]).width;
  recurrence_kernels(isa).delta_gates(a, rows.begin, rows.end);
}

void Step::delta_rule(const BoundOp& op, uint8_t* own) const {
  const OpRecord& r = *op.record;
  DeltaArgs a{};
  a.state = op.state, a.parent = header.parent;
  a.x = data<const float>(r.ins[0]), a.decay = data<const float>(r.ins[1]), a.beta = data<const float>(r.ins[2]);
  a.out = data<float>(r.outs[0]), a.channels = buffer(r.ins[0]).width;
  a.key_heads = r.ints[0], a.key_dim = r.ints[1], a.heads = r.ints[2], a.value_dim = r.ints[3];
  const auto whole = static_cast<int32_t>(sequences.size()) * a.heads;
  const int32_t wanted = threads == 1 ? 1 : (FEW_DELTA_TASKS * threads + whole - 1) / std::max(whole, 1);
  const int32_t parts = std::clamp(wanted, 1, a.tiles());
  std::atomic<int32_t>& next = counters(op)->taken;
  auto* scratch = reinterpret_cast<float*>(own + 3 * linear_scratch);
  for (int32_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < whole * parts;) {
    const int32_t part = n % parts, task = n / parts;
    const DeltaTask t{&sequences[task / a.heads], task % a.heads, a.tiles() * part / parts, a.tiles() * (part + 1) / parts};
    recurrence_kernels(isa).delta_rule(a, t, scratch);
  }
}

}  // namespace octavo
