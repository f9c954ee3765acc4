// The blocks of each format, repacked. See blocks.h. All loads go through memcpy: mapped files promise no alignment. The
// layouts stand at each function; i is the element's index within the block.
#include "blocks.h"

#include <cstring>
#include <vector>

#include "floats.h"
#include "lanes4.h"

namespace octavo {
namespace {

constexpr size_t SUPER = 256;  // elements of a K block

uint16_t load16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

// Eight bytes at a time, as lanes of a word; little-endian, as the files are.
constexpr uint64_t LOW_NIBBLES = 0x0f0f0f0f0f0f0f0fu;
constexpr uint64_t ONES = 0x0101010101010101u;

uint64_t load64(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}

// `width` bytes, byte k = elements k (low nibble) and k + width (high): as many bytes, byte j = elements 2j and 2j + 1.
inline void interleave_halves(const uint8_t* qs, int width, uint8_t* out) {
  for (int k = 0; k < width; k += 16) {
    const Lanes4 v = load_lanes(qs + k);
    Lanes4 low = v & 0x0F0F0F0F, high = v >> 4 & 0x0F0F0F0F;
    low = (low | low >> 4) & 0x00FF00FF;  // every other byte is one of the result
    high = (high | high >> 4) & 0x00FF00FF;
    const Bytes16 both = __builtin_shufflevector((Bytes16)low, (Bytes16)high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22,
                                                 24, 26, 28, 30);
    std::memcpy(out + k / 2, &both, 8);
    std::memcpy(out + width / 2 + k / 2, (const uint8_t*)&both + 8, 8);
  }
}

// Bit i of `bits` to byte i.
uint64_t spread_bits(uint8_t bits) {
  const uint64_t v = (ONES * bits) & 0x8040201008040201u;
  return ((v + ONES * 0x7f) >> 7) & ONES;
}

// Q4_0, 18 bytes for 32: d f16 | qs[16].  y = d (v - 8)
void q4_0(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 18) {
    std::memcpy(out.scale + 2 * b, s, 2);
    interleave_halves(s + 2, 16, out.data + 16 * b);
  }
}

// Q4_1, 20 bytes for 32: d f16 | m f16 | qs[16].  y = d v + m
void q4_1(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 20) {
    std::memcpy(out.scale + 2 * b, s, 2);
    std::memcpy(out.bias + 2 * b, s + 2, 2);
    interleave_halves(s + 4, 16, out.data + 16 * b);
  }
}

// v = nibble | bit i of qh << 4.
void five_bits(const uint8_t* qh, const uint8_t* qs, uint8_t* out) {
  for (int k = 0; k < 16; k += 8) {
    const uint64_t v = load64(qs + k);
    const uint64_t low = (v & LOW_NIBBLES) | (spread_bits(qh[k / 8]) << 4);
    const uint64_t high = ((v >> 4) & LOW_NIBBLES) | (spread_bits(qh[k / 8 + 2]) << 4);
    std::memcpy(out + k, &low, 8);
    std::memcpy(out + k + 16, &high, 8);
  }
}

// Q5_0, 22 bytes for 32: d f16 | qh u32 | qs[16].  y = d (v - 16)
void q5_0(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 22) {
    std::memcpy(out.scale + 2 * b, s, 2);
    five_bits(s + 2, s + 6, out.data + 32 * b);
  }
}

// Q5_1, 24 bytes for 32: d f16 | m f16 | qh u32 | qs[16].  y = d v + m
void q5_1(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 24) {
    std::memcpy(out.scale + 2 * b, s, 2);
    std::memcpy(out.bias + 2 * b, s + 2, 2);
    five_bits(s + 4, s + 8, out.data + 32 * b);
  }
}

