// What calibration runs of each instruction-set class: one reading loop, and its products at full throughput.
//
// Nothing here computes a value that a model sees.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

// F32: fused multiply-adds. BF16, INT8: the class's vector products. *_TILE: products of AMX tiles.
enum class Product : int32_t { F32 = 0, BF16 = 1, INT8 = 2, BF16_TILE = 3, INT8_TILE = 4 };
constexpr int PRODUCTS = 5;
constexpr int STREAMS = 4;       // read side by side: one alone leaves a fifth of the bandwidth unused on some processors
constexpr int READ_ALIGN = 512;  // bytes of one turn of the reading loop in each stream

struct CalibrationKernels {
  // Reads `bytes`, a multiple of READ_ALIGN, of each of STREAMS streams. The value depends on all of what was read.
  uint64_t (*read)(const uint8_t* const* from, size_t bytes);
  // `rounds` rounds of independent products on registers; operations done, a multiply-add counted as 2. Null: none.
  double (*products[PRODUCTS])(int64_t rounds);
};

}  // namespace octavo
