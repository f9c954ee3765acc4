// Packing of weights into panels, their rows as floats again, and the choice of an instruction-set class.
#include "linear.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "denormals.h"
#include "floats.h"
#include "panel.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {
namespace portable {
extern const LinearKernels linear_table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const LinearKernels linear_table;
}
namespace avx512 {
extern const LinearKernels linear_table;
}
namespace amx {
extern const LinearKernels linear_table;
}
namespace amxmodel {
extern const LinearKernels linear_table;
}
#endif

namespace {

float read_half(const uint8_t* at, int i) {
  uint16_t bits;
  std::memcpy(&bits, at + 2 * i, 2);
  return f16_to_f32(bits);
}

PanelGeometry checked_geometry(const LogicalTensor& t) {
  if (t.m < 1 || t.n < 1) throw std::invalid_argument("linear: empty weight");
  if (is_grouped(t.kind)) {
    const int group = t.group;
    if (group < 1 || t.n % group) throw std::invalid_argument("linear: groups of " + std::to_string(group) +
                                                              " do not divide " + std::to_string(t.n) + " columns");
    if (group != 16 && group % 32 && group != t.n)
      throw std::invalid_argument("linear: groups of " + std::to_string(group) + " columns are not supported");
    if (t.kind == WeightKind::U4 && t.n % 2) throw std::invalid_argument("linear: u4 with an odd number of columns");
    if (t.super_scale && (SUPER_GROUP % group || t.n % SUPER_GROUP))
      throw std::invalid_argument("linear: two-level scales need whole blocks of 256 columns");
  }
  return panel_geometry(t.kind, t.n, t.group, t.super_scale != nullptr, t.bias != nullptr);
}

// Byte offset of an i8 within its block.
int i8_offset(int c, int k) {
  const int pair = k / 2, lane = c % HALF;
  return pair / 2 * 128 + c / HALF * 64 + lane / 4 * 16 + pair % 2 * 8 + lane % 4 * 2 + (k & 1);
}

void pack_block_i8(const LogicalTensor& t, int row0, int column0, int columns, uint8_t* out) {
  const int rows = std::min(PANEL, t.m - row0);
  for (int c = 0; c < rows; c++) {
    const uint8_t* from = (const uint8_t*)t.data + (size_t)(row0 + c) * t.n + column0;
    uint8_t* to = out + i8_offset(c, 0);
    for (int k = 0; k + 1 < columns; k += 2) std::memcpy(to + k / 4 * 128 + k / 2 % 2 * 8, from + k, 2);
    if (columns & 1) out[i8_offset(c, columns - 1)] = from[columns - 1];
  }
}

// The low nibbles of four bytes, side by side.
uint32_t squeeze_nibbles(uint32_t bytes) {
  bytes &= 0x0F0F0F0F;
  bytes = (bytes | bytes >> 4) & 0x00FF00FF;
  return (bytes | bytes >> 8) & 0xFFFF;
}

void pack_block_u4(const LogicalTensor& t, const PanelGeometry& g, int row0, int column0, int columns, uint8_t* out) {
  const int rows = std::min(PANEL, t.m - row0), words = g.pairs / 4;
  for (int c = 0; c < rows; c++) {
    const uint8_t* from = (const uint8_t*)t.data + ((size_t)(row0 + c) * t.n + column0) / 2;
    for (int z = 0; z < words; z++) {
      uint32_t bytes = 0;
      const int left = (columns - 8 * z + 1) / 2;
      if (left >= 4) std::memcpy(&bytes, from + 4 * z, 4);
      else if (left > 0) std::memcpy(&bytes, from + 4 * z, left);
      const uint32_t word = squeeze_nibbles(bytes) | squeeze_nibbles(bytes >> 4) << 16;
      std::memcpy(out + z * 128 + c * 4, &word, 4);
    }
  }
}

// The scales (or biases) of one group for the panel's channels, `width` bytes each.
void pack_scales(const LogicalTensor& t, const void* from, int row0, int column, int columns, int width, uint8_t* to) {
  const int rows = std::min(PANEL, t.m - row0);
  for (int c = 0; c < rows; c++)
    std::memcpy(to + c * width, (const uint8_t*)from + ((size_t)(row0 + c) * columns + column) * width, width);
}

void pack_grouped(const LogicalTensor& t, const PanelGeometry& g, int row0, uint8_t* panel) {
  const bool two_level = t.super_scale != nullptr, has_bias = t.bias != nullptr;
  const int width = two_level ? 1 : 2, supers = t.n / SUPER_GROUP;
  for (int i = 0; i < g.groups; i++) {
    const GroupParts<uint8_t> at = group_parts(g, has_bias, panel, i);
    if (two_level && i % g.per_super == 0) {
      pack_scales(t, t.super_scale, row0, i / g.per_super, supers, 2, at.super_scale);
      if (has_bias) pack_scales(t, t.super_bias, row0, i / g.per_super, supers, 2, at.super_bias);
    }
    pack_scales(t, t.scale, row0, i, g.groups, width, at.scale);
    if (has_bias) pack_scales(t, t.bias, row0, i, g.groups, width, at.bias);
    for (int b = 0; b < g.blocks; b++) {
      const int columns = std::min(2 * g.pairs, t.group - b * 2 * g.pairs), first = i * t.group + b * 2 * g.pairs;
      uint8_t* out = at.blocks + b * g.block_bytes;
      if (t.kind == WeightKind::I8) pack_block_i8(t, row0, first, columns, out);
      else pack_block_u4(t, g, row0, first, columns, out);
    }
  }
}

// Byte offset of an element in an ungrouped panel.
size_t float_offset(WeightKind kind, int c, int k) {
  if (kind == WeightKind::F32) return ((size_t)k * PANEL + c) * 4;
  return (size_t)(k / 2) * 128 + c * 4 + (k & 1) * 2;
}

void pack_floats(const LogicalTensor& t, int row0, uint8_t* panel) {
  const int rows = std::min(PANEL, t.m - row0), width = t.kind == WeightKind::F32 ? 4 : 2;
  for (int c = 0; c < rows; c++) {
    const uint8_t* from = (const uint8_t*)t.data + (size_t)(row0 + c) * t.n * width;
    if (width == 4)
      for (int k = 0; k < t.n; k++) std::memcpy(panel + float_offset(t.kind, c, k), from + 4 * k, 4);
    else
      for (int k = 0; k < t.n; k++) std::memcpy(panel + float_offset(t.kind, c, k), from + 2 * k, 2);
  }
}

int stored_integer(const PackedLinear& w, const PanelGeometry& g, const uint8_t* blocks, int c, int k) {
  const int columns = 2 * g.pairs, pair = k % columns / 2;
  const uint8_t* block = blocks + k / columns * g.block_bytes;
  if (w.kind == WeightKind::I8) return (int8_t)block[i8_offset(c, k % columns)];
  uint32_t word;
  std::memcpy(&word, block + pair / 4 * 128 + c * 4, 4);
  return word >> (4 * (pair % 4) + 16 * (k & 1)) & 15;
}

void unpack_grouped(const PackedLinear& w, const uint8_t* panel, int c, float* out) {
  const PanelGeometry g = panel_geometry(w);
  for (int i = 0; i < g.groups; i++) {
    const GroupParts<const uint8_t> at = group_parts(g, w.has_bias != 0, panel, i);
    float scale, bias = 0.0f;
    if (w.two_level) {
      scale = read_half(at.super_scale, c) * (w.scale_signed ? (float)(int8_t)at.scale[c] : (float)at.scale[c]);
      if (at.bias) bias = read_half(at.super_bias, c) * (float)at.bias[c];
    } else {
      scale = read_half(at.scale, c);
      if (at.bias) bias = read_half(at.bias, c);
    }
    for (int k = 0; k < w.group; k++) {
      const float value = scale * (float)(stored_integer(w, g, at.blocks, c, k) - w.offset);
      out[(size_t)i * w.group + k] = at.bias ? value + bias : value;
    }
  }
}

}  // namespace

