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

typedef uint32_t __attribute__((may_alias)) word;
typedef uint16_t __attribute__((may_alias)) half;

// Codes of dims [begin, begin + n) of one token into its page. Keys: whole words, so that the last one may hold zeros.
template <CacheType T>
inline void spread(const uint16_t* codes, bool keys, int d, int lane, int begin, int n, uint8_t* page) {
  if (keys) {
    auto* words = reinterpret_cast<word*>(page + element_at(T, true, d, lane, begin));
    for (int i = 0; i < n; i += 4, words += T == CacheType::BF16 ? 2 * PAGE_TOKENS : PAGE_TOKENS) {
      const uint32_t low = codes[i] | static_cast<uint32_t>(codes[i + 1]) << 16;
      const uint32_t high = codes[i + 2] | static_cast<uint32_t>(codes[i + 3]) << 16;
      if (T == CacheType::BF16) words[0] = low, words[PAGE_TOKENS] = high;
      else words[0] = (low & 0x00ff00ff) | (high & 0x00ff00ff) << 8;
    }
    return;
  }
  uint8_t* at = page + element_at(T, false, d, lane, begin);
  for (int i = 0; i < n; ++i, at += sizeof(word)) {
    if (T == CacheType::BF16) *reinterpret_cast<half*>(at) = codes[i];
    else *at = static_cast<uint8_t>(codes[i]);
  }
}

template <CacheType T>
inline void write_head(const float* x, bool keys, int d, int lane, uint8_t* page) {
  vf divisor{};
  if (T == CacheType::I8) {
    const float top = magnitude(x, d), scale = (top < LEAST ? LEAST : top) / 127.0f;
    *reinterpret_cast<float*>(page + scales_at(d) + lane * sizeof(float)) = scale;
    divisor = vset(scale);
  }
  for (int begin = 0; begin < d; begin += AT_ONCE) {
    uint16_t codes[AT_ONCE] = {0};
    const int n = d - begin < AT_ONCE ? d - begin : AT_ONCE;
    if (T == CacheType::BF16) {
      round_row(x + begin, codes, n);
    } else {
      for (int i = 0; i < n; i += LANES) {
        const vf some = n - i < LANES ? vload_n(x + begin + i, n - i) : vload(x + begin + i);
        vstore_i16(codes + i, vdiv(some, divisor));
      }
    }
    spread<T>(codes, keys, d, lane, begin, n, page);
  }
}

inline void write_head(CacheType type, const float* x, bool keys, int d, int lane, uint8_t* page) {
  if (type == CacheType::BF16) write_head<CacheType::BF16>(x, keys, d, lane, page);
  else write_head<CacheType::I8>(x, keys, d, lane, page);
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
