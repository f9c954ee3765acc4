// Scans of sampling over a row of logits, in blocks of 64: lanes are independent, reductions are integer or by largest, so
// every instruction-set class gives the same bits. (Sums of weights are not; what they prove is the same.)
#include "sampling_kernels.h"
#include "sampling_math.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace octavo::OCTAVO_ISA_NAME {

using namespace sampling_math;

namespace {

constexpr float INF = __builtin_inff();

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
typedef float Floats __attribute__((vector_size(sizeof(Lanes))));
typedef int32_t Ints __attribute__((vector_size(sizeof(Lanes))));

constexpr int WIDTH = sizeof(Floats) / sizeof(float);

inline Floats load(const float* x) {
  Floats v;
  __builtin_memcpy(&v, x, sizeof v);
  return v;
}
template <class V>
inline void store(void* to, V v) {
  __builtin_memcpy(to, &v, sizeof v);
}
inline Ints load_words(const uint32_t* x) {
  Ints v;
  __builtin_memcpy(&v, x, sizeof v);
  return v;
}
// 0, 1, 2, ...
inline Ints ascending() {
  Ints v;
  for (int i = 0; i < WIDTH; i++) v[i] = i;
  return v;
}

// Bit l: lane l of a block is not 0.
inline uint64_t lanes_set(const int32_t* lane) {
  uint64_t set = 0;
#if defined(__AVX512F__)
  for (int i = 0; i < 4; i++) {
    const __m512i part = _mm512_loadu_si512(lane + 16 * i);
    set |= uint64_t(_mm512_test_epi32_mask(part, part)) << 16 * i;
  }
#elif defined(__AVX2__)
  for (int i = 0; i < 8; i++) {
    const __m256i part = _mm256_cmpeq_epi32(_mm256_loadu_si256((const __m256i*)(lane + 8 * i)), _mm256_setzero_si256());
    set |= uint64_t(~_mm256_movemask_ps(_mm256_castsi256_ps(part)) & 0xff) << 8 * i;
  }
#elif defined(__SSE2__)
  for (int i = 0; i < 16; i++) {
    const __m128i part = _mm_cmpeq_epi32(_mm_loadu_si128((const __m128i*)(lane + 4 * i)), _mm_setzero_si128());
    set |= uint64_t(~_mm_movemask_ps(_mm_castsi128_ps(part)) & 0xf) << 4 * i;
  }
#else
  for (int l = 0; l < SCAN_BLOCK; l++) set |= uint64_t(lane[l] != 0) << l;
#endif
  return set;
}

// The largest of `count` logits, a multiple of 16; NaN when one of them is. Written out: compilers keep the running
// maxima of plain loops in memory.
inline float largest(const float* v, int count) {
#if defined(__AVX512F__)
  __m512 most = _mm512_loadu_ps(v);
  __mmask16 odd = _mm512_cmp_ps_mask(most, most, _CMP_UNORD_Q);
  for (int i = 16; i < count; i += 16) {
    const __m512 at = _mm512_loadu_ps(v + i);
    most = _mm512_max_ps(at, most);
    odd |= _mm512_cmp_ps_mask(at, at, _CMP_UNORD_Q);
  }
  return odd ? __builtin_nanf("") : _mm512_reduce_max_ps(most);
#elif defined(__AVX2__)
  __m256 most = _mm256_loadu_ps(v), odd = _mm256_cmp_ps(most, most, _CMP_UNORD_Q);
  for (int i = 8; i < count; i += 8) {
    const __m256 at = _mm256_loadu_ps(v + i);
    most = _mm256_max_ps(at, most);
    odd = _mm256_or_ps(odd, _mm256_cmp_ps(at, at, _CMP_UNORD_Q));
  }
  if (_mm256_movemask_ps(odd)) return __builtin_nanf("");
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
#else
  Floats most = load(v);
  Ints odd = most != most;
  for (int i = WIDTH; i < count; i += WIDTH) {
    const Floats at = load(v + i);
    odd |= at != at;
    most = at > most ? at : most;
  }
  float all = most[0];
  int32_t any = odd[0];
  for (int i = 1; i < WIDTH; i++) all = most[i] > all ? most[i] : all, any |= odd[i];
  return any ? __builtin_nanf("") : all;
#endif
}

// The same for a row's last few.
inline float largest_of_rest(const float* v, int count) {
  float most = v[0];
  for (int i = 0; i < count; i++) {
    if (v[i] != v[i]) return __builtin_nanf("");
    most = v[i] > most ? v[i] : most;
  }
  return most;
}

void tops(const float* x, int n, int width, float* out) {
  for (int begin = 0; begin < n; begin += width)
    *out++ = begin + width <= n ? largest(x + begin, width) : largest_of_rest(x + begin, n - begin);
}

void pair_tops(const float* tops, int count, float* out) {
  const int pairs = count / 2;
  for (int i = 0; i < pairs; i++) out[i] = tops[2 * i] > tops[2 * i + 1] ? tops[2 * i] : tops[2 * i + 1];
  if (count % 2) out[pairs] = tops[count - 1];
}

int count_from(const float* x, int n, float least) {
  int count = 0;
  for (int i = 0; i < n; i++) count += x[i] >= least;
  return count;
}

// A block's logits, padded with -inf at the row's end.
struct Block {
  float pad[SCAN_BLOCK];
  const float* at(const LogitRow& row, int block) {
    const int begin = block * SCAN_BLOCK;
    const float* x = row.source(block);
    if (begin + SCAN_BLOCK <= row.n) return x + begin;
    for (int l = 0; l < SCAN_BLOCK; l++) pad[l] = begin + l < row.n ? x[begin + l] : -INF;
    return pad;
  }
};

// Below this d neither mass nor a survivor is to be found.
inline float floor_of(const Survivors& s) { return s.d_min > MASS_FLOOR ? s.d_min : MASS_FLOOR; }

inline Floats distances(const Survivors& s, Floats v) { return (v - s.max) * s.inv_temperature; }

// -1 where Survivors::keeps(v, id) holds. `everyone`: nothing is dropped.
template <bool everyone>
inline Ints kept_lanes(const Survivors& s, Floats v, Floats d, Ints ids) {
  if (everyone) return Ints{} - 1;
  return (d >= s.d_min) & ((v > s.last_logit) | ((v == s.last_logit) & (ids <= s.last_id)));
}

// Masses of WIDTH logits, 0 for what the survivors' rule drops.
template <bool everyone>
inline void masses(const Survivors& s, Floats v, Ints ids, Ints& high, Ints& low) {
  const Floats d = distances(s, v);
  mass_parts(exp_clamped<Floats, Ints>(clamp_exponent(d)), high, low);
  const Ints kept = kept_lanes<everyone>(s, v, d, ids);
  high &= kept, low &= kept;
}

template <bool everyone>
uint64_t mass_of_row(const LogitRow& row, const Survivors& s) {
  const float floor = floor_of(s);
  Lanes highs = {};  // two lanes of 32 bits each
  Ints lows = {};
  Block block;
  for (int b = 0; b < row.blocks(); b++) {
    const float top = row.block_max[b];
    if (!(s.d(top) >= floor) || top < s.last_logit) continue;
    const float* v = block.at(row, b);
    for (int l = 0; l < SCAN_BLOCK; l += WIDTH) {
      Ints high, low;
      masses<everyone>(s, load(v + l), ascending() + (b * SCAN_BLOCK + l), high, low);
      highs += (bits_of<Lanes>(high) & 0xffffffff) + (bits_of<Lanes>(high) >> 32);
      lows += low;  // below 2^14 each, at most 2^17 of them
    }
  }
  uint64_t h = 0, w = 0;
  for (int i = 0; i < WIDTH / 2; i++) h += highs[i];
  for (int i = 0; i < WIDTH; i++) w += uint32_t(lows[i]);
  return (h << MASS_LOW_BITS) + w;
}

uint64_t mass(const LogitRow& row, const Survivors& s) {
  const bool everyone = s.d_min == -INF && s.last_logit == -INF && s.last_id == INT32_MAX;
  return everyone ? mass_of_row<true>(row, s) : mass_of_row<false>(row, s);
}

// 2^y by its chord between whole numbers: exponent and mantissa written as one number.
Weights weigh(const LogitRow& row, const Survivors& s, float least, float below) {
  constexpr float SCALE = 1.44269504f * 0x1p23f, ONE = 127.0f * 0x1p23f;
  const float floor = floor_of(s);
  const int edge = s.last_id < 0 ? -1 : s.last_id / SCAN_BLOCK;  // the block where ids turn from kept to dropped
  Floats kept = {}, dropped = {};
  Block block;
  for (int b = 0; b < row.blocks(); b++) {
    const float top = row.block_max[b];
    if (!(s.d(top) >= floor) || top < least || top >= below) continue;
    const float* x = block.at(row, b);
    for (int l = 0; l < SCAN_BLOCK; l += WIDTH) {
      const Floats v = load(x + l), d = distances(s, v);
      Ints weight = whole<Ints>(clamp_exponent(d) * SCALE + ONE);
      if (s.d_min > -INF) weight &= d >= s.d_min;
      const Ints keep = b < edge   ? v >= s.last_logit
                        : b > edge ? v > s.last_logit
                                   : kept_lanes<false>(s, v, d, ascending() + (b * SCAN_BLOCK + l));
      kept = keep ? kept + bits_of<Floats>(weight) : kept;
      dropped = keep ? dropped : dropped + bits_of<Floats>(weight);
    }
  }
  Weights sum = {0.0f, 0.0f};
  for (int i = 0; i < WIDTH; i++) sum.kept += kept[i], sum.dropped += dropped[i];
  return sum;
}

inline int32_t bucket_of(float d) { return int32_t((d < MASS_FLOOR ? MASS_FLOOR : d) * -64.0f); }

void histogram(const LogitRow& row, const Survivors& s, uint64_t* buckets) {
  const float floor = floor_of(s);
  const Survivors all = {s.max, s.inv_temperature, s.d_min, -INF, INT32_MAX};
  Block block;
  for (int b = 0; b < row.blocks(); b++) {
    if (!(s.d(row.block_max[b]) >= floor)) continue;
    int32_t high[SCAN_BLOCK], low[SCAN_BLOCK], where[SCAN_BLOCK];
    const float* v = block.at(row, b);
    for (int l = 0; l < SCAN_BLOCK; l += WIDTH) {
      Ints h, w;
      masses<false>(all, load(v + l), Ints{}, h, w);
      store(high + l, h), store(low + l, w);
    }
    for (int l = 0; l < SCAN_BLOCK; l++) where[l] = bucket_of(s.d(v[l]));
    for (int l = 0; l < SCAN_BLOCK; l++)
      buckets[where[l]] += (uint64_t(uint32_t(high[l])) << MASS_LOW_BITS) + uint32_t(low[l]);
  }
}

int gather(const LogitRow& row, const Survivors& s, int bucket, int32_t* ids) {
  const float floor = floor_of(s);
  int count = 0;
  Block block;
  for (int b = 0; b < row.blocks(); b++) {
    const float top = s.d(row.block_max[b]);
    if (!(top >= floor) || bucket_of(top) > bucket) continue;
    const float* v = block.at(row, b);
    int32_t inside[SCAN_BLOCK], any = 0;
    for (int l = 0; l < SCAN_BLOCK; l++) inside[l] = (bucket_of(s.d(v[l])) == bucket) & (s.d(v[l]) >= floor);
    for (int l = 0; l < SCAN_BLOCK; l++) any |= inside[l];
    if (!any) continue;
    for (int l = 0; l < SCAN_BLOCK; l++)
      if (inside[l]) ids[count++] = b * SCAN_BLOCK + l;
  }
  return count;
}

// Words 0 and 1 of philox() of sampling_math.h for the 64 places from `begin` on.
void words_of(const NoiseKey& key, int begin, uint32_t level, uint32_t* word0, uint32_t* word1) {
  constexpr int PLACES = sizeof(Lanes) / 8;
  alignas(64) uint64_t wide0[SCAN_BLOCK], wide1[SCAN_BLOCK];
  const Lanes zero = {}, m0 = zero + 0xD2511F53, m1 = zero + 0xCD9E8D57;
  Lanes count;
  for (int i = 0; i < PLACES; i++) count[i] = uint64_t(i);
  for (int l = 0; l < SCAN_BLOCK; l += PLACES) {
    Lanes c0 = zero + key.index, c1 = count + uint64_t(begin + l), c2 = zero + key.purpose, c3 = zero + level;
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
    __builtin_memcpy(wide0 + l, &c0, sizeof c0);
    __builtin_memcpy(wide1 + l, &c1, sizeof c1);
  }
  for (int l = 0; l < SCAN_BLOCK; l++) word0[l] = uint32_t(wide0[l]), word1[l] = uint32_t(wide1[l]);
}

constexpr float SLACK = 0.001f;         // of bounds in floats against scores in doubles
constexpr float LN_GROUP = 4.158f;      // ln 64, from below: what a token's own noise is below noise_bound of its word
constexpr int DRAW_ALONE = 5;           // so many tokens are drawn one by one rather than a block at a time

// Draws the tokens of one group that could beat the best. words: philox() of the group.
void draw_group(const LogitRow& row, int group, Words words, const Survivors& s, const NoiseKey& key, Winner& best) {
  const int begin = group * SCAN_BLOCK;
  const float bar = float(best.score) - SLACK, bound = noise_bound(int32_t(words.w0));
  const int32_t holder = int32_t(words.w1 % SCAN_BLOCK);  // of the largest noise
  Block block;
  const float* v = block.at(row, group);
  int32_t lane[SCAN_BLOCK];
  for (int l = 0; l < SCAN_BLOCK; l += WIDTH) store(lane + l, distances(s, load(v + l)) + bound >= bar);
  uint64_t open = lanes_set(lane);
  if (__builtin_popcountll(open) > DRAW_ALONE) {
    uint32_t own[SCAN_BLOCK], unused[SCAN_BLOCK];
    words_of(key, begin, LEVEL_TOKEN, own, unused);
    for (int l = 0; l < SCAN_BLOCK; l += WIDTH) {
      const Floats most = noise_bound<Floats>(load_words(own + l)) - LN_GROUP;
      store(lane + l, distances(s, load(v + l)) + most >= bar);
    }
    open &= lanes_set(lane) | uint64_t(1) << holder;
  }
  for (; open; open &= open - 1) {
    const int l = __builtin_ctzll(open);
    const uint32_t token = uint32_t(begin + l);
    const float d = s.d(v[l]);
    if (!s.keeps(v[l], begin + l)) continue;
    const uint32_t own = l == holder ? 0 : own_word(key, token);
    if (l != holder && d + noise_bound(int32_t(own)) - LN_GROUP < bar) continue;
    const double score = double(d) + noise_of(words, token, own);
    if (score > best.score || (score == best.score && begin + l < best.id)) best = {score, begin + l};
  }
}

void draw(const LogitRow& row, const Survivors& s, const NoiseKey& key, Winner& best) {
  const int groups = row.blocks();
  uint32_t word0[MAX_VOCABULARY / SCAN_BLOCK], word1[MAX_VOCABULARY / SCAN_BLOCK];
  float high[MAX_VOCABULARY / SCAN_BLOCK];                  // the score that no token of a group exceeds
  float highest[MAX_VOCABULARY / SCAN_BLOCK / SCAN_BLOCK];  // of 64 groups
  float most = -INF;
  for (int begin = 0; begin < groups; begin += SCAN_BLOCK) {
    float top[SCAN_BLOCK];
    for (int l = 0; l < SCAN_BLOCK; l++) top[l] = begin + l < groups ? row.block_max[begin + l] : -INF;
    words_of(key, begin, LEVEL_GROUP, word0 + begin, word1 + begin);
    for (int l = 0; l < SCAN_BLOCK; l += WIDTH) {
      const Floats t = load(top + l), d = distances(s, t), none = Floats{} - INF;
      const Ints may = (d >= s.d_min) & (t >= s.last_logit);
      store(high + begin + l, may ? d + noise_bound<Floats>(load_words(word0 + begin + l)) : none);
    }
    const float here = largest(high + begin, SCAN_BLOCK);
    highest[begin / SCAN_BLOCK] = here;
    most = here > most ? here : most;
  }
  const auto visit = [&](int g) {
    if (high[g] >= float(best.score) - SLACK) draw_group(row, g, {word0[g], word1[g]}, s, key, best);
    high[g] = -INF;
  };
  const auto visit_best_of = [&](int begin) {
    int g = begin;
    while (high[g] != highest[begin / SCAN_BLOCK]) g++;
    visit(g);
  };
  // The likeliest winner first, then the likeliest of every 64 groups: few others are looked at then.
  int first = 0;
  while (highest[first] != most) first++;
  visit_best_of(first * SCAN_BLOCK);
  for (int begin = 0; begin < groups; begin += SCAN_BLOCK)
    if (begin != first * SCAN_BLOCK) visit_best_of(begin);
  int32_t open[MAX_VOCABULARY / SCAN_BLOCK], count = 0;
  for (int begin = 0; begin < groups; begin += SCAN_BLOCK) {
    const float bar = float(best.score) - SLACK;
    if (highest[begin / SCAN_BLOCK] < bar) continue;
    for (int g = begin; g < begin + SCAN_BLOCK; g++) {
      if (high[g] < bar) continue;
      open[count++] = g;
      for (int line = 0; line < SCAN_BLOCK; line += 16) __builtin_prefetch(row.place(g) + g * SCAN_BLOCK + line);
    }
  }
  for (int i = 0; i < count; i++) visit(open[i]);
}

}  // namespace

extern const SamplingKernels sampling_table;
const SamplingKernels sampling_table = {tops, pair_tops, count_from, mass, weigh, histogram, gather, draw};

}  // namespace octavo::OCTAVO_ISA_NAME
