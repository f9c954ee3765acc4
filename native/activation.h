// What linears eat: the kinds of quantized activations and the bytes of a row.
//
//   BF16    [columns] uint16, padded with zeros to a multiple of 32
//   others  one record per 32 columns: one or two planes of 32 int8, then a BlockSide. Integers v stand for v * scale.
//           I8G32: v, |v| <= 127. I15, I15G32: v = 128 high + low, |v| <= 16383, the plane of the high parts
//           (-128 .. 127) before that of the low ones (0 .. 127).
//           I8ROW: |v| <= 127, in two planes as well. I8X: magnitudes below OUTLIER have |v| <= 127, those above more.
//           I15Q: I15G32 for the quarter of a row's blocks with the largest magnitudes; the others are light: v = 128 h,
//           |h| <= 127, so that their low plane is zero.
//           scale: of the block, or (I15, I8ROW, I8X) of the whole row, the same in each of its records.
// In a plane columns stand as in the stream of packed weights (panel.h): each eight as 0 4 1 5 2 6 3 7.
// Internal linkage throughout: this header is also compiled once per instruction-set class.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

constexpr int BLOCK = 32;  // columns of one record

enum class ActKind : int32_t { BF16 = 0, I15 = 1, I8G32 = 2, I15G32 = 3, I8ROW = 4, I8X = 5, I15Q = 6 };
constexpr float OUTLIER = 6.0f;

// Sums of the integers of a block: over all its columns, over the first 16 and over the last 16.
struct BlockSide {
  int32_t minus_sum[3];  // negated
  float scale;
  float sum[3];
  int32_t light;  // I15Q: 1 where the low plane is zero throughout; else 0
};

constexpr int act_planes(ActKind kind) { return kind == ActKind::I8G32 ? 1 : 2; }
constexpr bool act_row_scale(ActKind kind) {
  return kind == ActKind::I15 || kind == ActKind::I8ROW || kind == ActKind::I8X;
}
// I15Q: of so many blocks at a time (the last ones of a row may be fewer) a quarter, rounded up, are not light; more where
// magnitudes are equal.
constexpr int STRETCH = 512, HEAVY_OF = 4;
constexpr int record_bytes(ActKind kind) { return act_planes(kind) * BLOCK + (int)sizeof(BlockSide); }
// Bytes of one element of a row's distance `ld`: bf16 counts columns, the others bytes.
constexpr int act_element(ActKind kind) { return kind == ActKind::BF16 ? 2 : 1; }

// Where column k of each eight stands.
constexpr int plane_position(int k) { return k / 8 * 8 + (k & 3) * 2 + (k >> 2 & 1); }

}  // namespace octavo
