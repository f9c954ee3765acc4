// Scans of sampling over a row of logits. Plain loops over blocks of 64: lanes are independent, reductions are integer
// (or by largest), so every instruction-set class gives the same bits.
#include "sampling_kernels.h"
#include "sampling_math.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace octavo::OCTAVO_ISA_NAME {

using namespace sampling_math;

namespace {

constexpr float INF = __builtin_inff();

LogitScan scan(const float* x, int n, float* block_max) {
  int32_t most = INT32_MIN, least = INT32_MAX;
  int i = 0, block = 0;
  for (; i + SCAN_BLOCK <= n; i += SCAN_BLOCK) {
    int32_t high = INT32_MIN, low = INT32_MAX;
    for (int l = 0; l < SCAN_BLOCK; l++) {
      int32_t key = order_key(x[i + l]);
      high = key > high ? key : high;
      low = key < low ? key : low;
    }
    block_max[block++] = from_key(high);
    most = high > most ? high : most;
    least = low < least ? low : least;
  }
  if (i < n) {
    int32_t high = INT32_MIN;
    for (; i < n; i++) {
      int32_t key = order_key(x[i]);
      high = key > high ? key : high;
      least = key < least ? key : least;
    }
    block_max[block] = from_key(high);
    most = high > most ? high : most;
  }
  bool finite = most < order_key(INF) && most > order_key(-INF) && least >= order_key(-INF);
  return {from_key(most), finite};
}

// A block's logits, padded with -inf at the row's end.
struct Block {
  float pad[SCAN_BLOCK];
  const float* at(const float* x, int begin, int n) {
    if (begin + SCAN_BLOCK <= n) return x + begin;
    for (int l = 0; l < SCAN_BLOCK; l++) pad[l] = begin + l < n ? x[begin + l] : -INF;
    return pad;
  }
};

// Masses of one block, 0 for what the survivors' rule drops.
void block_mass(const float* v, int begin, const Survivors& s, int32_t* __restrict high, int32_t* __restrict low) {
  // Kept simple for the vectorizer: the clamp has a loop of its own, and masks stand for selects.
  int32_t keep[SCAN_BLOCK];
  float d[SCAN_BLOCK];
  for (int l = 0; l < SCAN_BLOCK; l++) {
    float exact = s.d(v[l]);
    keep[l] = -int32_t((exact >= s.d_min) &
                       ((v[l] > s.last_logit) | ((v[l] == s.last_logit) & (begin + l <= s.last_id))));
    d[l] = clamp_exponent(exact);
  }
  for (int l = 0; l < SCAN_BLOCK; l++) {
    mass_parts(exp_clamped(d[l]), high[l], low[l]);
    high[l] &= keep[l];
    low[l] &= keep[l];
  }
}

uint64_t mass(const float* x, int n, const float* block_max, const Survivors& s) {
  float floor = s.d_min > MASS_FLOOR ? s.d_min : MASS_FLOOR;
  uint64_t highs = 0, lows = 0;
  Block block;
  for (int begin = 0; begin < n; begin += SCAN_BLOCK) {
    float top = block_max[begin / SCAN_BLOCK];
    if (!(s.d(top) >= floor) || top < s.last_logit) continue;
    int32_t high[SCAN_BLOCK], low[SCAN_BLOCK];
    block_mass(block.at(x, begin, n), begin, s, high, low);
    uint64_t h = 0;
    uint32_t w = 0;
    for (int l = 0; l < SCAN_BLOCK; l++) h += uint32_t(high[l]);
    for (int l = 0; l < SCAN_BLOCK; l++) w += uint32_t(low[l]);
    highs += h;
    lows += w;
  }
  return (highs << MASS_LOW_BITS) + lows;
}

inline int32_t bucket_of(float d) { return int32_t((d < MASS_FLOOR ? MASS_FLOOR : d) * -64.0f); }

void histogram(const float* x, int n, const float* block_max, const Survivors& s, uint64_t* buckets) {
  float floor = s.d_min > MASS_FLOOR ? s.d_min : MASS_FLOOR;
  Survivors all = {s.max, s.inv_temperature, s.d_min, -INF, INT32_MAX};
  Block block;
  for (int begin = 0; begin < n; begin += SCAN_BLOCK) {
    if (!(s.d(block_max[begin / SCAN_BLOCK]) >= floor)) continue;
    int32_t high[SCAN_BLOCK], low[SCAN_BLOCK], where[SCAN_BLOCK];
    const float* v = block.at(x, begin, n);
    block_mass(v, begin, all, high, low);
    for (int l = 0; l < SCAN_BLOCK; l++) where[l] = bucket_of(s.d(v[l]));
    for (int l = 0; l < SCAN_BLOCK; l++)
      buckets[where[l]] += (uint64_t(uint32_t(high[l])) << MASS_LOW_BITS) + uint32_t(low[l]);
  }
}

int gather(const float* x, int n, const float* block_max, const Survivors& s, int bucket, int32_t* ids) {
  float floor = s.d_min > MASS_FLOOR ? s.d_min : MASS_FLOOR;
  int count = 0;
  Block block;
  for (int begin = 0; begin < n; begin += SCAN_BLOCK) {
    float top = s.d(block_max[begin / SCAN_BLOCK]);
    if (!(top >= floor) || bucket_of(top) > bucket) continue;
    const float* v = block.at(x, begin, n);
    int32_t inside[SCAN_BLOCK], any = 0;
    for (int l = 0; l < SCAN_BLOCK; l++) inside[l] = (bucket_of(s.d(v[l])) == bucket) & (s.d(v[l]) >= floor);
    for (int l = 0; l < SCAN_BLOCK; l++) any |= inside[l];
    if (!any) continue;
    for (int l = 0; l < SCAN_BLOCK; l++)
      if (inside[l]) ids[count++] = begin + l;
  }
  return count;
}

// Vectors of 64-bit lanes; what stands in a lane's upper half is ignored by mul32.
#if defined(__AVX512F__)
typedef uint64_t Lanes __attribute__((vector_size(64)));
inline Lanes mul32(Lanes a, Lanes b) { return (Lanes)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
#elif defined(__AVX2__)
typedef uint64_t Lanes __attribute__((vector_size(32)));
inline Lanes mul32(Lanes a, Lanes b) { return (Lanes)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
#elif defined(__SSE2__)
typedef uint64_t Lanes __attribute__((vector_size(16)));
inline Lanes mul32(Lanes a, Lanes b) { return (Lanes)_mm_mul_epu32((__m128i)a, (__m128i)b); }
#else
typedef uint64_t Lanes __attribute__((vector_size(16)));
inline Lanes mul32(Lanes a, Lanes b) { return (a & 0xffffffff) * (b & 0xffffffff); }
#endif

// Word 0 of philox() of sampling_math.h for the 64 groups from `begin` on.
void group_words(const NoiseKey& key, int begin, uint32_t* word) {
  constexpr int WIDTH = sizeof(Lanes) / 8;
  alignas(64) uint64_t wide[SCAN_BLOCK];
  const Lanes zero = {}, m0 = zero + 0xD2511F53, m1 = zero + 0xCD9E8D57;
  Lanes count;
  for (int i = 0; i < WIDTH; i++) count[i] = uint64_t(i);
  for (int l = 0; l < SCAN_BLOCK; l += WIDTH) {
    Lanes c0 = zero + key.index, c1 = count + uint64_t(begin + l), c2 = zero + key.purpose, c3 = zero + LEVEL_GROUP;
    uint32_t key0 = key.key0, key1 = key.key1;
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
      Lanes p0 = mul32(c0, m0), p1 = mul32(c2, m1);
      c0 = (p1 >> 32) ^ c1 ^ uint64_t(key0);
      c2 = (p0 >> 32) ^ c3 ^ uint64_t(key1);
      c1 = p1;
      c3 = p0;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    __builtin_memcpy(wide + l, &c0, sizeof c0);
  }
  for (int l = 0; l < SCAN_BLOCK; l++) word[l] = uint32_t(wide[l]);
}

// Draws the tokens of one group that could beat the best.
void draw_group(const float* x, int n, int group, const Survivors& s, const NoiseKey& key, Winner& best) {
  const int begin = group * SCAN_BLOCK;
  const Words words = philox(key, uint32_t(group), LEVEL_GROUP);
  const float bar = float(best.score) - 0.001f, bound = noise_bound(words.w0);
  Block block;
  const float* v = block.at(x, begin, n);
  int32_t open[SCAN_BLOCK];
  for (int l = 0; l < SCAN_BLOCK; l++) open[l] = s.d(v[l]) + bound >= bar;
  for (int l = 0; l < SCAN_BLOCK; l++) {
    if (!open[l] || !s.keeps(v[l], begin + l)) continue;
    double score = double(s.d(v[l])) + noise_in_group(key, words, uint32_t(begin + l));
    if (score > best.score || (score == best.score && begin + l < best.id)) best = {score, begin + l};
  }
}

void draw(const float* x, int n, const float* block_max, const Survivors& s, const NoiseKey& key, Winner& best) {
  const int groups = (n + SCAN_BLOCK - 1) / SCAN_BLOCK;
  float high[MAX_VOCABULARY / SCAN_BLOCK];  // the score that no token of a group exceeds
  int first = 0;
  for (int begin = 0; begin < groups; begin += SCAN_BLOCK) {
    uint32_t word[SCAN_BLOCK];
    group_words(key, begin, word);
    const int count = groups - begin < SCAN_BLOCK ? groups - begin : SCAN_BLOCK;
    for (int l = 0; l < count; l++) {
      const float top = block_max[begin + l], d = s.d(top);
      high[begin + l] = (d >= s.d_min) & (top >= s.last_logit) ? d + noise_bound(word[l]) : -INF;
    }
    for (int g = begin; g < begin + count; g++)
      if (high[g] > high[first]) first = g;
  }
  draw_group(x, n, first, s, key, best);  // the likeliest winner first: few others are looked at then
  for (int g = 0; g < groups; g++)
    if (g != first && high[g] >= float(best.score) - 0.001f) draw_group(x, n, g, s, key, best);
}

}  // namespace

extern const SamplingKernels sampling_table;
const SamplingKernels sampling_table = {scan, mass, histogram, gather, draw};

}  // namespace octavo::OCTAVO_ISA_NAME
