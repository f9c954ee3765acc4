// The byte stream of a packed panel: PANEL output channels, all columns. Written by linear.cpp, read by native/isa.
//
// A block is 32 columns (16 pairs of columns) of 32 channels; lane l of half h is channel 16 h + l. Halves alternate line
// by line, so that the whole panel is one ascending stream: hardware prefetchers lose two interleaved ones.
//   bf16  [pair 16][half 2][lane 16][2] uint16      2,048 bytes
//   i8    [eight columns][first, last four][half 2][lane 16][4] int8    1,024 bytes; the eight stand as 0 4 1 5, 2 6 3 7
//   u4    [pair / 4][half 2][lane 16] uint32          512 bytes; bits 4 j hold the even column of pair 4 z + j, bits
//                                                   16 + 4 j the odd one: as bytes, low nibbles before high, the same order
//   f32   [column][channel] float, no blocks
// Groups of 16 columns have blocks of 8 pairs. Expanded blocks of i8 and u4 are laid out as bf16. i8 and u4 carry their scales in the stream:
//   f16        per group [scale 64 B][bias 64 B, if any][blocks]
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
  int per_super;        // groups under one super scale; 0 when not two-level
  size_t block_bytes;   // as stored
  size_t group_stride;  // distance of groups (f16) or of superblocks (two-level)
  size_t panel_bytes;
};

static inline bool is_grouped(WeightKind kind) { return kind == WeightKind::I8 || kind == WeightKind::U4; }

static inline PanelGeometry panel_geometry(WeightKind kind, int n, int group, bool two_level, bool has_bias) {
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
  g.block_bytes = (size_t)g.pairs * (kind == WeightKind::I8 ? 64 : 32);
  const size_t data = g.blocks * g.block_bytes;
  if (two_level) {
    g.per_super = SUPER_GROUP / group;
    g.group_stride = sides * 64 + g.per_super * (sides * PANEL + data);
    g.panel_bytes = (size_t)(n / SUPER_GROUP) * g.group_stride;
  } else {
    g.group_stride = sides * 64 + data;
    g.panel_bytes = g.groups * g.group_stride;
  }
  return g;
}

static inline PanelGeometry panel_geometry(const PackedLinear& w) {
  return panel_geometry(w.kind, w.n, w.group, w.two_level != 0, w.has_bias != 0);
}

// Where the parts of one group lie. super_* are null unless two-level, bias null unless there is one.
template <class Byte>
struct GroupParts {
  Byte *super_scale, *super_bias, *scale, *bias, *blocks;
};

template <class Byte>
static inline GroupParts<Byte> group_parts(const PanelGeometry& g, bool has_bias, Byte* panel, int group) {
  GroupParts<Byte> at{};
  const size_t sides = has_bias ? 2 : 1;
  if (g.per_super) {
    Byte* base = panel + (size_t)(group / g.per_super) * g.group_stride;
    const int j = group % g.per_super;
    at.super_scale = base;
    at.super_bias = has_bias ? base + 64 : nullptr;
    base += sides * 64;
    at.scale = base + (size_t)j * PANEL;
    at.bias = has_bias ? at.scale + (size_t)g.per_super * PANEL : nullptr;
    at.blocks = base + sides * g.per_super * PANEL + (size_t)j * g.blocks * g.block_bytes;
    return at;
  }
  at.scale = panel + (size_t)group * g.group_stride;
  at.bias = has_bias ? at.scale + 64 : nullptr;
  at.blocks = at.scale + sides * 64;
  return at;
}

}  // namespace octavo