size_t packed_bytes(const LogicalTensor& t) {
  const size_t panels = (t.m + PANEL - 1) / PANEL;
  return panels * checked_geometry(t).panel_bytes;
}

void pack_linear(const LogicalTensor& t, PackedLinear& out) {
  const PanelGeometry g = checked_geometry(t);
  out.kind = t.kind;
  out.m = t.m;
  out.n = t.n;
  out.group = t.group;
  out.panels = (t.m + PANEL - 1) / PANEL;
  out.panel_bytes = g.panel_bytes;
  out.two_level = is_grouped(t.kind) && t.super_scale != nullptr;
  out.has_bias = is_grouped(t.kind) && t.bias != nullptr;
  out.offset = is_grouped(t.kind) ? t.offset : 0;
  out.scale_signed = t.scale_signed;
  for (int p = 0; p < out.panels; p++) {
    uint8_t* panel = out.data + (size_t)p * g.panel_bytes;
    std::memset(panel, 0, g.panel_bytes);
    if (is_grouped(t.kind)) pack_grouped(t, g, p * PANEL, panel);
    else pack_floats(t, p * PANEL, panel);
  }
}

void unpack_row(const PackedLinear& w, int row, float* out) {
  const uint8_t* panel = w.data + (size_t)(row / PANEL) * w.panel_bytes;
  const int c = row % PANEL;
  if (is_grouped(w.kind)) {
    unpack_grouped(w, panel, c, out);
    return;
  }
  for (int k = 0; k < w.n; k++) {
    const uint8_t* at = panel + float_offset(w.kind, c, k);
    uint32_t bits = 0;
    if (w.kind == WeightKind::F32) std::memcpy(&bits, at, 4);
    else std::memcpy((uint8_t*)&bits + 2, at, 2);
    std::memcpy(out + k, &bits, 4);
  }
}