// Q8_0, 34 bytes for 32: d f16 | q int8[32].  y = d q
void q8_0(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 34) {
    std::memcpy(out.scale + 2 * b, s, 2);
    std::memcpy(out.data + 32 * b, s + 2, 32);
  }
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes.
void six_bit_pairs(const uint8_t* s, uint8_t* scale, uint8_t* bias) {
  for (int j = 0; j < 4; ++j) {
    scale[j] = s[j] & 63;
    bias[j] = s[j + 4] & 63;
    scale[j + 4] = static_cast<uint8_t>((s[j + 8] & 15) | ((s[j] >> 6) << 4));
    bias[j + 4] = static_cast<uint8_t>((s[j + 8] >> 4) | ((s[j + 4] >> 6) << 4));
  }
}

// d and dmin f16, then the packed pairs. The minimum is subtracted, so its factor is kept negated.
void k_scales(const uint8_t* s, size_t b, const BlockArrays& out) {
  const uint16_t minus = load16(s + 2) ^ 0x8000u;
  std::memcpy(out.super_scale + 2 * b, s, 2);
  std::memcpy(out.super_bias + 2 * b, &minus, 2);
  six_bit_pairs(s + 4, out.scale + 8 * b, out.bias + 8 * b);
}

// Q4_K, 144 bytes for 256: d | dmin | s[12] | qs[128].  j = i / 32: nibble j % 2 of qs[32 (j / 2) + i % 32]
void q4_k(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 144) {
    k_scales(s, b, out);
    for (int pair = 0; pair < 128; pair += 32) interleave_halves(s + 16 + pair, 32, out.data + 128 * b + pair);
  }
}

// 32 values: a nibble of `low` with the bits `mask` of `high` on top, both shifted down first.
template <int mask>
void merge(const uint8_t* __restrict low, int low_shift, const uint8_t* __restrict high, int high_shift,
           uint8_t* __restrict out) {
  for (int l = 0; l < 32; ++l)
    out[l] = static_cast<uint8_t>((low[l] >> low_shift & 15) | (high[l] >> high_shift & mask) << 4);
}

// Q5_K, 176 bytes for 256: d | dmin | s[12] | qh[32] | qs[128].  As Q4_K, bit j of qh[i % 32] on top
void q5_k(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 176) {
    k_scales(s, b, out);
    const uint8_t* qh = s + 16;
    for (int j = 0; j < 8; ++j) {
      const uint8_t* qs = s + 48 + 32 * (j / 2);
      uint8_t* to = out.data + SUPER * b + 32 * j;
      merge<1>(qs, 4 * (j % 2), qh, j, to);
    }
  }
}

// Q6_K, 210 bytes for 256: ql[128] | qh[64] | sc int8[16] | d.  y = d sc[i / 16] (v - 32)
void q6_k(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 210) {
    std::memcpy(out.scale + 16 * b, s + 192, 16);
    std::memcpy(out.super_scale + 2 * b, s + 208, 2);
    for (int part = 0; part < 8; ++part) {  // 32 elements: half of the block h, k within it
      const int h = part / 4, k = part % 4;
      const uint8_t* ql = s + 64 * h + 32 * (k % 2);
      const uint8_t* qh = s + 128 + 32 * h;
      uint8_t* to = out.data + SUPER * b + 32 * part;
      merge<3>(ql, 4 * (k / 2), qh, 2 * k, to);
    }
  }
}

void bf16(const uint8_t* s, size_t blocks, const BlockArrays& out) { std::memcpy(out.data, s, 2 * blocks); }

// Every f16 as bf16. A look-up beats the arithmetic where only SSE2 may be assumed.
const std::vector<uint16_t>& f16_as_bf16() {
  static const std::vector<uint16_t> table = [] {
    std::vector<uint16_t> all(1 << 16);
    for (size_t bits = 0; bits < all.size(); ++bits) all[bits] = f32_to_bf16(f16_to_f32(static_cast<uint16_t>(bits)));
    return all;
  }();
  return table;
}

void f16(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  const std::vector<uint16_t>& table = f16_as_bf16();
  for (size_t b = 0; b < blocks; ++b) std::memcpy(out.data + 2 * b, &table[load16(s + 2 * b)], 2);
}

