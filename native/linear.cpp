// Packing of weights into panels, their rows as floats again, and the choice of an instruction-set class.
#include "linear.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "denormals.h"
#include "codes.h"
#include "floats.h"
#include "lanes4.h"
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
    if (has_nibbles(t.kind) && t.n % 2) throw std::invalid_argument("linear: u4 with an odd number of columns");
    if (group == 16 && (t.kind == WeightKind::U5 || has_table(t.kind)))
      throw std::invalid_argument("linear: groups of 16 columns are not supported for this kind");
    if (is_two_level(t.scale_code) && (SUPER_GROUP % group || t.n % SUPER_GROUP))
      throw std::invalid_argument("linear: two-level scales need whole blocks of 256 columns");
    if (t.bias_code == BiasCode::VALUE && (t.scale_code == ScaleCode::F32 || t.scale_code == ScaleCode::E8M0))
      throw std::invalid_argument("linear: these scales go with zero points alone");
  }
  return panel_geometry(t.kind, t.n, t.group, t.scale_code, t.bias_code != BiasCode::NONE);
}

// Byte offset of an i8 within its block.
int i8_offset(int c, int k) {
  const int at = plane_position(k);
  return at / 4 * 128 + c * 4 + at % 4;
}

inline void pack_block_i8(const LogicalTensor& t, int row0, int row, int rows, int column0, int columns, uint8_t* out) {
  const uint8_t* from = (const uint8_t*)t.data + (size_t)(row0 + row) * t.n + column0;
  if (rows == 4 && columns % 16 == 0) {
    for (int k = 0; k < columns; k += 16) {
      Lanes4 v[4], quads[4];
      for (int r = 0; r < 4; r++) v[r] = load_lanes(from + (size_t)r * t.n + k);
      transpose(v, quads);
      for (int j = 0; j < 4; j += 2) {
        Lanes4 woven[2];
        weave(quads[j], quads[j + 1], woven);
        store_lanes(out + (k / 4 + j) * 128 + row * 4, woven[0]);
        store_lanes(out + (k / 4 + j + 1) * 128 + row * 4, woven[1]);
      }
    }
    return;
  }
  for (int r = 0; r < rows; r++)
    for (int k = 0; k < columns; k++) out[i8_offset(row + r, k)] = from[(size_t)r * t.n + k];
}

inline void pack_block_u4(const LogicalTensor& t, int row0, int row, int rows, int column0, int columns, uint8_t* out) {
  const size_t stride = t.n / 2;
  const uint8_t* from = (const uint8_t*)t.data + (row0 + row) * stride + column0 / 2;
  for (int k = 0; k < columns; k += 32) {
    Lanes4 v[4] = {}, words[4];
    const int bytes = std::min(16, (columns - k + 1) / 2);
    for (int r = 0; r < rows; r++) {
      if (bytes == 16) v[r] = load_lanes(from + r * stride + k / 2);
      else std::memcpy(&v[r], from + r * stride + k / 2, bytes);
      v[r] = part_nibbles(v[r]);
    }
    transpose(v, words);
    for (int j = 0; 8 * j < columns - k; j++) store_lanes(out + (k / 8 + j) * 128 + row * 4, words[j]);
  }
}

// Bytes in the places of i8, split into nibbles and a plane.
void split_planes(const uint8_t* bytes, int pairs, int bits, uint8_t* out) {
  const int quads = pairs / 2, line = 4 * PANEL;
  for (int z = 0; z < quads / 2; z++)
    for (int i = 0; i < line; i++)
      out[z * line + i] = (uint8_t)((bytes[2 * z * line + i] & 15) | bytes[(2 * z + 1) * line + i] << 4);
  uint8_t* plane = out + quads / 2 * line;
  std::memset(plane, 0, (size_t)pairs * 8 * bits);
  for (int q = 0; q < quads; q++)
    for (int i = 0; i < line; i++) plane[q * bits / 8 * line + i] |= (uint8_t)((bytes[q * line + i] >> 4) << (q * bits % 8));
}

// The scales (or biases) of one group for the panel's channels, `width` bytes each.
void pack_scales(const LogicalTensor& t, const void* from, int row0, int column, int columns, int width, uint8_t* to) {
  const int rows = std::min(PANEL, t.m - row0);
  for (int c = 0; c < rows; c++)
    std::memcpy(to + c * width, (const uint8_t*)from + ((size_t)(row0 + c) * columns + column) * width, width);
}

// Zero points of one group, negated.
void pack_zeros(const LogicalTensor& t, int row0, int column, int columns, uint8_t* to) {
  const int rows = std::min(PANEL, t.m - row0);
  for (int c = 0; c < rows; c++) {
    const uint16_t bits = whole_to_f16(-((const int16_t*)t.bias)[(size_t)(row0 + c) * columns + column]);
    std::memcpy(to + 2 * c, &bits, 2);
  }
}