size_t linear_scratch_bytes(int max_n, int max_rows) {
  const size_t columns = ((size_t)max_n + K_ALIGN - 1) / K_ALIGN * K_ALIGN;
  const size_t sums = (size_t)max_rows * (columns / 16) * sizeof(float) + 64;  // groups of 16 are the smallest
  return 4 * sums + 2 * (columns * PANEL * 2 + 64) + 64;
}

const LinearKernels& linear_kernels(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::AVX2: return avx2::linear_table;
    case Isa::AVX512: return avx512::linear_table;
    case Isa::AMX: return amx::linear_table;
    case Isa::AMX_MODEL: return amxmodel::linear_table;
    case Isa::PORTABLE: break;
  }
#else
  (void)isa;
#endif
  return portable::linear_table;
}

#if defined(__x86_64__)
namespace {

struct Processor {
  bool avx2 = false, avx512 = false, amx = false;
};

uint64_t enabled_state() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

bool request_tiles() { return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0; }

Processor read_processor() {
  Processor out;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return out;  // OSXSAVE
  const bool fma = c >> 12 & 1, f16c = c >> 29 & 1;
  const uint64_t state = enabled_state();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return out;
  const uint32_t sub_leaves = a, features = b, more = c, tiles = d;
  const auto has = [](uint32_t word, int bit) { return (word >> bit & 1) != 0; };
  out.avx2 = (state & 0x6) == 0x6 && fma && f16c && has(features, 5) && has(features, 3) && has(features, 8);
  uint32_t bf16 = 0;
  if (sub_leaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) bf16 = a;
  // Beyond F, DQ, BW, VL, VNNI and BF16: what the compiler may use of -march=icelake-server
  out.avx512 = out.avx2 && (state & 0xE6) == 0xE6 && has(features, 16) && has(features, 17) && has(features, 30) &&
               has(features, 31) && has(features, 28) && has(features, 21) && has(more, 11) && has(more, 1) &&
               has(more, 6) && has(more, 12) && has(more, 14) && has(bf16, 5);
  // AMX-TILE, AMX-BF16, and AVX512-FP16, which the compiler may use of -march=sapphirerapids
  out.amx = out.avx512 && (state & 0x60000) == 0x60000 && has(tiles, 24) && has(tiles, 22) && has(tiles, 23) &&
            request_tiles();
  return out;
}

const Processor& processor() {
  static const Processor once = read_processor();
  return once;
}

}  // namespace

bool isa_supported(Isa isa) {
  switch (isa) {
    case Isa::PORTABLE: return true;
    case Isa::AVX2: return processor().avx2;
    case Isa::AVX512:
    case Isa::AMX_MODEL: return processor().avx512;
    case Isa::AMX: return processor().amx;
  }
  return false;
}
#else
bool isa_supported(Isa isa) { return isa == Isa::PORTABLE; }
#endif

}  // namespace octavo
