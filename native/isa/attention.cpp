// Paged grouped-query attention of one instruction-set class. See ops.h for layouts and limits.
//
// Order of a row, whatever tile it travels in: scores are a chain over pairs of head dims; in each chunk of 128 indices
// the running maximum moves, then P V is a chain over pairs of tokens (i8: exact sums); each segment of 512 starts afresh
// and is merged into the earlier ones in order. What a row may not see is skipped or multiplied as P = 0 with V = 0: an
// exact no-op.
// The AMX class runs this file's AVX-512 code.
#include "ops.h"

#include "isa/lanes.h"
#include "isa/quantize.h"
#include "isa/segment.h"

namespace octavo::OCTAVO_ISA_NAME {

extern void attention(const AttentionArgs&, Task task, Task next, uint8_t* scratch);

namespace {

#if defined(__AVX512F__)
constexpr int BLOCK_Q = 4, BLOCK_V = 4;  // query vectors and 16-lane vectors held in registers
#else
constexpr int BLOCK_Q = 2, BLOCK_V = 2;
#endif
constexpr int LINE = 64;  // bytes of 16 words
constexpr float Q_LARGEST = 32767.0f, P_LARGEST = 32767.0f;  // of Q and P in whole numbers, over an i8 cache

// Two bf16, and one; the same bytes are written as the one and read as the other.
typedef uint32_t __attribute__((may_alias)) pair;
typedef uint16_t __attribute__((may_alias)) half;

// A task's working memory, carved out of the thread's scratch. Q vectors: by KV head, `vectors` of each: row-major,
// `group` of each row. [all]: of all its heads.
struct Work {
  int heads, vectors, all, group, d, padded_d, q_dims;
  pair* q;                  // [all][q_dims / 2] pairs: bf16 or int16
  float* q_scale;           // [all]: 1 for bf16
  float* s;                 // [vectors][128]
  pair* p;                  // [vectors][64] pairs: bf16 or int16
  float* p_scale;           // [vectors]: of int16
  float *o, *o_all;         // [all][padded_d]: this segment, the merged ones
  float *m, *l;             // [all]: running maximum (of scaled scores, base 2) and sum, this segment
  float *m_all, *l_all;
  int *first, *last;        // [rows]: visible indices [first, last)
  uint8_t *k_copy, *v_copy; // pages gathered for this chunk

