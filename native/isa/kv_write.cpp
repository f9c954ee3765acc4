// New keys and values into their pages, of one instruction-set class. See cache.h for the layout.
//
// i8: x / scale to the nearest whole number, ties to even; scale = max |x| / 127 over the dims of one token and KV head,
// or not a number where some x is not finite, so that whoever reads it sees that.
#include "header.h"
#include "isa/lanes.h"
#include "ops.h"

namespace octavo::OCTAVO_ISA_NAME {

extern void kv_write(const KVWriteArgs&, int row_begin, int row_end);

namespace {

constexpr int AT_ONCE = 64;         // dims of a head that are rounded before they are spread over the page
constexpr float LEAST = 0x1p-100f;  // of max |x|: what is smaller is stored as 0

typedef uint16_t __attribute__((may_alias)) half;

// Stores element e of the token for e in [begin, begin + n), from 16-bit codes.
template <class Element>
inline void spread(const uint16_t* codes, CacheType type, bool keys, int d, int lane, int begin, int n, uint8_t* page) {
  for (int i = 0; i < n; ++i) {
    *reinterpret_cast<Element*>(page + element_at(type, keys, d, lane, begin + i)) = static_cast<Element>(codes[i]);
  }
}

inline void write_bf16(const float* x, bool keys, int d, int lane, uint8_t* page) {
  uint16_t codes[AT_ONCE];
  for (int begin = 0; begin < d; begin += AT_ONCE) {
    const int n = d - begin < AT_ONCE ? d - begin : AT_ONCE;
    round_row(x + begin, codes, n);
    spread<half>(codes, CacheType::BF16, keys, d, lane, begin, n, page);
  }
}

inline void write_i8(const float* x, bool keys, int d, int lane, uint8_t* page) {
  const float top = magnitude(x, d);
  const float scale = (top < LEAST ? LEAST : top) / 127.0f;
  const vf divisor = vset(scale);
  uint16_t codes[AT_ONCE];
  for (int begin = 0; begin < d; begin += AT_ONCE) {
    const int n = d - begin < AT_ONCE ? d - begin : AT_ONCE;
    for (int i = 0; i < n; i += LANES) {
      const int some = n - i < LANES ? n - i : LANES;
      vstore_i16(codes + i, vdiv(some == LANES ? vload(x + begin + i) : vload_n(x + begin + i, some), divisor));
    }
    spread<uint8_t>(codes, CacheType::I8, keys, d, lane, begin, n, page);
  }
  *reinterpret_cast<float*>(page + scales_at(d) + lane * sizeof(float)) = scale;
}

inline void write_head(CacheType type, const float* x, bool keys, int d, int lane, uint8_t* page) {
  if (type == CacheType::BF16) write_bf16(x, keys, d, lane, page);
  else write_i8(x, keys, d, lane, page);
  for (int e = d; keys && e < key_dims(d); ++e) {
    uint8_t* pad = page + element_at(type, keys, d, lane, e);
    if (type == CacheType::BF16) *reinterpret_cast<half*>(pad) = 0;
    else *pad = 0;
  }
}

}  // namespace

void kv_write(const KVWriteArgs& a, int row_begin, int row_end) {
  const CacheView& c = a.cache;
  for (int row = row_begin; row < row_end; ++row) {
    if (a.flags[row] & FLAG_NO_WRITE) continue;
    const int index = a.index[row], lane = index % PAGE_TOKENS;
    const int32_t* table = c.table + static_cast<size_t>(a.slot[a.request[row]]) * c.max_blocks;
    for (int h = 0; h < c.kv_heads; ++h) {
      const size_t at = (static_cast<size_t>(row) * c.kv_heads + h) * c.d;
      write_head(c.k_type, a.k + at, true, c.d, lane, c.keys(table, index, h));
      write_head(c.v_type, a.v + at, false, c.d, lane, c.values(table, index, h));
    }
  }
}

}  // namespace octavo::OCTAVO_ISA_NAME