void f32(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b) {
    float x;
    std::memcpy(&x, s + 4 * b, 4);
    const uint16_t rounded = f32_to_bf16(x);
    std::memcpy(out.data + 2 * b, &rounded, 2);
  }
}

// Elements i and i + 1 as the nibbles of a byte.
void pair_up(const uint8_t* values, int count, uint8_t* out) {
  for (int i = 0; i < count / 2; ++i) out[i] = static_cast<uint8_t>(values[2 * i] | values[2 * i + 1] << 4);
}

// Two bits of each of 256 elements: i = 128 h + 32 s + l stands at bit 2 s of qs[32 h + l].
void two_bits(const uint8_t* qs, uint8_t* out) {
  for (int part = 0; part < 8; ++part)
    for (int l = 0; l < 32; ++l) out[32 * part + l] = qs[32 * (part / 4) + l] >> (2 * (part % 4)) & 3;
}

// Q2_K, 84 bytes for 256: sc[16] | qs[64] | d | dmin.  y = d (sc[i / 16] & 15) q - dmin (sc[i / 16] >> 4)
void q2_k(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 84) {
    uint8_t q[SUPER];
    const uint16_t minus = load16(s + 82) ^ 0x8000u;
    std::memcpy(out.super_scale + 2 * b, s + 80, 2);
    std::memcpy(out.super_bias + 2 * b, &minus, 2);
    for (int j = 0; j < 16; ++j) out.scale[16 * b + j] = s[j] & 15, out.bias[16 * b + j] = s[j] >> 4;
    two_bits(s + 16, q);
    pair_up(q, SUPER, out.data + SUPER / 2 * b);
  }
}

// Q3_K, 110 bytes for 256: hmask[32] | qs[64] | sc[12] | d.  y = d S(i / 16) (v - 4), v = q | bit i / 32 of hmask[i % 32] << 2
void q3_k(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 110) {
    uint8_t q[SUPER];
    const uint8_t* sc = s + 96;
    for (int j = 0; j < 16; ++j) {
      const int low = sc[j % 8] >> (4 * (j / 8)) & 15, high = sc[8 + j % 4] >> (2 * (j / 4)) & 3;
      out.scale[16 * b + j] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    std::memcpy(out.super_scale + 2 * b, s + 108, 2);
    two_bits(s + 32, q);
    for (int i = 0; i < 256; ++i) q[i] |= (s[i % 32] >> (i / 32) & 1) << 2;
    pair_up(q, SUPER, out.data + SUPER / 2 * b);
  }
}

// TQ1_0, 54 bytes for 256: qs[48] | qh[4] | d.  A byte holds five digits of base 3 (qh four), the first one on top, as a
// fraction of 256; y = d (digit - 1). Of qs 32 bytes, then 16 go together: all their first digits, all their second...
void tq1_0(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  static constexpr uint8_t POWERS[] = {1, 3, 9, 27, 81};
  for (size_t b = 0; b < blocks; ++b, s += 54) {
    uint8_t v[SUPER];
    int i = 0;
    const auto digits = [&](const uint8_t* from, int width, int count) {
      for (int n = 0; n < count; ++n)
        for (int j = 0; j < width; ++j) v[i++] = static_cast<uint8_t>(from[j] * POWERS[n]) * 3 >> 8;
    };
    digits(s, 32, 5);
    digits(s + 32, 16, 5);
    digits(s + 48, 4, 4);
    pair_up(v, SUPER, out.data + SUPER / 2 * b);
    std::memcpy(out.scale + 2 * b, s + 52, 2);
  }
}

// TQ2_0, 66 bytes for 256: qs[64] | d.  y = d (q - 1), q of two bits
void tq2_0(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 66) {
    uint8_t q[SUPER];
    two_bits(s, q);
    pair_up(q, SUPER, out.data + SUPER / 2 * b);
    std::memcpy(out.scale + 2 * b, s + 64, 2);
  }
}

