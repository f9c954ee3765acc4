// f16, bf16 and f32 values one by one, outside of the instruction-set classes (native/isa has its own, in lanes).
#pragma once
#include <cstdint>
#include <cstring>

namespace octavo {

// Exact for every input: subnormals, infinities and NaN payloads included. Branch-free, so that loops vectorise.
inline float f16_to_f32(uint16_t h) {
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fffu) << 13;
  const uint32_t normal = magnitude + (112u << 23);
  const uint32_t widest = magnitude | 0x7f800000u;  // infinity, NaN
  const uint32_t half = static_cast<uint32_t>(h & 0x3ffu) | 0x3f000000u;  // 0.5 + subnormal
  float renormalised;
  std::memcpy(&renormalised, &half, 4);
  renormalised -= 0.5f;
  uint32_t subnormal;
  std::memcpy(&subnormal, &renormalised, 4);
  const uint32_t is_small = 0u - static_cast<uint32_t>(magnitude < 0x00800000u);
  const uint32_t is_wide = 0u - static_cast<uint32_t>(magnitude >= 0x0f800000u);
  uint32_t bits = (subnormal & is_small) | (widest & is_wide) | (normal & ~(is_small | is_wide));
  bits |= static_cast<uint32_t>(h & 0x8000u) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
inline uint16_t f32_to_bf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t quiet = (u >> 16) | 0x40u;
  return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// A whole number of at most 2,047, which f16 holds exactly.
inline uint16_t whole_to_f16(int value) {
  const unsigned size = value < 0 ? -value : value;
  if (size == 0) return 0;
  const int exponent = 31 - __builtin_clz(size);
  return static_cast<uint16_t>((value < 0 ? 0x8000u : 0) | (exponent + 15u) << 10 | (size << (10 - exponent) & 0x3ffu));
}

// 2^(s - 128), exact.
inline float power_of_two(uint8_t s) {
  const uint32_t bits = s < 2 ? 0x00200000u << s : (s - 1u) << 23;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// e4m3 without infinities; 0x7f and 0xff are no numbers.
inline float e4m3_to_f32(uint8_t h) {
  const uint32_t size = h & 0x7fu;
  float value = static_cast<float>(size & 7u) * 0x1p-9f;  // below the normal numbers
  if (size >= 8) {
    const uint32_t bits = size == 0x7fu ? 0x7fc00000u : (size << 20) + (120u << 23);
    std::memcpy(&value, &bits, 4);
  }
  return h & 0x80u ? -value : value;
}

inline float bf16_to_f32(uint16_t h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float value;
  std::memcpy(&value, &u, 4);
  return value;
}

}  // namespace octavo
