// Reading and products at the full throughput of one instruction-set class: the roofs that operators are held against.
#include "calibrate.h"

#include "isa/lanes.h"

namespace octavo::OCTAVO_ISA_NAME {

extern const CalibrationKernels calibration_table;

namespace {

typedef uint64_t line __attribute__((vector_size(64), may_alias));

// Values that the compiler knows nothing of.
template <class T>
OCTAVO_INLINE void hide(T& x) {
  asm volatile("" : : "r"(&x) : "memory");
}

uint64_t read(const uint8_t* const* from, size_t bytes) {
  line sum[4] = {};
  for (size_t i = 0; i < bytes; i += READ_ALIGN) {
#pragma GCC unroll 4
    for (int s = 0; s < STREAMS; ++s) {
      const auto* at = reinterpret_cast<const line*>(from[s] + i);
#pragma GCC unroll 8
      for (size_t k = 0; k < READ_ALIGN / sizeof(line); ++k) sum[k % 4] |= at[k];
    }
  }
  const line all = sum[0] | sum[1] | sum[2] | sum[3];
  uint64_t out = 0;
  for (int i = 0; i < 8; ++i) out |= all[i];
  return out;
}

#if defined(__AVX512F__)
constexpr int CHAINS = 12;  // latency times throughput, within the registers
#else
constexpr int CHAINS = 6;
#endif

double f32_products(int64_t rounds) {
  vf x = vset(1e-3f), y = vset(1e-3f), sum[CHAINS];
  for (vf& s : sum) s = vset(1.0f);
  hide(x), hide(y);
  const vf a = x, b = y;
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < CHAINS; ++k) sum[k] = vfma(a, b, sum[k]);
  }
  hide(sum);
  return static_cast<double>(rounds) * CHAINS * LANES * 2;
}

#if defined(__AVX512F__)

double bf16_products(int64_t rounds) {
  vp x = pset(0x3a833a83), y = x;
  vf sum[CHAINS];
  for (vf& s : sum) s = vset(1.0f);
  hide(x), hide(y);
  const vp a = x, b = y;
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < CHAINS; ++k) sum[k] = dp(sum[k], a, b);
  }
  hide(sum);
  return static_cast<double>(rounds) * CHAINS * LANES * 4;
}

double int8_products(int64_t rounds) {
  __m512i x = _mm512_set1_epi32(0x01010101), y = x, sum[CHAINS];
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  hide(x), hide(y);
  const __m512i a = x, b = y;
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < CHAINS; ++k) sum[k] = _mm512_dpbusd_epi32(sum[k], a, b);
  }
  hide(sum);
  return static_cast<double>(rounds) * CHAINS * 64 * 2;
}

#elif defined(__AVX2__)

double int8_products(int64_t rounds) {
  __m256i x = _mm256_set1_epi32(0x01010101), y = x, ones = _mm256_set1_epi16(1), sum[8];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  hide(x), hide(y), hide(ones);
  __m256i a = x;
  const __m256i b = y, one = ones;
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+x"(a));  // else the products would be taken out of the loop
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      __m256i both = _mm256_maddubs_epi16(a, b);
      asm volatile("" : "+x"(both));
      sum[k] = _mm256_add_epi32(sum[k], _mm256_madd_epi16(both, one));
    }
  }
  hide(sum);
  return static_cast<double>(rounds) * 8 * 32 * 2;
}

#else

double int8_products(int64_t rounds) {
  constexpr int COUNT = 1024;
  int8_t x[COUNT], y[COUNT];
  for (int k = 0; k < COUNT; ++k) x[k] = static_cast<int8_t>(k), y[k] = static_cast<int8_t>(3 * k);
  for (int64_t i = 0; i < rounds; ++i) {
    int32_t sum = 0;
    hide(x), hide(y);
    for (int k = 0; k < COUNT; ++k) sum += x[k] * y[k];
    hide(sum);
  }
  return static_cast<double>(rounds) * COUNT * 2;
}

#endif

#if defined(OCTAVO_ISA_amx)

struct alignas(64) TileShapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t colsb[16];
  uint8_t rows[16];
};

// Eight full tiles, 4 to 7 of them filled from `data`.
void open_tiles(const uint8_t* data) {
  TileShapes shapes;
  __builtin_memset(&shapes, 0, sizeof shapes);
  shapes.palette = 1;
  for (int t = 0; t < 8; ++t) shapes.rows[t] = 16, shapes.colsb[t] = 64;
  asm volatile("" ::"r"(&shapes) : "memory");  // without it gcc 12 drops the stores to shapes
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, data, 64);
  _tile_loadd(5, data, 64);
  _tile_loadd(6, data, 64);
  _tile_loadd(7, data, 64);
}

double bf16_tile_products(int64_t rounds) {
  alignas(64) uint8_t data[1024] = {};
  hide(data);
  open_tiles(data);
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return static_cast<double>(rounds) * 4 * 16 * 16 * 32 * 2;
}

double int8_tile_products(int64_t rounds) {
  alignas(64) uint8_t data[1024] = {};
  hide(data);
  open_tiles(data);
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
  return static_cast<double>(rounds) * 4 * 16 * 16 * 64 * 2;
}

#endif

}  // namespace

#if defined(OCTAVO_ISA_amx)
const CalibrationKernels calibration_table = {
    read, {f32_products, bf16_products, int8_products, bf16_tile_products, int8_tile_products}};
#elif defined(__AVX512F__)
const CalibrationKernels calibration_table = {read, {f32_products, bf16_products, int8_products, nullptr, nullptr}};
#else
const CalibrationKernels calibration_table = {read, {f32_products, nullptr, int8_products, nullptr, nullptr}};
#endif

}  // namespace octavo::OCTAVO_ISA_NAME