// IQ4_NL, 18 bytes for 32: d | qs[16].  y = d T[v], T of codes.h
void iq4_nl(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 18) {
    std::memcpy(out.scale + 2 * b, s, 2);
    interleave_halves(s + 2, 16, out.data + 16 * b);
  }
}

// IQ4_XS, 136 bytes for 256: d | high u16 | low[4] | qs[128].  y = d (S - 32) T[v]; S(j), j = i / 32: nibble j % 2 of
// low[j / 2], bits 2 j of high on top
void iq4_xs(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 136) {
    const int high = load16(s + 2);
    std::memcpy(out.super_scale + 2 * b, s, 2);
    for (int j = 0; j < 8; ++j) {
      const int scale = (s[4 + j / 2] >> (4 * (j % 2)) & 15) | (high >> (2 * j) & 3) << 4;
      out.scale[8 * b + j] = static_cast<uint8_t>(scale - 32);
      interleave_halves(s + 8 + 16 * j, 16, out.data + SUPER / 2 * b + 16 * j);
    }
  }
}

// MXFP4, 17 bytes for 32: e u8 | qs[16].  y = 2^(e - 128) T[v]
void mxfp4(const uint8_t* s, size_t blocks, const BlockArrays& out) {
  for (size_t b = 0; b < blocks; ++b, s += 17) {
    out.scale[b] = s[0];
    interleave_halves(s + 1, 16, out.data + 16 * b);
  }
}

constexpr WeightKind BF16 = WeightKind::BF16, I8 = WeightKind::I8, U4 = WeightKind::U4, U5 = WeightKind::U5;
constexpr WeightKind U6 = WeightKind::U6, NL4 = WeightKind::NL4, FP4 = WeightKind::FP4;
constexpr ScaleCode F16 = ScaleCode::F16, TWO_U8 = ScaleCode::U8, TWO_I8 = ScaleCode::I8, E8M0 = ScaleCode::E8M0;
// name, kind, elements, bytes, group, offset, scale, has_bias, unpack
constexpr BlockFormat FORMATS[] = {
    {"F32", BF16, 1, 4, 0, 0, F16, false, f32},              {"F16", BF16, 1, 2, 0, 0, F16, false, f16},
    {"BF16", BF16, 1, 2, 0, 0, F16, false, bf16},            {"Q4_0", U4, 32, 18, 32, 8, F16, false, q4_0},
    {"Q4_1", U4, 32, 20, 32, 0, F16, true, q4_1},            {"Q5_0", U5, 32, 22, 32, 16, F16, false, q5_0},
    {"Q5_1", U5, 32, 24, 32, 0, F16, true, q5_1},            {"Q8_0", I8, 32, 34, 32, 0, F16, false, q8_0},
    {"Q2_K", U4, 256, 84, 16, 0, TWO_U8, true, q2_k},        {"Q3_K", U4, 256, 110, 16, 4, TWO_I8, false, q3_k},
    {"Q4_K", U4, 256, 144, 32, 0, TWO_U8, true, q4_k},       {"Q5_K", U5, 256, 176, 32, 0, TWO_U8, true, q5_k},
    {"Q6_K", U6, 256, 210, 16, 32, TWO_I8, false, q6_k},     {"TQ1_0", U4, 256, 54, 256, 1, F16, false, tq1_0},
    {"TQ2_0", U4, 256, 66, 256, 1, F16, false, tq2_0},       {"IQ4_NL", NL4, 32, 18, 32, 0, F16, false, iq4_nl},
    {"IQ4_XS", NL4, 256, 136, 32, 0, TWO_I8, false, iq4_xs}, {"MXFP4", FP4, 32, 17, 32, 0, E8M0, false, mxfp4},
};

}  // namespace

const BlockFormat* block_format(std::string_view name) {
  for (const BlockFormat& format : FORMATS)
    if (name == format.name) return &format;
  return nullptr;
}

}  // namespace octavo
