// The block formats of files: what one block holds, and its repacking without loss into the logical kinds of
// weights/kinds.py. Blocks never straddle rows, so all of it runs over flat sequences of blocks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "linear.h"

namespace octavo {

// Where blocks are unpacked to, as weights/kinds.py lays a Tensor out; null where the format has no such part.
struct BlockArrays {
  uint8_t *data, *scale, *bias, *super_scale, *super_bias;
};

// `elements` in `bytes` of a file. group, offset, scale, has_bias (in the scale's code): as in LogicalTensor.
// Float formats (group 0) are held as bf16, rounded to nearest even where they are wider.
struct BlockFormat {
  const char* name;
  WeightKind kind;
  int elements, bytes, group, offset;
  ScaleCode scale;
  bool has_bias;
  void (*unpack)(const uint8_t* src, size_t blocks, const BlockArrays& out);

  // Bytes that one block takes in each part of BlockArrays.
  size_t data_bytes() const {
    if (kind == WeightKind::BF16) return 2 * elements;
    return has_nibbles(kind) && !plane_bits(kind) ? elements / 2 : elements;
  }
  size_t scale_bytes() const { return group ? elements / group * octavo::scale_bytes(scale) : 0; }
  size_t super_bytes() const { return two_level() ? 2 : 0; }
  bool two_level() const { return is_two_level(scale); }
};

// Null for a name that is not a format.
const BlockFormat* block_format(std::string_view name);

}  // namespace octavo
