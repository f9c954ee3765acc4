// Conversion of file formats into the logical kinds of weights/kinds.py, and from those to float32.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>

namespace octavo {

// Exact for every input: subnormals, infinities and NaN payloads included.
inline float f16_to_f32(uint16_t h) {
  uint32_t o = static_cast<uint32_t>(h & 0x7fffu) << 13;
  const uint32_t exponent = o & 0x0f800000u;
  o += (127u - 15u) << 23;
  const uint32_t special = o + ((128u - 16u) << 23);  // infinity, NaN
  const uint32_t shifted = o + (1u << 23);            // subnormal: renormalised by a subtraction
  float renormalised;
  std::memcpy(&renormalised, &shifted, 4);
  renormalised -= 6.103515625e-05f;  // 2^-14
  uint32_t subnormal;
  std::memcpy(&subnormal, &renormalised, 4);
  o = exponent == 0x0f800000u ? special : (exponent == 0 ? subnormal : o);
  o |= static_cast<uint32_t>(h & 0x8000u) << 16;
  float value;
  std::memcpy(&value, &o, 4);
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

inline float bf16_to_f32(uint16_t h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float value;
  std::memcpy(&value, &u, 4);
  return value;
}

void bind_convert(nanobind::module_& m);

}  // namespace octavo
