// The byte stream of a packed panel: PANEL output channels, all columns. Written by linear.cpp, read by native/isa.
//
// A block is 32 columns (16 pairs of columns) of 32 channels; lane l of half h is channel 16 h + l. Halves alternate line
// by line, so that the whole panel is one ascending stream: hardware prefetchers lose two interleaved ones.
//   bf16  [pair 16][half 2][lane 16][2] uint16      2,048 bytes
//   i8    [eight columns][first, last four][half 2][lane 16][4] int8    1,024 bytes; the eight stand as 0 4 1 5, 2 6 3 7
//   u4    [pair / 4][half 2][lane 16] uint32          512 bytes; bits 4 j hold the even column of pair 4 z + j, bits
//                                                   16 + 4 j the odd one: as bytes, low nibbles before high, the same order
//   u5, u6  the nibbles as u4, then a plane of the bits above them: [quad / 8 or / 4][half 2][lane 16][4] bytes, whose bit
//         k, or bits 2 k, are those of quad k; a quad is the four columns that an i8 line has of a channel
//   nl4, fp4  as u4; fp8  as i8
//   f32   [column][channel] float, no blocks
// Groups of 16 columns have blocks of 8 pairs. Expanded blocks are laid out as bf16. All but bf16 and f32 carry their scales in the stream:
//   f16, f32   per group [scale 64 or 128 B][bias 64 B, if any][blocks]
//   e8m0       per two groups [scale 32 B a group][blocks of both]; the last one may stand alone
//   two-level  per 256 columns [super scale 64 B][super bias 64 B, if any][scale 32 B a group][bias 32 B a group, if any]
//              [blocks of all its groups]
// Internal linkage throughout: this header is also compiled once per instruction-set class.
#pragma once
#include "linear.h"

namespace octavo {

constexpr int SUPER_GROUP = 256;
constexpr int HALF = PANEL / 2;

struct PanelGeometry {
  int groups;           // groups of columns (1 for bf16 and f32)
  int pairs;            // column pairs of one block: 16, or 8 for groups of 16
  int blocks;           // blocks of one group
  int bundle;           // groups whose scales stand together; 0 when each has its own before its blocks
  size_t super_bytes;   // of super scales before those
  size_t block_bytes;   // as stored
  size_t scale_bytes;   // of one group
  size_t group_stride;  // distance of groups, or of bundles
  size_t panel_bytes;
};

static inline PanelGeometry panel_geometry(WeightKind kind, int n, int group, ScaleCode code, bool has_bias) {
  PanelGeometry g{};
  const size_t sides = has_bias ? 2 : 1;
  if (!is_grouped(kind)) {
    const int columns = (n + K_ALIGN - 1) / K_ALIGN * K_ALIGN;
    g.groups = 1;
    g.pairs = 16;
    g.blocks = columns / 32;
    g.block_bytes = kind == WeightKind::BF16 ? 2048 : 4096;
    g.panel_bytes = g.blocks * g.block_bytes;
    g.group_stride = g.panel_bytes;
    return g;
  }
  g.groups = n / group;
  g.pairs = group == 16 ? 8 : 16;
  g.blocks = (group + 31) / 32;
  g.block_bytes = (size_t)g.pairs * (has_nibbles(kind) ? 32 + 8 * plane_bits(kind) : 64);
  g.scale_bytes = (size_t)PANEL * scale_bytes(code);
  const size_t data = g.blocks * g.block_bytes;
  if (is_two_level(code)) {
    g.bundle = SUPER_GROUP / group;
    g.super_bytes = sides * 64;
    g.group_stride = g.super_bytes + g.bundle * (sides * PANEL + data);
    g.panel_bytes = (size_t)(n / SUPER_GROUP) * g.group_stride;
  } else if (code == ScaleCode::E8M0) {
    g.bundle = 2;
    g.group_stride = 2 * (PANEL + data);
    g.panel_bytes = g.groups / 2 * g.group_stride + (g.groups % 2 ? 2 * PANEL + data : 0);
  } else {
    g.group_stride = g.scale_bytes + (has_bias ? 64 : 0) + data;
    g.panel_bytes = g.groups * g.group_stride;
  }
  return g;
}

static inline PanelGeometry panel_geometry(const PackedLinear& w) {
  return panel_geometry(w.kind, w.n, w.group, w.scale_code, w.has_bias != 0);
}

// Where the parts of one group lie. super_* are null unless two-level, bias null unless there is one (ZERO: f16).
template <class Byte>
struct GroupParts {
  Byte *super_scale, *super_bias, *scale, *bias, *blocks;
};

template <class Byte>
static inline GroupParts<Byte> group_parts(const PanelGeometry& g, bool has_bias, Byte* panel, int group) {
  GroupParts<Byte> at{};
  if (g.bundle) {
    Byte* base = panel + (size_t)(group / g.bundle) * g.group_stride;
    const int j = group % g.bundle;
    at.super_scale = g.super_bytes ? base : nullptr;
    at.super_bias = g.super_bytes && has_bias ? base + 64 : nullptr;
    base += g.super_bytes;
    at.scale = base + (size_t)j * PANEL;
    at.bias = has_bias ? at.scale + (size_t)g.bundle * PANEL : nullptr;
    at.blocks = base + (has_bias ? 2 : 1) * g.bundle * PANEL + (size_t)j * g.blocks * g.block_bytes;
    return at;
  }
  at.scale = panel + (size_t)group * g.group_stride;
  at.bias = has_bias ? at.scale + g.scale_bytes : nullptr;
  at.blocks = at.scale + g.scale_bytes + (has_bias ? 64 : 0);
  return at;
}

}  // namespace octavo
