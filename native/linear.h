// Linear layers: packed weights and the kernels over them. y[t, m] = sum_k W[m, k] x[t, k] (+ bias) (+ addend).
//
// A row's result depends on its input row, the weights and constants only: never on the number of rows, on the panel
// partition or on the thread. Activations (activation.h): bf16, ld >= n rounded up to K_ALIGN, columns [n, ld) zero;
// or, for i8 and u4 weights, records of integers.
// bf16: a float order belongs to an instruction-set class: portable, AVX2 and AMX share one, AVX-512 has its own.
// Records: sums are exact integers inside a block, then float32 in one order, so every class gives the same bits.
// Threads that run kernels hold FlushDenormals (denormals.h).
#pragma once
#include <cstddef>
#include <cstdint>

#include "activation.h"

namespace octavo {

constexpr int PANEL = 32;    // output channels of one panel: the unit that threads claim
constexpr int K_ALIGN = 32;  // columns are padded to this with zeros

// NL4, FP4: nibbles that stand for the whole numbers of a table (codes.h). FP8: e4m3. U5, U6: bytes of 5 or 6 bits.
enum class WeightKind : int32_t { F32 = 0, BF16 = 1, I8 = 2, U4 = 3, NL4 = 4, FP4 = 5, FP8 = 6, U5 = 7, U6 = 8 };
// AMX_MODEL: the AMX class with its tile instructions in software, for tests on machines without them.
enum class Isa : int32_t { PORTABLE = 0, AVX2 = 1, AVX512 = 2, AMX = 3, AMX_MODEL = 4 };

constexpr bool is_grouped(WeightKind kind) { return kind != WeightKind::F32 && kind != WeightKind::BF16; }
// Whole numbers, which integer activations may be multiplied with.
constexpr bool is_whole(WeightKind kind) { return is_grouped(kind) && kind != WeightKind::FP8; }
constexpr bool is_unsigned(WeightKind kind) {
  return kind == WeightKind::U4 || kind == WeightKind::U5 || kind == WeightKind::U6;
}
constexpr bool has_table(WeightKind kind) { return kind == WeightKind::NL4 || kind == WeightKind::FP4; }
// Held in panels as nibbles, with a plane of so many bits for each above them.
constexpr bool has_nibbles(WeightKind kind) { return is_unsigned(kind) || has_table(kind); }
constexpr int plane_bits(WeightKind kind) { return kind == WeightKind::U5 ? 1 : kind == WeightKind::U6 ? 2 : 0; }

// How the scale of a group is stored. U8, I8: two-level, multipliers of one f16 per 256 columns. E8M0: 2^(s - 128).
enum class ScaleCode : int32_t { F16 = 0, U8 = 1, I8 = 2, F32 = 3, E8M0 = 4 };
// What a group adds. VALUE: a number in the code of the scale (f16, or u8 when two-level). ZERO: int16, subtracted from
// the stored integers before they are scaled; in panels it stands negated, as f16.
enum class BiasCode : int32_t { NONE = 0, VALUE = 1, ZERO = 2 };

constexpr bool is_two_level(ScaleCode code) { return code == ScaleCode::U8 || code == ScaleCode::I8; }
// Bytes of one scale.
constexpr int scale_bytes(ScaleCode code) { return code == ScaleCode::F16 ? 2 : code == ScaleCode::F32 ? 4 : 1; }

// A weight as it comes from disk (src/octavo/weights/kinds.py, Tensor). Pointers are borrowed for the call.
struct LogicalTensor {
  WeightKind kind;
  int32_t m, n;               // [m, n]; a vector has m = 1
  int32_t group, offset;      // i8, u4 only
  const void* data;
  const void* scale;
  const void* bias;           // null without one
  const uint16_t* super_scale;  // two-level alone
  const uint16_t* super_bias;   // two-level with a bias alone
  ScaleCode scale_code;
  BiasCode bias_code;
};

// A weight matrix packed into panels. Owned by the session.
struct PackedLinear {
  WeightKind kind;
  int32_t m, n, group;
  int32_t panels;             // ceil(m / PANEL)
  size_t panel_bytes;         // scales included: one sequential stream a panel
  uint8_t* data;              // 64-byte aligned, panels * panel_bytes
  int32_t has_bias, offset;
  ScaleCode scale_code;
  BiasCode bias_code;
};

// CAP: scale tanh(x / scale). CLAMPED, of a gate g <= limit and an up u in [-limit, limit]: (u + 1) g sigmoid(alpha g).
enum Activation : int32_t { SILU = 0, GELU_TANH = 1, GELU = 2, CAP = 3, CLAMPED = 4 };

// What happens to the panel's f32 results. Chosen once per op.
enum class Epilogue : int32_t {
  STORE = 0,     // out[t, m] = y
  ADD = 1,       // out[t, m] = addend[t, m] + y        (out may be addend)
  GLU = 2,       // two matrices g, u: out = act(g) * u; out16 or records = that, quantized
};

struct LinearArgs {
  const PackedLinear* w;      // gate when GLU
  const PackedLinear* w2;     // up when GLU, else null
  const float* bias;          // [m] or null
  const float* bias2;
  ActKind input;              // what x holds
  const void* x;              // [rows, ldx]; bf16: 16-row multiples may be read, rows beyond `rows` are ignored
  int32_t rows, ldx;
  Epilogue epilogue;
  int32_t activation;         // GLU: SILU, GELU_TANH or CLAMPED
  float alpha, limit;         // CLAMPED
  float* out;                 // STORE, ADD; GLU, instead of out16: [rows, ldo]
  uint16_t* out16;            // GLU: [rows, ldo] bf16; columns [m, ldo) are written as zero by the last panel
  uint8_t* records;           // GLU, instead of out16: [rows, ldo] records; a panel's 32 channels are one record
  ActKind output;             // of records: not I15, whose scale is the row's
  const float* addend;        // ADD: [rows, ldo]
  int32_t ldo;
};

// Scratch bytes that one thread needs for any linear of `max_n` columns and `max_rows` rows.
size_t linear_scratch_bytes(int max_n, int max_rows);

// Throws std::invalid_argument for a shape that no stream can hold. The stream is the same for every class.
size_t packed_bytes(const LogicalTensor& t);               // size of PackedLinear::data
void describe_linear(const LogicalTensor& t, PackedLinear& out);  // all but out.data
void pack_linear(const LogicalTensor& t, PackedLinear& out);      // out.data is set by the caller first
// Rows [PANEL p, PANEL p + PANEL) of the tensor as one panel.
void pack_panel(const LogicalTensor& t, int p, uint8_t* panel);
// Row `row` as f32, by the format's own formula (embedding lookup; tests). Width n.
void unpack_row(const PackedLinear& w, int row, float* out);

// Per-ISA function table entry. A thread calls prepare once per op (e.g. group sums of x into scratch), then run on
// the panel ranges that it claims.
struct LinearKernels {
  void (*prepare)(const LinearArgs& a, uint8_t* scratch);
  void (*run)(const LinearArgs& a, int panel_begin, int panel_end, uint8_t* scratch);
  // Whether the calling thread's tiles are configured: never outside run, which may be on a thread of the caller's.
  bool (*tiles_held)();
};
const LinearKernels& linear_kernels(Isa isa);

// Whether this processor and its system run the class.
// AVX-512 asks for F, BW, VL, DQ, VNNI and BF16; AMX for the tile extensions and the system's permission besides.
// None above OCTAVO_ISA, as the environment held it when first asked: nothing in the process then enters one.
bool isa_supported(Isa isa);
// Lifts that ceiling to `isa`, for a class that was asked for by name.
void allow_isa(Isa isa);
// Whether anything asked for the AMX class: only then is the system asked for the tiles, once.
bool amx_wanted();

// Runs small linears of every kind on a supported class. False when a row depends on its batch, or when the results
// differ from the portable class's: in any bit for AVX2 and AMX, which share its order, beyond rounding for AVX-512.
// A session calls it once and falls back one class when it fails.
bool isa_self_check(Isa isa);

}  // namespace octavo
