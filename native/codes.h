// What the nibbles of weights with a table stand for.
// Internal linkage throughout: this header is also compiled once per instruction-set class.
#pragma once
#include <cstdint>

namespace octavo {

constexpr int8_t NL4_TABLE[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t FP4_TABLE[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice e2m1

}  // namespace octavo