  Softmax segment() const { return {o, m, l}; }
  Softmax earlier() const { return {o_all, m_all, l_all}; }
};

// A draft of a tree: its own path, deepest first; the path stands behind the `base` committed indices.
struct Path {
  int length, base;
};

inline uint8_t* carve(uint8_t*& at, size_t bytes) {
  uint8_t* begin = at;
  at += (bytes + 63) / 64 * 64;
  return begin;
}

inline Work carve_work(uint8_t* scratch, const CacheView& c, int group, int rows, int heads) {
  Work w;
  w.heads = heads, w.group = group, w.vectors = rows * group, w.all = heads * w.vectors;
  w.d = c.d, w.padded_d = padded_dims(c.d), w.q_dims = key_dims(c.d);
  const size_t n = w.all, vectors = w.vectors, padded_d = w.padded_d;
  w.q = reinterpret_cast<pair*>(carve(scratch, n * w.q_dims * 2));
  w.q_scale = reinterpret_cast<float*>(carve(scratch, n * 4));
  w.s = reinterpret_cast<float*>(carve(scratch, vectors * CHUNK_TOKENS * 4));
  w.p = reinterpret_cast<pair*>(carve(scratch, vectors * CHUNK_TOKENS * 2));
  w.p_scale = reinterpret_cast<float*>(carve(scratch, vectors * 4));
  w.o = reinterpret_cast<float*>(carve(scratch, n * padded_d * 4));
  w.o_all = reinterpret_cast<float*>(carve(scratch, n * padded_d * 4));
  w.m = reinterpret_cast<float*>(carve(scratch, n * 4));
  w.l = reinterpret_cast<float*>(carve(scratch, n * 4));
  w.m_all = reinterpret_cast<float*>(carve(scratch, n * 4));
  w.l_all = reinterpret_cast<float*>(carve(scratch, n * 4));
  w.first = reinterpret_cast<int*>(carve(scratch, rows * 4));
  w.last = reinterpret_cast<int*>(carve(scratch, rows * 4));
  w.k_copy = carve(scratch, CHUNK_PAGES * c.k_page);
  w.v_copy = carve(scratch, CHUNK_PAGES * c.v_page);
  return w;
}

// The same memory as one of its heads sees it.
inline Work of_head(const Work& w, int head) {
  Work own = w;
  const int first = head * w.vectors;
  own.q += static_cast<size_t>(first) * (w.q_dims / 2), own.q_scale += first;
  own.o += static_cast<size_t>(first) * w.padded_d, own.m += first, own.l += first;
  return own;
}

#include "attention_chunk.inl"

// Row of the step that holds the path's token at `depth` (1: child of the last committed token).
inline int path_row(const AttentionArgs& a, int row, const Path& path, int depth) {
  for (int up = path.length - depth; up > 0; --up) row = a.parent[row];
  return row;
}

// bf16 V of the tokens [first, last) of the page that starts at `begin`, the others zero, so that nothing invisible (it
// may be NaN) is multiplied. K and i8 V need no such care: what is invisible in K's lanes is replaced before it is used,
// and whole numbers are finite.
inline void cut_page(const Work& w, const uint8_t* from, int begin, int first, int last, uint8_t* to) {
  const auto* words = reinterpret_cast<const pair*>(from);
  auto* cut = reinterpret_cast<pair*>(to);
  for (int step = 0; step < PAGE_TOKENS / 2; ++step) {
    const int index = begin + 2 * step;
    const uint32_t low = index >= first && index < last ? 0xffffu : 0, high = index + 1 >= first && index + 1 < last ? ~0xffffu : 0;
    const uint32_t keep = low | high;
    for (int i = 0; i < w.padded_d; ++i) cut[step * w.padded_d + i] = words[step * w.padded_d + i] & keep;
  }
}

// The same page for a draft of a tree: K and V of each visible token from where it is stored, the others zero.
inline void gather_page(const AttentionArgs& a, const int32_t* table, int kv_head, int row, const Path& path, int begin,
                        int first, int last, uint8_t* k, uint8_t* v) {
  const CacheView& c = a.cache;
  __builtin_memset(k, 0, c.k_page);
  __builtin_memset(v, 0, c.v_page);
  for (int lane = 0; lane < PAGE_TOKENS; ++lane) {
    const int index = begin + lane;
    if (index < first || index >= last) continue;
    const int stored = index < path.base ? index : a.index[path_row(a, row, path, index - path.base + 1)];
    copy_entry(c.k_type, true, c.d, c.keys(table, stored, kv_head), stored % PAGE_TOKENS, k, lane);
    copy_entry(c.v_type, false, c.d, c.values(table, stored, kv_head), stored % PAGE_TOKENS, v, lane);
  }
}

// The pages of the chunk at `begin`, as far as `last`.
inline Stream chunk_stream(const CacheView& c, const int32_t* table, const Task& task, int begin, int last) {
  Stream stream;
  stream.bytes = c.pair_bytes() * task.heads;
  for (int at = begin; at < begin + CHUNK_TOKENS && at < last; at += PAGE_TOKENS) {
    stream.pages[stream.count++] = c.keys(table, at, task.kv_head);
  }
  return stream;
}

// Pages of the chunk at `begin` that hold indices of [first, last), the tile's visible range.
inline void chunk_pages(const AttentionArgs& a, const Work& w, const int32_t* table, int kv_head, int row,
                        const Path& path, int begin, int first, int last, Pages& pages) {
  const CacheView& c = a.cache;
  pages.count = 0;
  for (int at = begin; at < begin + CHUNK_TOKENS && at < last; at += PAGE_TOKENS, ++pages.count) {
    uint8_t *k_copy = w.k_copy + pages.count * c.k_page, *v_copy = w.v_copy + pages.count * c.v_page;
    if (last > path.base && at + PAGE_TOKENS > path.base) {
      gather_page(a, table, kv_head, row, path, at, first, last, k_copy, v_copy);
      pages.k[pages.count] = k_copy, pages.v[pages.count] = v_copy;
      continue;
    }
    pages.k[pages.count] = c.keys(table, at, kv_head), pages.v[pages.count] = c.values(table, at, kv_head);
    if (c.v_type == CacheType::I8 || (at >= first && at + PAGE_TOKENS <= last)) continue;
    cut_page(w, pages.v[pages.count], at, first, last, v_copy);
    pages.v[pages.count] = v_copy;
  }
}

// Visible indices [first, last) of a row that is no draft of a tree.
inline void visible(const AttentionArgs& a, int row, int* first, int* last) {
  *last = a.index[a.causal ? row : a.row_begin[a.request[row] + 1] - 1] + 1;
  *first = a.window > 0 && *last > a.window ? *last - a.window : 0;
}

struct Span {
  int begin, end;
};

// The segments of [first, last) that are this task's.
inline Span segments_of(const Task& task, int first, int last) {
  const int begin = first / SEGMENT_TOKENS, count = (last + SEGMENT_TOKENS - 1) / SEGMENT_TOKENS - begin;
  return {begin + count * task.part / task.parts, begin + count * (task.part + 1) / task.parts};
}

// What task `next` will read first.
inline Stream next_stream(const AttentionArgs& a, const Task& next) {
  if (next.tile < 0) return {};
  const Tile& tile = a.tiles[next.tile];
  int first, last;
  visible(a, tile.row, &first, &last);
  const int32_t* table = a.cache.table + static_cast<size_t>(tile.slot) * a.cache.max_blocks;
  const int chunk = first / CHUNK_TOKENS * CHUNK_TOKENS, segment = segments_of(next, first, last).begin * SEGMENT_TOKENS;
  return chunk_stream(a.cache, table, next, chunk > segment ? chunk : segment, last);
}

// The number of a task among those of all tiles, parts aside.
inline size_t task_number(const AttentionArgs& a, const Task& task) {
  const int of_tile = (a.cache.kv_heads + a.task_heads - 1) / a.task_heads;
  return static_cast<size_t>(task.tile) * of_tile + task.kv_head / a.task_heads;
}

// Where the result of a segment of a task in parts is kept: the same working memory with other places for O, m and l.
inline Work kept_segment(const AttentionArgs& a, const Work& w, const Task& task, int number) {
  Work kept = w;
  kept.o = a.partial + task_number(a, task) * a.task_floats + number * a.segment_floats;
  kept.m = kept.o + static_cast<size_t>(w.all) * w.padded_d;
  kept.l = kept.m + w.all;
  return kept;
}

// One head's query as bf16, or as whole numbers and a scale; zeros in [d, q_dims).
inline void load_query(const Work& w, CacheType type, const float* q, int vector) {
  auto* to = reinterpret_cast<half*>(w.q) + static_cast<size_t>(vector) * w.q_dims;
  w.q_scale[vector] = 1.0f;
  if (type == CacheType::BF16) {
    round_row(q, to, w.d);
  } else {
    const float top = magnitude(q, w.d);
    const vf factor = vset(top > 0.0f ? Q_LARGEST / top : 0.0f);
    w.q_scale[vector] = top * (1.0f / Q_LARGEST);
    for (int i = 0; i < w.d; i += LANES) {
      const int some = w.d - i < LANES ? w.d - i : LANES;
      half codes[LANES];
      vstore_i16(codes, vmul(some == LANES ? vload(q + i) : vload_n(q + i, some), factor));
      __builtin_memcpy(to + i, codes, some * sizeof(half));
    }
  }
  for (int i = w.d; i < w.q_dims; ++i) to[i] = 0;
}

inline void load_queries(const AttentionArgs& a, const Work& w, const Tile& tile, const Task& task) {
  for (int i = 0; i < w.all; ++i) {
    const int head = (task.kv_head + i / w.vectors) * w.group + i % w.group;
    load_query(w, a.cache.k_type, a.q + (static_cast<size_t>(tile.row + i % w.vectors / w.group) * a.heads + head) * w.d, i);
  }
}

// What the weights of a vector are multiplied by where a sink stands beside them: 1 / (l + 2^(sink - m)), all finite.
inline float share_beside(float sink, float m, float l) {
  const float logit = sink * LOG2E, top = m > logit ? m : logit;
  float lanes[LANES] = {m - top, logit - top};
  vstore(lanes, vexp2(vload(lanes)));
  return lanes[0] / (l * lanes[0] + lanes[1]);
}

// The only place where a row of the result is written, one query head after another.
inline void store_rows(const AttentionArgs& a, const Work& w, const Tile& tile, const Task& task) {
  for (int i = 0; i < w.all; ++i) {
    const int row = tile.row + i % w.vectors / w.group, head = (task.kv_head + i / w.vectors) * w.group + i % w.group;
    const size_t line = static_cast<size_t>(row) * a.ldo, at = line + head * w.d;
    float* o = w.o_all + static_cast<size_t>(i) * w.padded_d;
    const vf inverse = vset(a.sinks ? share_beside(a.sinks[head], w.m_all[i], w.l_all[i]) : 1.0f / w.l_all[i]);
    for (int j = 0; j < w.padded_d; j += LANES) vstore(o + j, vmul(vload(o + j), inverse));
    if (a.records) quantize_blocks(a.kind, o, w.d, a.records + line + head * w.d / BLOCK * record_bytes(a.kind));
    else if (a.out) __builtin_memcpy(a.out + at, o, w.d * 4);
    else round_row(o, a.out16 + at, w.d);
    if (a.out16 && head + 1 == a.heads) {
      for (int j = a.heads * w.d; j < a.ldo; ++j) a.out16[static_cast<size_t>(row) * a.ldo + j] = 0;
    }
  }
}

}  // namespace

void attention(const AttentionArgs& a, Task task, Task next, uint8_t* scratch) {
  const CacheView& c = a.cache;
  const Tile tile = a.tiles[task.tile];
  const Work w = carve_work(scratch, c, a.heads / c.kv_heads, tile.rows, task.heads);
  const int32_t* table = c.table + static_cast<size_t>(tile.slot) * c.max_blocks;

  Path path = {0, 0x7fffffff};
  if (a.parent[tile.row] >= 0) {
    int root = tile.row;
    for (; a.parent[root] >= 0; root = a.parent[root]) ++path.length;
    path.base = a.index[root] + 1;
  }
  int first = 0x7fffffff, last = 0;
  for (int r = 0; r < tile.rows; ++r) {
    visible(a, tile.row + r, &w.first[r], &w.last[r]);
    if (path.length) {
      w.last[r] = path.base + path.length;
      w.first[r] = a.window > 0 && w.last[r] > a.window ? w.last[r] - a.window : 0;
    }
    if (w.first[r] < first) first = w.first[r];
    if (w.last[r] > last) last = w.last[r];
  }
  load_queries(a, w, tile, task);
  for (int i = 0; i < w.all; ++i) w.m_all[i] = LOWEST, w.l_all[i] = 0.0f;
  const Span mine = segments_of(task, first, last);
  Pages pages;
  for (int segment = mine.begin; segment < mine.end; ++segment) {
    const Work own = task.parts == 1 ? w : kept_segment(a, w, task, segment - first / SEGMENT_TOKENS);
    const int stop = (segment + 1) * SEGMENT_TOKENS < last ? (segment + 1) * SEGMENT_TOKENS : last;
    start_segment(own.segment(), w.all, w.padded_d);
    for (int begin = segment * SEGMENT_TOKENS; begin < stop; begin += CHUNK_TOKENS) {
      const int after = begin + CHUNK_TOKENS;
      if (after <= first) continue;
      const bool goes_on = !path.length && (after < stop || segment + 1 < mine.end);
      Stream stream = goes_on ? chunk_stream(c, table, task, after, last) : next_stream(a, next);
      for (int head = 0; head < task.heads; ++head) {
        chunk_pages(a, w, table, task.kv_head + head, tile.row, path, begin, first, last, pages);
        run_chunk(a, of_head(own, head), pages, begin, stream);
      }
    }
    if (task.parts == 1) merge_segment(w.earlier(), own.segment(), w.all, w.padded_d);
  }
  if (task.parts > 1) {
    int32_t* arrived = a.arrived + task_number(a, task);
    if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) < task.parts) return;
    __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);
    for (int i = first / SEGMENT_TOKENS; i * SEGMENT_TOKENS < last; ++i) {
      const Work kept = kept_segment(a, w, task, i - first / SEGMENT_TOKENS);
      merge_segment(w.earlier(), kept.segment(), w.all, w.padded_d);
    }
  }
  store_rows(a, w, tile, task);
}

}  // namespace octavo::OCTAVO_ISA_NAME
