// Arithmetic of sampling, written out so that bits depend on IEEE 754 alone: Philox, exp, log, Gumbel noise, mass.
//
// Everything has internal linkage: this header is compiled once per instruction-set class as well, and no class may
// hand its code to another through the linker. Contraction is off for the whole build.
#pragma once
#include <cstdint>

namespace octavo::sampling_math {

template <class To, class From>
__attribute__((always_inline)) static constexpr To bits_of(From x) {
  return __builtin_bit_cast(To, x);
}

// What noise depends on: a request's seed (the key), the absolute index of the sampled token, what is drawn.
struct NoiseKey {
  uint32_t key0, key1, index, purpose;
};

struct Words {
  uint32_t w0, w1;
};

// Philox4x32-10 (Salmon et al., SC 2011), first two output words. Counter = (index, place, purpose, level).
static constexpr Words philox(const NoiseKey& key, uint32_t place, uint32_t level) {
  uint32_t c0 = key.index, c1 = place, c2 = key.purpose, c3 = level, key0 = key.key0, key1 = key.key1;
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ key0, n2 = uint32_t(p0 >> 32) ^ c3 ^ key1;
    c1 = uint32_t(p1);
    c3 = uint32_t(p0);
    c0 = n0;
    c2 = n2;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {c0, c1};
}

// ln x for positive normal x, relative error below 1e-15: x = m 2^e, m in [sqrt(1/2), sqrt(2)), series in (m-1)/(m+1).
static constexpr double log_double(double x) {
  uint64_t bits = bits_of<uint64_t>(x);
  int64_t e = int64_t(bits >> 52) - 1023;
  double m = bits_of<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m = m * 0.5;
    e = e + 1;
  }
  double s = (m - 1.0) / (m + 1.0), q = s * s;
  double p = 1.0 / 21;
  p = p * q + 1.0 / 19;
  p = p * q + 1.0 / 17;
  p = p * q + 1.0 / 15;
  p = p * q + 1.0 / 13;
  p = p * q + 1.0 / 11;
  p = p * q + 1.0 / 9;
  p = p * q + 1.0 / 7;
  p = p * q + 1.0 / 5;
  p = p * q + 1.0 / 3;
  p = p * q;
  return double(e) * 0.6931471805599453 + (2.0 * s + 2.0 * (s * p));
}

// Gumbel noise is -ln E with E exponential. The least of a group's 64 E is itself exponential, over 64, and every other
// one is the least plus a fresh exponential: so the group's largest noise is drawn first, and its tokens only where that
// could win. Group g of level 1: word 0 draws the least, word 1 says whose it is; level 0: word 0 of each other token.
constexpr int NOISE_GROUP = 64;
constexpr uint32_t LEVEL_TOKEN = 0, LEVEL_GROUP = 1;

// Exponential of one random word: -ln u, u = (r + 1/2) / 2^32.
static constexpr double exponential(uint32_t r) { return -log_double((double(r) + 0.5) * 0x1p-32); }

static constexpr bool holds_most(Words group, uint32_t token) { return token % NOISE_GROUP == group.w1 % NOISE_GROUP; }
static constexpr uint32_t own_word(const NoiseKey& key, uint32_t token) { return philox(key, token, LEVEL_TOKEN).w0; }

// own: not looked at where the token holds the most.
static constexpr double noise_of(Words group, uint32_t token, uint32_t own) {
  double e = exponential(group.w0) * (1.0 / NOISE_GROUP);
  if (!holds_most(group, token)) e = e + exponential(own);
  return -log_double(e);
}

static constexpr double noise_in_group(const NoiseKey& key, Words group, uint32_t token) {
  return noise_of(group, token, holds_most(group, token) ? 0 : own_word(key, token));
}

static constexpr double noise(const NoiseKey& key, uint32_t token) {
  return noise_in_group(key, philox(key, token / NOISE_GROUP, LEVEL_GROUP), token);
}

// What follows is also compiled for vectors of floats and of integers in place of one of each: same steps, same bits.
template <class Int, class Float>
__attribute__((always_inline)) static constexpr Int whole(Float x) {
  if constexpr (sizeof(Float) == sizeof(float)) return Int(x);
  else return __builtin_convertvector(x, Int);
}
template <class Float, class Int>
__attribute__((always_inline)) static constexpr Float real(Int x) {
  if constexpr (sizeof(Float) == sizeof(float)) return Float(x);
  else return __builtin_convertvector(x, Float);
}

// A float at or above all noise of the group whose word 0 is r, close to the largest where that is large: -ln u >= 1 - u,
// and ln lies above its chords between powers of 2.
template <class Float = float, class Int = int32_t>
__attribute__((always_inline)) static constexpr Float noise_bound(Int r) {
  Float t = real<Float>((~r >> 1) & 0x7fffffff) + 0.25f;  // (1 - u) 2^31, from below
  Float log2_t = real<Float>(bits_of<Int>(t)) * 0x1p-23f;  // exponent and mantissa read as one number
  return (158.0f + 6.0f) * 0.69314718f - log2_t * 0.69314718f + 0.01f;
}

constexpr bool bound_holds(uint32_t r) { return -log_double(exponential(r) / NOISE_GROUP) <= noise_bound(int32_t(r)); }
static_assert(bound_holds(0) && bound_holds(1) && bound_holds(0x7fffffffu) && bound_holds(0x80000000u));
static_assert(bound_holds(0xfffffffdu) && bound_holds(0xfffffffeu) && bound_holds(0xffffffffu));

// e^d for d <= 0, relative error below 2e-7, in two steps: below -87, -inf included, it is e^-87.
template <class Float>
__attribute__((always_inline)) static constexpr Float clamp_exponent(Float d) {
  const Float least = Float{} - 87.0f;
  return d > least ? d : least;
}
template <class Float = float, class Int = int32_t>
__attribute__((always_inline)) static constexpr Float exp_clamped(Float d) {
  Float k = d * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the rounded integer
  Int n = bits_of<Int>(k) << 23;
  k = k - 12582912.0f;
  Float r = (d - k * 0.693359375f) - k * -2.12194440e-4f;
  Float p = r * (1.0f / 5040) + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return bits_of<Float>(bits_of<Int>(p) + n);
}

// Probability mass as an integer in units of 2^-44, so that sums are exact in any order. High part in units of 2^-30.
constexpr int MASS_LOW_BITS = 14;
constexpr double MASS_UNIT = 0x1p-44;
constexpr float MASS_FLOOR = -31.0f;  // e^d below this is less than one unit: its mass is 0
constexpr int MAX_VOCABULARY = 1 << 19;  // sums stay below 2^63

template <class Float, class Int>
__attribute__((always_inline)) static constexpr void mass_parts(Float e, Int& high, Int& low) {
  Float scaled = e * 0x1p30f;
  high = whole<Int>(scaled);
  low = whole<Int>((scaled - real<Float>(high)) * float(1 << MASS_LOW_BITS));
}

static constexpr uint64_t mass_of(float d) {
  int32_t high, low;
  mass_parts(exp_clamped(clamp_exponent(d)), high, low);
  return (uint64_t(uint32_t(high)) << MASS_LOW_BITS) + uint32_t(low);
}

}  // namespace octavo::sampling_math
