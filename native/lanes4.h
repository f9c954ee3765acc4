// Four rows of bytes side by side, 32 bits at a time: what packing into panels is made of. Moves and nibbles only, in the
// vectors that every processor has; internal linkage.
#pragma once
#include <cstdint>
#include <cstring>

namespace octavo {

typedef uint32_t Lanes4 __attribute__((vector_size(16)));
typedef uint8_t Bytes16 __attribute__((vector_size(16)));

static inline Lanes4 load_lanes(const uint8_t* from) {
  Lanes4 v;
  std::memcpy(&v, from, 16);
  return v;
}

static inline void store_lanes(uint8_t* to, Lanes4 v) { std::memcpy(to, &v, 16); }

// lane r of column[j] is word j of row r.
static inline void transpose(const Lanes4 row[4], Lanes4 column[4]) {
  const Lanes4 low01 = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
  const Lanes4 high01 = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
  const Lanes4 low23 = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
  const Lanes4 high23 = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
  column[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
  column[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
  column[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
  column[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

// Of eight nibbles, element 2j the low half of byte j: elements 0, 2, 4, 6 in the lower 16 bits, 1, 3, 5, 7 in the upper.
static inline Lanes4 part_nibbles(Lanes4 v) {
  Lanes4 even = v & 0x0F0F0F0F, odd = v >> 4 & 0x0F0F0F0F;
  even = (even | even >> 4) & 0x00FF00FF;
  odd = (odd | odd >> 4) & 0x00FF00FF;
  return ((even | even >> 8) & 0xFFFF) | odd << 16 | (odd << 8 & 0xFF000000);
}

// Eight bytes of each lane, four in `first` and four in `last`, as 0 4 1 5 and 2 6 3 7.
static inline void weave(Lanes4 first, Lanes4 last, Lanes4 out[2]) {
  const Bytes16 a = (Bytes16)first, b = (Bytes16)last;
  const Lanes4 low = (Lanes4)__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const Lanes4 high = (Lanes4)__builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  out[0] = __builtin_shufflevector(low, high, 0, 2, 4, 6);
  out[1] = __builtin_shufflevector(low, high, 1, 3, 5, 7);
}

}  // namespace octavo