void pack_grouped(const LogicalTensor& t, const PanelGeometry& g, int row0, uint8_t* panel) {
  const bool two_level = is_two_level(t.scale_code), has_bias = t.bias_code != BiasCode::NONE;
  const int width = scale_bytes(t.scale_code), supers = t.n / SUPER_GROUP, rows = std::min(PANEL, t.m - row0);
  for (int i = 0; i < g.groups; i++) {
    const GroupParts<uint8_t> at = group_parts(g, has_bias, panel, i);
    if (two_level && i % g.bundle == 0) {
      pack_scales(t, t.super_scale, row0, i / g.bundle, supers, 2, at.super_scale);
      if (has_bias) pack_scales(t, t.super_bias, row0, i / g.bundle, supers, 2, at.super_bias);
    }
    pack_scales(t, t.scale, row0, i, g.groups, width, at.scale);
    if (t.bias_code == BiasCode::VALUE) pack_scales(t, t.bias, row0, i, g.groups, width, at.bias);
    if (t.bias_code == BiasCode::ZERO) pack_zeros(t, row0, i, g.groups, at.bias);
    for (int b = 0; b < g.blocks; b++) {
      const int columns = std::min(2 * g.pairs, t.group - b * 2 * g.pairs), first = i * t.group + b * 2 * g.pairs;
      uint8_t* out = at.blocks + b * g.block_bytes;
      const int bits = plane_bits(t.kind);
      uint8_t bytes[1024] = {};
      for (int row = 0; row < rows; row += 4) {
        const int some = std::min(4, rows - row);
        if (bits || !has_nibbles(t.kind)) pack_block_i8(t, row0, row, some, first, columns, bits ? bytes : out);
        else pack_block_u4(t, row0, row, some, first, columns, out);
      }
      if (bits) split_planes(bytes, g.pairs, bits, out);
    }
  }
}

// Byte offset of an element in an ungrouped panel.
size_t float_offset(WeightKind kind, int c, int k) {
  if (kind == WeightKind::F32) return ((size_t)k * PANEL + c) * 4;
  return (size_t)(k / 2) * 128 + c * 4 + (k & 1) * 2;
}

// 32 bits of a row, a pair of bf16 or one f32, stand side by side with those of the other rows.
void pack_floats(const LogicalTensor& t, int row0, uint8_t* panel) {
  const int rows = std::min(PANEL, t.m - row0);
  const size_t row_bytes = (size_t)t.n * (t.kind == WeightKind::F32 ? 4 : 2);
  const uint8_t* data = (const uint8_t*)t.data + row0 * row_bytes;
  for (size_t line = 0; line < row_bytes; line += 64) {  // of the cache: each is read once
    for (int row = 0; row < rows; row += 4) {
      for (size_t at = line; at < std::min(line + 64, row_bytes); at += 16) {
        Lanes4 v[4] = {}, words[4];
        const size_t bytes = std::min<size_t>(16, row_bytes - at);
        for (int r = 0; r < std::min(4, rows - row); r++) {
          if (bytes == 16) v[r] = load_lanes(data + (row + r) * row_bytes + at);
          else std::memcpy(&v[r], data + (row + r) * row_bytes + at, bytes);
        }
        transpose(v, words);
        for (size_t j = 0; 4 * j < bytes; j++) store_lanes(panel + (at / 4 + j) * 128 + row * 4, words[j]);
      }
    }
  }
}

// The number that stands in column k of channel c.
float stored_number(const PackedLinear& w, const PanelGeometry& g, const uint8_t* blocks, int c, int k, int zero) {
  const int columns = 2 * g.pairs, pair = k % columns / 2;
  const uint8_t* block = blocks + k / columns * g.block_bytes;
  const int place = i8_offset(c, k % columns);
  if (w.kind == WeightKind::I8) return (float)((int8_t)block[place] - zero);
  if (w.kind == WeightKind::FP8) return e4m3_to_f32(block[place]);
  uint32_t word;
  std::memcpy(&word, block + pair / 4 * 128 + c * 4, 4);
  const int nibble = word >> (4 * (pair % 4) + 16 * (k & 1)) & 15;
  if (has_table(w.kind)) return (float)((w.kind == WeightKind::NL4 ? NL4_TABLE : FP4_TABLE)[nibble] - zero);
  const int bits = plane_bits(w.kind), quad = place / 128;
  if (!bits) return (float)(nibble - zero);
  const uint8_t plane = block[(size_t)g.pairs * 32 + quad * bits / 8 * 128 + place % 128];
  return (float)((nibble | (plane >> (quad * bits % 8) & ((1 << bits) - 1)) << 4) - zero);
}

