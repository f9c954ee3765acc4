// Where keys and values live: blocks of pages. The one place that knows what is inside a block.
//
// A block holds, per layer, [16 tokens][KV head][page of keys, page of values]: what is read together lies together. A page
// is words of 4 bytes, 16 to a line:
//   keys    [word of dims][16 tokens]         a word: 2 dims in bf16, 4 in i8
//   values  [word of tokens][padded d]        a word: 2 tokens in bf16, 4 in i8
// In an i8 word the items 0 1 2 3 are the bytes 0 2 1 3, so that its even and its odd bytes are neighbours. An i8 page
// ends with a line of 16 f32 scales, one a token: value = code * scale. padded d: a multiple of 16. Dims of a key in
// [d, key_dims) are 0.
// Functions here have no linkage: native/isa compiles them once more per instruction-set class.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace octavo {

constexpr int PAGE_TOKENS = 16;

enum class CacheType : int32_t { BF16 = 0, I8 = 1 };

static constexpr int element_bytes(CacheType type) { return type == CacheType::BF16 ? 2 : 1; }
static constexpr int padded_dims(int d) { return (d + 15) / 16 * 16; }
static constexpr int key_dims(int d) { return (d + 3) / 4 * 4; }  // whole words of either type
static constexpr size_t page_bytes(CacheType type, int d) {
  const size_t bytes = static_cast<size_t>(PAGE_TOKENS) * padded_dims(d) * element_bytes(type);
  return type == CacheType::I8 ? bytes + PAGE_TOKENS * sizeof(float) : bytes;
}
static constexpr size_t scales_at(int d) { return static_cast<size_t>(PAGE_TOKENS) * padded_dims(d); }  // in an i8 page

// Byte of element `e` of the token in lane `lane` of a page.
static constexpr size_t element_at(CacheType type, bool keys, int d, int lane, int e) {
  const int item = keys ? e : lane, per_word = 4 / element_bytes(type);
  const size_t word = keys ? static_cast<size_t>(item / per_word) * PAGE_TOKENS + lane
                           : static_cast<size_t>(item / per_word) * padded_dims(d) + e;
  return word * 4 + (type == CacheType::BF16 ? item % 2 * 2 : item % 2 * 2 + item % 4 / 2);
}

// One token of a page as bytes in a row: its elements, key_dims of them or d, and the scale of an i8 page.
static constexpr size_t entry_bytes(CacheType type, int d) {
  return static_cast<size_t>(key_dims(d)) * element_bytes(type) + (type == CacheType::I8 ? sizeof(float) : 0);
}

static inline void read_entry(CacheType type, bool keys, int d, const uint8_t* page, int lane, uint8_t* entry) {
  const int size = element_bytes(type), count = keys ? key_dims(d) : d;
  for (int e = 0; e < count; ++e) std::memcpy(entry + e * size, page + element_at(type, keys, d, lane, e), size);
  if (type == CacheType::I8) std::memcpy(entry + key_dims(d), page + scales_at(d) + lane * sizeof(float), sizeof(float));
}

static inline void write_entry(CacheType type, bool keys, int d, uint8_t* page, int lane, const uint8_t* entry) {
  const int size = element_bytes(type), count = keys ? key_dims(d) : d;
  for (int e = 0; e < count; ++e) std::memcpy(page + element_at(type, keys, d, lane, e), entry + e * size, size);
  if (type == CacheType::I8) std::memcpy(page + scales_at(d) + lane * sizeof(float), entry + key_dims(d), sizeof(float));
}

static inline void copy_entry(CacheType type, bool keys, int d, const uint8_t* page, int lane, uint8_t* to, int to_lane) {
  const int size = element_bytes(type), count = keys ? key_dims(d) : d;
  for (int e = 0; e < count; ++e) {
    std::memcpy(to + element_at(type, keys, d, to_lane, e), page + element_at(type, keys, d, lane, e), size);
  }
  if (type == CacheType::I8) std::memcpy(to + scales_at(d) + to_lane * 4, page + scales_at(d) + lane * 4, sizeof(float));
}

// The caches of one layer.
struct CacheView {
  uint8_t* base;
  size_t block_bytes, offset, k_page, v_page;  // bytes: of a block, to the layer in it, of a page
  CacheType k_type, v_type;
  int32_t kv_heads, d, block_tokens;
  const int32_t* table;  // [slots][max_blocks] of the group
  int32_t max_blocks;

  __attribute__((always_inline)) size_t pair_bytes() const { return k_page + v_page; }
  __attribute__((always_inline)) uint8_t* keys(const int32_t* slot_table, int index, int kv_head) const {
    const size_t page = static_cast<size_t>(index % block_tokens / PAGE_TOKENS) * kv_heads + kv_head;
    return base + slot_table[index / block_tokens] * block_bytes + offset + page * pair_bytes();
  }
  __attribute__((always_inline)) uint8_t* values(const int32_t* slot_table, int index, int kv_head) const {
    return keys(slot_table, index, kv_head) + k_page;
  }
};

}  // namespace octavo
