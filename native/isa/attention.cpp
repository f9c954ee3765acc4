// Paged grouped-query attention of one instruction-set class. See ops.h for layouts and limits.
//
// Order of a row, whatever tile it travels in: scores are a chain over pairs of head dims; in each chunk of 128 indices
// the running maximum moves, then P V is a chain over pairs of tokens; each segment of 512 starts afresh and is merged
// into the earlier ones in order. What a row may not see is skipped or multiplied as P = 0 with V = 0: an exact no-op.
// The AMX class runs this file's AVX-512 code.
#include "ops.h"

#include "isa/lanes.h"

namespace octavo::OCTAVO_ISA_NAME {

extern void attention(const AttentionArgs&, Task task, Task next, uint8_t* scratch);

namespace {

#if defined(__AVX512F__)
constexpr int BLOCK_Q = 4, BLOCK_V = 4;  // query vectors and 16-lane vectors held in registers
#else
constexpr int BLOCK_Q = 2, BLOCK_V = 2;
#endif

// Two bf16, and one; the same bytes are written as the one and read as the other.
typedef uint32_t __attribute__((may_alias)) pair;
typedef uint16_t __attribute__((may_alias)) half;

// One tile's working memory, carved out of the thread's scratch. Q vectors: row-major, `group` of each row.
struct Work {
  int vectors, group, d, padded_d;
  pair* q;          // [vectors][d / 2] pairs
  float* s;             // [vectors][128]
  pair* p;          // [vectors][64] pairs
  float *o, *o_all;     // [vectors][padded_d]: this segment, the merged ones
  float *m, *l;         // [vectors]: running maximum (of scaled scores, base 2) and sum, this segment
  float *m_all, *l_all;
  int *first, *last;    // [rows]: visible indices [first, last)
  uint16_t *k_copy, *v_copy;  // pages gathered for this chunk
};

// The pages of one chunk: where to read K and V, and the K that will be read after it (null: nothing to fetch).
struct Pages {
  const pair* k[CHUNK_PAGES];
  const pair* v[CHUNK_PAGES];
  const pair* next_k[CHUNK_PAGES];
  int count;
};

// A draft of a tree: its own path, deepest first; the path stands behind the `base` committed indices.
struct Path {
  int length, base;
};

// Into the second cache: the first is full of what this chunk is using.
inline void fetch_line(const void* p) { __builtin_prefetch(p, 0, 2); }

inline uint8_t* carve(uint8_t*& at, size_t bytes) {
  uint8_t* begin = at;
  at += (bytes + 63) / 64 * 64;
  return begin;
}

inline Work carve_work(uint8_t* scratch, int d, int padded_d, int group, int rows) {
  Work w;
  const size_t n = static_cast<size_t>(rows) * group;
  w.vectors = static_cast<int>(n), w.group = group, w.d = d, w.padded_d = padded_d;
  w.q = reinterpret_cast<pair*>(carve(scratch, n * d * 2));
  w.s = reinterpret_cast<float*>(carve(scratch, n * CHUNK_TOKENS * 4));
  w.p = reinterpret_cast<pair*>(carve(scratch, n * CHUNK_TOKENS * 2));
  w.o = reinterpret_cast<float*>(carve(scratch, n * padded_d * 4));
  w.o_all = reinterpret_cast<float*>(carve(scratch, n * padded_d * 4));
  w.m = reinterpret_cast<float*>(carve(scratch, n * 4));
  w.l = reinterpret_cast<float*>(carve(scratch, n * 4));
  w.m_all = reinterpret_cast<float*>(carve(scratch, n * 4));
  w.l_all = reinterpret_cast<float*>(carve(scratch, n * 4));
  w.first = reinterpret_cast<int*>(carve(scratch, rows * 4));
  w.last = reinterpret_cast<int*>(carve(scratch, rows * 4));
  w.k_copy = reinterpret_cast<half*>(carve(scratch, CHUNK_PAGES * 32 * padded_d));
  w.v_copy = reinterpret_cast<half*>(carve(scratch, CHUNK_PAGES * 32 * padded_d));
  return w;
}

inline const uint8_t* page_at(const CacheView& c, const int32_t* table, int index, int kv_head) {
  const size_t page = static_cast<size_t>(index % c.block_tokens / PAGE_TOKENS) * c.kv_heads + kv_head;
  return c.base + table[index / c.block_tokens] * c.block_bytes + page * c.page_bytes;
}

// Row of the step that holds the path's token at `depth` (1: child of the last committed token).
inline int path_row(const AttentionArgs& a, int row, const Path& path, int depth) {
  for (int up = path.length - depth; up > 0; --up) row = a.parent[row];
  return row;
}

// V of the tokens [first, last) of the page that starts at `begin`, the others zero, so that nothing invisible (it may
// be NaN) is multiplied. K needs no such care: what is invisible in its lanes is replaced before it is used.
inline void cut_page(const Work& w, const pair* from, int begin, int first, int last, pair* to) {
  for (int step = 0; step < PAGE_TOKENS / 2; ++step) {
    const int index = begin + 2 * step;
    const uint32_t low = index >= first && index < last ? 0xffffu : 0, high = index + 1 >= first && index + 1 < last ? ~0xffffu : 0;
    const uint32_t keep = low | high;
    for (int i = 0; i < w.padded_d; ++i) to[step * w.padded_d + i] = from[step * w.padded_d + i] & keep;
  }
}

// The same page for a draft of a tree: K and V of each visible token from where it is stored.
inline void gather_page(const AttentionArgs& a, const int32_t* table, int kv_head, int row, const Path& path, int begin,
                        int first, int last, half* k, half* v) {
  const CacheView& c = a.cache;
  __builtin_memset(k, 0, c.page_bytes);
  __builtin_memset(v, 0, c.page_bytes);
  for (int lane = 0; lane < PAGE_TOKENS; ++lane) {
    const int index = begin + lane;
    if (index < first || index >= last) continue;
    const int stored = index < path.base ? index : a.index[path_row(a, row, path, index - path.base + 1)];
    const int from = stored % PAGE_TOKENS;
    const uint8_t* page = page_at(c, table, stored, kv_head);
    const auto* k_from = reinterpret_cast<const half*>(page + c.k_offset) + from * 2;
    const auto* v_from = reinterpret_cast<const half*>(page + c.v_offset) + from / 2 * c.padded_d * 2 + from % 2;
    half *k_to = k + lane * 2, *v_to = v + lane / 2 * c.padded_d * 2 + lane % 2;
    for (int i = 0; i < c.d; i += 2) {
      k_to[i * PAGE_TOKENS] = k_from[i * PAGE_TOKENS];
      k_to[i * PAGE_TOKENS + 1] = k_from[i * PAGE_TOKENS + 1];
    }
    for (int i = 0; i < c.d; ++i) v_to[i * 2] = v_from[i * 2];
  }
}

// Addresses of the K pages of the chunk at `begin`, as far as `last`; null beyond.
inline void chunk_keys(const CacheView& c, const int32_t* table, int kv_head, int begin, int last, const pair** k) {
  for (int i = 0, at = begin; i < CHUNK_PAGES; ++i, at += PAGE_TOKENS) {
    k[i] = at < last ? reinterpret_cast<const pair*>(page_at(c, table, at, kv_head) + c.k_offset) : nullptr;
  }
}

// Pages of the chunk at `begin` that hold indices of [first, last), the tile's visible range.
inline void chunk_pages(const AttentionArgs& a, const Work& w, const int32_t* table, int kv_head, int row,
                        const Path& path, int begin, int first, int last, Pages& pages) {
  const CacheView& c = a.cache;
  pages.count = 0;
  for (int at = begin; at < begin + CHUNK_TOKENS && at < last; at += PAGE_TOKENS, ++pages.count) {
    const size_t copy = pages.count * (c.page_bytes / 2);
    if (last > path.base && at + PAGE_TOKENS > path.base) {
      gather_page(a, table, kv_head, row, path, at, first, last, w.k_copy + copy, w.v_copy + copy);
      pages.k[pages.count] = reinterpret_cast<const pair*>(w.k_copy + copy);
      pages.v[pages.count] = reinterpret_cast<const pair*>(w.v_copy + copy);
      continue;
    }
    const uint8_t* page = page_at(c, table, at, kv_head);
    pages.k[pages.count] = reinterpret_cast<const pair*>(page + c.k_offset);
    pages.v[pages.count] = reinterpret_cast<const pair*>(page + c.v_offset);
    if (at >= first && at + PAGE_TOKENS <= last) continue;
    auto* cut = reinterpret_cast<pair*>(w.v_copy + copy);
    cut_page(w, pages.v[pages.count], at, first, last, cut);
    pages.v[pages.count] = cut;
  }
}

template <int Q, int P>
inline void score_block(const Work& w, const Pages& pages, int vector, int page) {
  const bool fetch = vector == 0;
  vf acc[Q][P];
  const uint32_t *q[Q], *k[P];
  for (int i = 0; i < Q; ++i) q[i] = w.q + static_cast<size_t>(vector + i) * (w.d / 2);
  for (int j = 0; j < P; ++j) k[j] = pages.k[page + j];
  for (int i = 0; i < Q; ++i)
    for (int j = 0; j < P; ++j) acc[i][j] = vset(0.0f);
  for (int step = 0; step < w.d / 2; ++step) {
    vp keys[P];
    for (int j = 0; j < P; ++j) keys[j] = pload(k[j] + step * PAGE_TOKENS);
    if (fetch) {  // V of these pages, a line a step: it is wanted right after the scores
      for (int j = 0; j < P; ++j) fetch_line(pages.v[page + j] + step * PAGE_TOKENS);
    }
    for (int i = 0; i < Q; ++i) {
      const vp query = pset(q[i][step]);
      for (int j = 0; j < P; ++j) acc[i][j] = dp(acc[i][j], query, keys[j]);
    }
  }
  for (int i = 0; i < Q; ++i)
    for (int j = 0; j < P; ++j) vstore(w.s + (vector + i) * CHUNK_TOKENS + (page + j) * PAGE_TOKENS, acc[i][j]);
}

template <int Q>
inline void score_vectors(const Work& w, const Pages& pages, int vector) {
  int page = 0;
  for (; page + BLOCK_V <= pages.count; page += BLOCK_V) score_block<Q, BLOCK_V>(w, pages, vector, page);
  for (; page + 2 <= pages.count; page += 2) score_block<Q, 2>(w, pages, vector, page);
  if (page < pages.count) score_block<Q, 1>(w, pages, vector, page);
}

template <int Q, int V>
inline void value_block(const Work& w, const Pages& pages, int vector, int at) {
  vf acc[Q][V];
  const pair* p[Q];
  for (int i = 0; i < Q; ++i) {
    p[i] = w.p + (vector + i) * (CHUNK_TOKENS / 2);
    for (int j = 0; j < V; ++j) acc[i][j] = vload(w.o + (vector + i) * w.padded_d + at + j * LANES);
  }
  for (int page = 0; page < pages.count; ++page) {
    const pair* v = pages.v[page] + at;
    const pair* ahead = vector == 0 && at == 0 ? pages.next_k[page] : nullptr;
    for (int step = 0; step < PAGE_TOKENS / 2; ++step) {
      vp values[V];
      for (int j = 0; j < V; ++j) values[j] = pload(v + step * w.padded_d + j * LANES);
      if (ahead) {  // K of the chunk to come, spread over this one
        for (int i = 0; i < w.padded_d; i += LANES) fetch_line(ahead + step * w.padded_d + i);
      }
      for (int i = 0; i < Q; ++i) {
        const vp weight = pset(p[i][page * (PAGE_TOKENS / 2) + step]);
        for (int j = 0; j < V; ++j) acc[i][j] = dp(acc[i][j], weight, values[j]);
      }
    }
  }
  for (int i = 0; i < Q; ++i)
    for (int j = 0; j < V; ++j) vstore(w.o + (vector + i) * w.padded_d + at + j * LANES, acc[i][j]);
}

template <int Q>
inline void value_vectors(const Work& w, const Pages& pages, int vector) {
  int at = 0;
  for (; at + BLOCK_V * LANES <= w.padded_d; at += BLOCK_V * LANES) value_block<Q, BLOCK_V>(w, pages, vector, at);
  for (; at + 2 * LANES <= w.padded_d; at += 2 * LANES) value_block<Q, 2>(w, pages, vector, at);
  if (at < w.padded_d) value_block<Q, 1>(w, pages, vector, at);
}

// Scores of one vector -> P in bf16 and the segment's running maximum and sum; lanes [first, last) are visible.
inline void soften(const Work& w, int vector, int pages, int first, int last, float scale) {
  const float* s = w.s + vector * CHUNK_TOKENS;
  auto* p = reinterpret_cast<half*>(w.p + vector * (CHUNK_TOKENS / 2));
  if (first >= last) {
    __builtin_memset(p, 0, pages * PAGE_TOKENS * 2);
    return;
  }
  vf x[CHUNK_PAGES];
  vf top = vset(LOWEST);
  for (int i = 0; i < pages; ++i) {
    x[i] = vmul(vload(s + i * LANES), vset(scale));
    if (first > i * LANES || last < (i + 1) * LANES) x[i] = vkeep(x[i], first - i * LANES, last - i * LANES, vset(LOWEST));
    top = vmax(top, x[i]);
  }
  const float chunk_top = vmaximum(top), old = w.m[vector];
  const float now = old > chunk_top ? old : chunk_top;
  vf sum = vset(0.0f);
  for (int i = 0; i < pages; ++i) {
    vf y = vexp2(vsub(x[i], vset(now)));
    if (first > i * LANES || last < (i + 1) * LANES) y = vkeep(y, first - i * LANES, last - i * LANES, vset(0.0f));
    sum = vadd(sum, y);
    vstore_bf16(p + i * LANES, y);
  }
  if (old != now) {
    // The first visible chunk of a segment starts from O = 0 and l = 0: any factor leaves them.
    const vf factor = vexp2(vset(old - now));
    float one[LANES];
    vstore(one, factor);
    w.l[vector] = w.l[vector] * one[0];
    float* o = w.o + vector * w.padded_d;
    for (int i = 0; i < w.padded_d; i += LANES) vstore(o + i, vmul(vload(o + i), factor));
  }
  w.m[vector] = now;
  w.l[vector] = w.l[vector] + vsum(sum);
}

inline void run_chunk(const AttentionArgs& a, const Work& w, const Pages& pages, int begin) {
  const float scale = a.scale * LOG2E;
  int vector = 0;
  for (; vector + BLOCK_Q <= w.vectors; vector += BLOCK_Q) score_vectors<BLOCK_Q>(w, pages, vector);
  if (BLOCK_Q > 3 && vector + 3 <= w.vectors) score_vectors<3>(w, pages, vector), vector += 3;
  if (vector + 2 <= w.vectors) score_vectors<2>(w, pages, vector), vector += 2;
  if (vector < w.vectors) score_vectors<1>(w, pages, vector);
  for (vector = 0; vector < w.vectors; ++vector) {
    const int row = vector / w.group;
    soften(w, vector, pages.count, w.first[row] - begin, w.last[row] - begin, scale);
  }
  for (vector = 0; vector + BLOCK_Q <= w.vectors; vector += BLOCK_Q) value_vectors<BLOCK_Q>(w, pages, vector);
  if (BLOCK_Q > 3 && vector + 3 <= w.vectors) value_vectors<3>(w, pages, vector), vector += 3;
  if (vector + 2 <= w.vectors) value_vectors<2>(w, pages, vector), vector += 2;
  if (vector < w.vectors) value_vectors<1>(w, pages, vector);
}

inline void start_segment(const Work& w) {
  __builtin_memset(w.o, 0, static_cast<size_t>(w.vectors) * w.padded_d * 4);
  for (int i = 0; i < w.vectors; ++i) w.m[i] = LOWEST, w.l[i] = 0.0f;
}

// Adds the segment to the earlier ones. A vector that saw nothing in it is left as it was.
inline void merge_segment(const Work& w) {
  for (int i = 0; i < w.vectors; ++i) {
    if (w.l[i] == 0.0f) continue;
    float *all = w.o_all + i * w.padded_d, *o = w.o + i * w.padded_d;
    if (w.l_all[i] == 0.0f) {
      __builtin_memcpy(all, o, w.padded_d * 4);
      w.m_all[i] = w.m[i], w.l_all[i] = w.l[i];
      continue;
    }
    const float top = w.m_all[i] > w.m[i] ? w.m_all[i] : w.m[i];
    float lanes[LANES] = {w.m_all[i] - top, w.m[i] - top};
    vstore(lanes, vexp2(vload(lanes)));
    const vf old = vset(lanes[0]), add = vset(lanes[1]);
    for (int j = 0; j < w.padded_d; j += LANES) vstore(all + j, vadd(vmul(vload(all + j), old), vmul(vload(o + j), add)));
    w.m_all[i] = top;
    w.l_all[i] = w.l_all[i] * lanes[0] + w.l[i] * lanes[1];
  }
}

// Visible indices [first, last) of a row that is no draft of a tree.
inline void visible(const AttentionArgs& a, int row, int* first, int* last) {
  *last = a.index[row] + 1;
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

// The first K that task `next` will read.
inline void next_keys(const AttentionArgs& a, const Task& next, const pair** k) {
  for (int i = 0; i < CHUNK_PAGES; ++i) k[i] = nullptr;
  if (next.tile < 0) return;
  const Tile& tile = a.tiles[next.tile];
  int first, last;
  visible(a, tile.row, &first, &last);
  const int32_t* table = a.cache.table + static_cast<size_t>(tile.slot) * a.cache.max_blocks;
  const int chunk = first / CHUNK_TOKENS * CHUNK_TOKENS, segment = segments_of(next, first, last).begin * SEGMENT_TOKENS;
  chunk_keys(a.cache, table, next.kv_head, chunk > segment ? chunk : segment, last, k);
}

// Where the result of a segment of a task in parts is kept: the same working memory with other places for O, m and l.
inline Work kept_segment(const AttentionArgs& a, const Work& w, const Task& task, int number) {
  const size_t base = static_cast<size_t>(task.tile) * a.cache.kv_heads + task.kv_head;
  Work kept = w;
  kept.o = a.partial + base * a.task_floats + number * a.segment_floats;
  kept.m = kept.o + static_cast<size_t>(w.vectors) * w.padded_d;
  kept.l = kept.m + w.vectors;
  return kept;
}

inline void load_queries(const AttentionArgs& a, const Work& w, const Tile& tile, int kv_head) {
  const int width = w.group * w.d;
  for (int r = 0; r < tile.rows; ++r) {
    const float* q = a.q + (static_cast<size_t>(tile.row + r) * a.heads + kv_head * w.group) * w.d;
    half* to = reinterpret_cast<half*>(w.q) + static_cast<size_t>(r) * width;
    int i = 0;
    for (; i + LANES <= width; i += LANES) vstore_bf16(to + i, vload(q + i));
    for (; i < width; ++i) to[i] = to_bf16(q[i]);
  }
}

inline void store_rows(const AttentionArgs& a, const Work& w, const Tile& tile, int kv_head) {
  const bool end = kv_head + 1 == a.cache.kv_heads;
  for (int i = 0; i < w.vectors; ++i) {
    const size_t at = static_cast<size_t>(tile.row + i / w.group) * a.ldo + (kv_head * w.group + i % w.group) * w.d;
    float* o = w.o_all + i * w.padded_d;
    const vf inverse = vset(1.0f / w.l_all[i]);
    for (int j = 0; j < w.padded_d; j += LANES) vstore(o + j, vmul(vload(o + j), inverse));
    if (a.out) __builtin_memcpy(a.out + at, o, w.d * 4);
    else round_row(o, a.out16 + at, w.d);
  }
  if (a.out16 && end) {
    for (int r = 0; r < tile.rows; ++r)
      for (int j = a.heads * w.d; j < a.ldo; ++j) a.out16[static_cast<size_t>(tile.row + r) * a.ldo + j] = 0;
  }
}

}  // namespace

void attention(const AttentionArgs& a, Task task, Task next, uint8_t* scratch) {
  const CacheView& c = a.cache;
  const Tile tile = a.tiles[task.tile];
  const Work w = carve_work(scratch, c.d, c.padded_d, a.heads / c.kv_heads, tile.rows);
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
  load_queries(a, w, tile, task.kv_head);
  for (int i = 0; i < w.vectors; ++i) w.m_all[i] = LOWEST, w.l_all[i] = 0.0f;
  const Span mine = segments_of(task, first, last);
  Pages pages;
  for (int segment = mine.begin; segment < mine.end; ++segment) {
    const Work own = task.parts == 1 ? w : kept_segment(a, w, task, segment - first / SEGMENT_TOKENS);
    const int stop = (segment + 1) * SEGMENT_TOKENS < last ? (segment + 1) * SEGMENT_TOKENS : last;
    start_segment(own);
    for (int begin = segment * SEGMENT_TOKENS; begin < stop; begin += CHUNK_TOKENS) {
      if (begin + CHUNK_TOKENS <= first) continue;
      chunk_pages(a, w, table, task.kv_head, tile.row, path, begin, first, last, pages);
      const int after = begin + CHUNK_TOKENS;
      if (after < stop && !path.length) chunk_keys(c, table, task.kv_head, after, last, pages.next_k);
      else next_keys(a, next, pages.next_k);
      run_chunk(a, own, pages, begin);
    }
    if (task.parts == 1) merge_segment(own);
  }
  if (task.parts > 1) {
    int32_t* arrived = a.arrived + task.tile * c.kv_heads + task.kv_head;
    if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) < task.parts) return;
    __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);
    for (int i = first / SEGMENT_TOKENS; i * SEGMENT_TOKENS < last; ++i) {
      merge_segment(kept_segment(a, w, task, i - first / SEGMENT_TOKENS));
    }
  }
  store_rows(a, w, tile, task.kv_head);
}

}  // namespace octavo::OCTAVO_ISA_NAME