void unpack_grouped(const PackedLinear& w, const uint8_t* panel, int c, float* out) {
  const PanelGeometry g = panel_geometry(w);
  for (int i = 0; i < g.groups; i++) {
    const GroupParts<const uint8_t> at = group_parts(g, w.has_bias != 0, panel, i);
    float scale, bias = 0.0f;
    int zero = w.offset;
    if (is_two_level(w.scale_code)) {
      const bool is_signed = w.scale_code == ScaleCode::I8;
      scale = read_half(at.super_scale, c) * (is_signed ? (float)(int8_t)at.scale[c] : (float)at.scale[c]);
      if (at.bias) bias = read_half(at.super_bias, c) * (float)at.bias[c];
    } else {
      if (w.scale_code == ScaleCode::F32) std::memcpy(&scale, at.scale + 4 * c, 4);
      else scale = w.scale_code == ScaleCode::F16 ? read_half(at.scale, c) : power_of_two(at.scale[c]);
      if (w.bias_code == BiasCode::VALUE) bias = read_half(at.bias, c);
      if (w.bias_code == BiasCode::ZERO) zero -= (int)read_half(at.bias, c);
    }
    for (int k = 0; k < w.group; k++) {
      const float value = scale * stored_number(w, g, at.blocks, c, k, zero);
      out[(size_t)i * w.group + k] = w.bias_code == BiasCode::VALUE ? value + bias : value;
    }
  }
}

}  // namespace

size_t packed_bytes(const LogicalTensor& t) {
  const size_t panels = (t.m + PANEL - 1) / PANEL;
  return panels * checked_geometry(t).panel_bytes;
}

void describe_linear(const LogicalTensor& t, PackedLinear& out) {
  const PanelGeometry g = checked_geometry(t);
  out.kind = t.kind;
  out.m = t.m;
  out.n = t.n;
  out.group = t.group;
  out.panels = (t.m + PANEL - 1) / PANEL;
  out.panel_bytes = g.panel_bytes;
  out.scale_code = is_grouped(t.kind) ? t.scale_code : ScaleCode::F16;
  out.bias_code = is_grouped(t.kind) ? t.bias_code : BiasCode::NONE;
  out.has_bias = out.bias_code != BiasCode::NONE;
  out.offset = is_grouped(t.kind) ? t.offset : 0;
}

void pack_panel(const LogicalTensor& t, int p, uint8_t* panel) {
  const PanelGeometry g = checked_geometry(t);
  std::memset(panel, 0, g.panel_bytes);
  if (is_grouped(t.kind)) pack_grouped(t, g, p * PANEL, panel);
  else pack_floats(t, p * PANEL, panel);
}

void pack_linear(const LogicalTensor& t, PackedLinear& out) {
  describe_linear(t, out);
  for (int p = 0; p < out.panels; p++) pack_panel(t, p, out.data + (size_t)p * out.panel_bytes);
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
  out.amx = out.avx512 && (state & 0x60000) == 0x60000 && has(tiles, 24) && has(tiles, 22) && has(tiles, 23);
  return out;
}

const Processor& processor() {
  static const Processor once = read_processor();
  return once;
}

std::atomic<bool> tiles_wanted{false};

bool tiles_granted() {
  static const bool once = processor().amx && request_tiles();
  tiles_wanted = true;
  return once;
}

// The highest class in use: OCTAVO_ISA as the process found it, unless allow_isa() went above.
std::atomic<Isa>& ceiling() {
  static std::atomic<Isa> most = [] {
    const char* const names[] = {"portable", "avx2", "avx512"};
    const char* name = std::getenv("OCTAVO_ISA");
    for (int i = 0; name && i < 3; i++)
      if (!std::strcmp(name, names[i])) return (Isa)i;
    return Isa::AMX;
  }();
  return most;
}

}  // namespace

bool isa_supported(Isa isa) {
  const Isa most = ceiling();
  switch (isa) {
    case Isa::PORTABLE: return true;
    case Isa::AVX2: return most >= isa && processor().avx2;
    case Isa::AVX512: return most >= isa && processor().avx512;
    case Isa::AMX_MODEL: return most >= Isa::AVX512 && processor().avx512;
    case Isa::AMX: return most >= isa && tiles_granted();
  }
  return false;
}

void allow_isa(Isa isa) {
  if (ceiling() < isa) ceiling() = isa;
}

bool amx_wanted() { return tiles_wanted; }
#else
bool isa_supported(Isa isa) { return isa == Isa::PORTABLE; }
void allow_isa(Isa) {}
bool amx_wanted() { return false; }
#endif

}  // namespace octavo
