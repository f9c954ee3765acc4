// Attention over latents of one instruction-set class. See latent.h.
//
// Lanes are query vectors: rows times heads of one task. A key is met dim pair by dim pair, as one word for all lanes; a
// value, which is the beginning of a key, token pair by token pair, so that nothing is stored twice.
// Order of a row, whatever it travels with: a score is a chain over pairs of dims; in each chunk of 128 places the running
// maximum moves, then P V is a chain over pairs of places; each segment of 512 places starts afresh and is merged into the
// earlier ones in order. A place that a lane may not see has P = 0: an exact no-op.
#include "latent.h"

#include "header.h"
#include "isa/latent_lanes.h"
#include "isa/segment.h"

namespace octavo::OCTAVO_ISA_NAME {

extern const LatentKernels LATENT;

namespace {

#if defined(__AVX512F__)
constexpr int BLOCK_TOKENS = 8, BLOCK_LANES = 2;   // scores held in registers: keys, vectors of lanes
constexpr int BLOCK_Q = 4, BLOCK_V = 4;            // sums held in registers: query vectors, vectors of dims
#else
constexpr int BLOCK_TOKENS = 4, BLOCK_LANES = 1;
constexpr int BLOCK_Q = 2, BLOCK_V = 2;
#endif
constexpr int VALUE_DIMS = 64;  // of values that are woven into pairs of tokens at a time
constexpr float FAR = 1e30f;    // what takes an invisible score out of the maximum, a place
constexpr float EVERY = 1e9f;   // places seen by a lane that sees all of its list
constexpr float LEAST = 0x1p-100f;
constexpr int LINE = 64;

typedef uint32_t __attribute__((may_alias)) pair;
typedef uint16_t __attribute__((may_alias)) half;

inline uint8_t* carve(uint8_t*& at, size_t bytes) {
  uint8_t* begin = at;
  at += (bytes + LINE - 1) / LINE * LINE;
  return begin;
}

// A task's working memory, carved out of the thread's scratch.
struct Work {
  int lanes, d, values;
  pair* q;             // [d / 2][lanes] pairs of dims
  float* s;            // [128][lanes]
  pair* p;             // [64][lanes] pairs of places
  pair* v;             // [64][VALUE_DIMS] pairs of places
  float *o, *o_all;    // [lanes][values]: this segment, the merged ones
  float *m, *l;        // [lanes]: running maximum (of scaled scores, base 2) and sum, this segment
  float *m_all, *l_all;
  float* sees;         // [lanes]: places that the lane sees
  half *zeros, *wide;  // a row of zeros; 128 rows of codes as bf16
  const half** rows;   // [128 + BLOCK_TOKENS]: keys of the chunk, then zeros

  Softmax segment() const { return {o, m, l}; }
  Softmax earlier() const { return {o_all, m_all, l_all}; }
};

inline Work carve_work(uint8_t* scratch, int d, int values, int vectors) {
  Work w;
  w.lanes = (vectors + LANES - 1) / LANES * LANES, w.d = d, w.values = values;
  const size_t lanes = w.lanes;
  w.q = reinterpret_cast<pair*>(carve(scratch, lanes * d * 2));
  w.s = reinterpret_cast<float*>(carve(scratch, lanes * (CHUNK_TOKENS + BLOCK_TOKENS) * 4));
  w.p = reinterpret_cast<pair*>(carve(scratch, lanes * CHUNK_TOKENS * 2));
  w.v = reinterpret_cast<pair*>(carve(scratch, CHUNK_TOKENS / 2 * VALUE_DIMS * 4));
  w.o = reinterpret_cast<float*>(carve(scratch, lanes * values * 4));
  w.o_all = reinterpret_cast<float*>(carve(scratch, lanes * values * 4));
  w.m = reinterpret_cast<float*>(carve(scratch, lanes * 4));
  w.l = reinterpret_cast<float*>(carve(scratch, lanes * 4));
  w.m_all = reinterpret_cast<float*>(carve(scratch, lanes * 4));
  w.l_all = reinterpret_cast<float*>(carve(scratch, lanes * 4));
  w.sees = reinterpret_cast<float*>(carve(scratch, lanes * 4));
  w.zeros = reinterpret_cast<half*>(carve(scratch, d * 2));
  w.wide = reinterpret_cast<half*>(carve(scratch, static_cast<size_t>(CHUNK_TOKENS) * d * 2));
  w.rows = reinterpret_cast<const half**>(carve(scratch, (CHUNK_TOKENS + BLOCK_TOKENS) * sizeof(half*)));
  __builtin_memset(w.zeros, 0, d * 2);
  return w;
}

// Where the places of a row are stored: its own list, or everything, and behind `base` the path of a draft.
struct Order {
  const LatentView& cache;
  const int32_t *table, *chosen, *index, *parent;
  int row, base, count;

  Order(const LatentView& cache, const int32_t* slot_table, const int32_t* chosen, int top_k, const int32_t* index,
        const int32_t* parent, int row, int last_row)
      : cache(cache), table(slot_table), chosen(chosen), index(index), parent(parent), row(row) {
    int root = row;
    while (parent[root] >= 0) root = parent[root];
    base = parent[row] >= 0 ? index[root] + 1 : 0x7fffffff;
    count = places_of(index, parent, last_row);
    if (!chosen) return;
    count = count < top_k ? count : top_k;
    while (count > 0 && chosen[count - 1] < 0) --count;
  }

  const uint8_t* key(int place) const {
    if (chosen) place = chosen[place];
    if (place < base) return cache.row(table, place);
    int at = row;
    for (int up = places_of(index, parent, row) - 1 - place; up > 0; --up) at = parent[at];
    return cache.row(table, index[at]);
  }
};

// w.rows of the places [begin, begin + n), in bf16, and zeros up to whole blocks and pairs.
inline void gather(const Work& w, const Order& order, int begin, int n) {
  const LatentView& c = order.cache;
  for (int i = 0; i < n; ++i) {
    const uint8_t* key = order.key(begin + i);
    if (c.type == CacheType::BF16) {
      w.rows[i] = reinterpret_cast<const half*>(key);
      continue;
    }
    half* to = w.wide + static_cast<size_t>(i) * c.d;
    for (int g = 0; g < c.d / c.group; ++g) {
      float scale;
      __builtin_memcpy(&scale, key + c.d + g * sizeof(float), sizeof scale);
      for (int j = g * c.group; j < (g + 1) * c.group; j += LANES) {
        vstore_bf16(to + j, vmul(vload_i8(reinterpret_cast<const int8_t*>(key) + j), vset(scale)));
      }
    }
    w.rows[i] = to;
  }
  for (int i = n; i < CHUNK_TOKENS + BLOCK_TOKENS; ++i) w.rows[i] = w.zeros;
}

// Lines of the keys that come after this chunk, fetched while this one is scored.
inline void fetch(const Order& order, int place) {
  if (place >= order.count) return;
  const uint8_t* key = order.key(place);
  for (size_t at = 0; at < order.cache.entry_bytes; at += LINE) __builtin_prefetch(key + at, 0, 2);
}

// ---- scores: w.s[place][lane] = q . k

template <int V>
inline void score_block(const Work& w, int lane, int first) {
  vf acc[BLOCK_TOKENS][V];
  const pair* keys[BLOCK_TOKENS];
  for (int t = 0; t < BLOCK_TOKENS; ++t) {
    keys[t] = reinterpret_cast<const pair*>(w.rows[first + t]);
    for (int v = 0; v < V; ++v) acc[t][v] = vset(0.0f);
  }
  const pair* q = w.q + lane;
  for (int word = 0; word < w.d / 2; ++word, q += w.lanes) {
    vp query[V];
    for (int v = 0; v < V; ++v) query[v] = pload(q + v * LANES);
    for (int t = 0; t < BLOCK_TOKENS; ++t) {
      const vp key = pset(keys[t][word]);
      for (int v = 0; v < V; ++v) acc[t][v] = dp(acc[t][v], query[v], key);
    }
  }
  for (int t = 0; t < BLOCK_TOKENS; ++t)
    for (int v = 0; v < V; ++v) vstore(w.s + static_cast<size_t>(first + t) * w.lanes + lane + v * LANES, acc[t][v]);
}

// The keys of the next chunk are fetched beside those of this one.
inline void score_chunk(const Work& w, const Order& order, int begin, int n) {
  for (int first = 0; first < n; first += BLOCK_TOKENS) {
    for (int t = 0; t < BLOCK_TOKENS; ++t) fetch(order, begin + CHUNK_TOKENS + first + t);
    int lane = 0;
    for (; lane + BLOCK_LANES * LANES <= w.lanes; lane += BLOCK_LANES * LANES) score_block<BLOCK_LANES>(w, lane, first);
    if (lane < w.lanes) score_block<1>(w, lane, first);
  }
}

// ---- softmax: scores -> P and the segment's running maximum and sum

// One vector of lanes. all: every lane sees every place of the chunk. Returns factors that O is still to be multiplied by.
inline vf soften(const Work& w, int lane, int begin, int n, float scale, bool all) {
  const vf sees = vload(w.sees + lane), old = vload(w.m + lane);
  vf top = old;
  for (int t = 0; t < n; ++t) {
    float* s = w.s + static_cast<size_t>(t) * w.lanes + lane;
    vf x = vmul(vload(s), vset(scale));
    if (!all) x = vadd(x, vmul(vmin(vsub(sees, vset(begin + t + 0.5f)), vset(0.0f)), vset(FAR)));
    vstore(s, x);
    top = vmax(x, top);
  }
  vf sum = vset(0.0f);
  for (int t = 0; t < n; t += 2) {
    vf p[2] = {vset(0.0f), vset(0.0f)};
    for (int i = 0; i < 2 && t + i < n; ++i) {
      p[i] = vexp2(vsub(vload(w.s + static_cast<size_t>(t + i) * w.lanes + lane), top));
      if (!all) p[i] = vmul(p[i], vmin(vmax(vsub(sees, vset(begin + t + i)), vset(0.0f)), vset(1.0f)));
      sum = vadd(sum, p[i]);
    }
    pstore(w.p + static_cast<size_t>(t / 2) * w.lanes + lane, vpair(p[0], p[1]));
  }
  const vf factor = vexp2(vsub(old, top));
  vstore(w.l + lane, vadd(vmul(vload(w.l + lane), factor), sum));
  vstore(w.m + lane, top);
  return factor;
}

inline void soften_chunk(const Work& w, int begin, int n, float scale, bool all) {
  for (int lane = 0; lane < w.lanes; lane += LANES) {
    float factors[LANES];
    vstore(factors, soften(w, lane, begin, n, scale, all));
    for (int i = 0; i < LANES; ++i) {
      if (factors[i] == 1.0f) continue;
      float* o = w.o + static_cast<size_t>(lane + i) * w.values;
      for (int j = 0; j < w.values; j += LANES) vstore(o + j, vmul(vload(o + j), vset(factors[i])));
    }
  }
}

// ---- P V: w.o[lane] += P V of the chunk

template <int V>
inline void value_block(const Work& w, int vector, int pairs, int at, int column) {
  vf acc[BLOCK_Q][V];
  float* o = w.o + static_cast<size_t>(vector) * w.values + at;
  for (int i = 0; i < BLOCK_Q; ++i)
    for (int j = 0; j < V; ++j) acc[i][j] = vload(o + static_cast<size_t>(i) * w.values + j * LANES);
  const pair *p = w.p + vector, *v = w.v + column;
  for (int t = 0; t < pairs; ++t, p += w.lanes, v += VALUE_DIMS) {
    vp values[V];
    for (int j = 0; j < V; ++j) values[j] = pload(v + j * LANES);
    for (int i = 0; i < BLOCK_Q; ++i) {
      const vp weight = pset(p[i]);
      for (int j = 0; j < V; ++j) acc[i][j] = dp(acc[i][j], weight, values[j]);
    }
  }
  for (int i = 0; i < BLOCK_Q; ++i)
    for (int j = 0; j < V; ++j) vstore(o + static_cast<size_t>(i) * w.values + j * LANES, acc[i][j]);
}

// vectors: lanes in use. Some beside them are computed too, so that blocks are whole.
inline void value_chunk(const Work& w, int vectors, int n) {
  const int pairs = (n + 1) / 2;
  for (int at = 0; at < w.values; at += VALUE_DIMS) {
    const int dims = w.values - at < VALUE_DIMS ? w.values - at : VALUE_DIMS;
    for (int t = 0; t < pairs; ++t) {
      for (int j = 0; j < dims; j += 2 * LANES) {
        vp low, high;
        zip(w.rows[2 * t] + at + j, w.rows[2 * t + 1] + at + j, &low, &high);
        pstore(w.v + t * VALUE_DIMS + j, low), pstore(w.v + t * VALUE_DIMS + j + LANES, high);
      }
    }
    for (int vector = 0; vector < vectors; vector += BLOCK_Q) {
      int column = 0;
      for (; column + BLOCK_V * LANES <= dims; column += BLOCK_V * LANES) {
        value_block<BLOCK_V>(w, vector, pairs, at + column, column);
      }
      for (; column < dims; column += 2 * LANES) value_block<2>(w, vector, pairs, at + column, column);
    }
  }
}

// ---- segments

// Where the result of a segment of a task in parts is kept: the same working memory with other places for O, m and l.
inline Work kept_segment(const LatentArgs& a, const Work& w, const LatentTask& task, int segment) {
  Work kept = w;
  const size_t number = static_cast<size_t>(task.tile) * a.tasks_of_tile + task.head / a.task_heads;
  kept.o = a.partial + number * a.task_floats + segment * a.segment_floats;
  kept.m = kept.o + static_cast<size_t>(LATENT_VECTORS) * w.values;
  kept.l = kept.m + LATENT_VECTORS;
  return kept;
}

// ---- queries and results

// The query of one lane as pairs of bf16 down its column.
inline void load_query(const Work& w, int lane, const float* first, const float* last) {
  half rounded[LANES];
  for (int i = 0; i < w.d; i += LANES) {
    vstore_bf16(rounded, vload(i < w.values ? first + i : last + (i - w.values)));
    const auto* pairs = reinterpret_cast<const pair*>(rounded);
    for (int j = 0; j < LANES / 2; ++j) w.q[static_cast<size_t>(i / 2 + j) * w.lanes + lane] = pairs[j];
  }
}

inline void load_queries(const LatentArgs& a, const Work& w, const Tile& tile, const LatentTask& task) {
  const int vectors = tile.rows * task.heads, rotated = w.d - w.values;
  if (vectors < w.lanes) __builtin_memset(w.q, 0, static_cast<size_t>(w.lanes) * w.d * 2);
  for (int i = 0; i < w.lanes; ++i) {
    w.sees[i] = EVERY;
    if (i >= vectors) continue;
    const int row = tile.row + i / task.heads;
    const size_t head = static_cast<size_t>(row) * a.heads + task.head + i % task.heads;
    load_query(w, i, a.first + head * w.values, a.last + head * rotated);
    if (!a.chosen) w.sees[i] = places_of(a.index, a.parent, row);
  }
}

inline void store_rows(const LatentArgs& a, const Work& w, const Tile& tile, const LatentTask& task) {
  for (int i = 0; i < tile.rows * task.heads; ++i) {
    const int row = tile.row + i / task.heads, head = task.head + i % task.heads;
    const size_t at = static_cast<size_t>(row) * a.ldo + static_cast<size_t>(head) * w.values;
    const vf inverse = vset(1.0f / w.l_all[i]);
    float* o = w.o_all + static_cast<size_t>(i) * w.values;
    for (int j = 0; j < w.values; j += LANES) {
      const vf x = vmul(vload(o + j), inverse);
      if (a.out) vstore(a.out + at + j, x);
      else vstore_bf16(a.out16 + at + j, x);
    }
    if (a.out16 && head + 1 == a.heads) {
      for (int j = a.heads * w.values; j < a.ldo; ++j) a.out16[static_cast<size_t>(row) * a.ldo + j] = 0;
    }
  }
}

void attend(const LatentArgs& a, LatentTask task, uint8_t* scratch) {
  const LatentView& c = a.cache;
  const Tile tile = a.tiles[task.tile];
  const int vectors = tile.rows * task.heads, last_row = tile.row + tile.rows - 1;
  const Work w = carve_work(scratch, c.d, a.values, vectors);
  const int32_t* chosen = a.chosen ? a.chosen + static_cast<size_t>(tile.row) * a.top_k : nullptr;
  const Order order(c, c.table + static_cast<size_t>(tile.slot) * c.max_blocks, chosen, a.top_k, a.index, a.parent, tile.row,
                    last_row);
  const int shared = chosen ? order.count : places_of(a.index, a.parent, tile.row);  // places that every lane sees
  load_queries(a, w, tile, task);
  for (int i = 0; i < w.lanes; ++i) w.m_all[i] = LOWEST, w.l_all[i] = 0.0f;
  const int segments = (order.count + SEGMENT_TOKENS - 1) / SEGMENT_TOKENS;
  const int from = segments * task.part / task.parts, to = segments * (task.part + 1) / task.parts;
  for (int segment = from; segment < to; ++segment) {
    const Work own = task.parts == 1 ? w : kept_segment(a, w, task, segment);
    const int begin = segment * SEGMENT_TOKENS;
    const int stop = begin + SEGMENT_TOKENS < order.count ? begin + SEGMENT_TOKENS : order.count;
    start_segment(own.segment(), w.lanes, w.values);
    for (int at = begin; at < stop; at += CHUNK_TOKENS) {
      const int n = stop - at < CHUNK_TOKENS ? stop - at : CHUNK_TOKENS;
      gather(own, order, at, n);
      score_chunk(own, order, at, n);
      soften_chunk(own, at, n, a.scale * LOG2E, at + n <= shared);
      value_chunk(own, vectors, n);
    }
    if (task.parts == 1) merge_segment(w.earlier(), own.segment(), vectors, w.values);
  }
  if (task.parts > 1) {
    int32_t* arrived = a.arrived + static_cast<size_t>(task.tile) * a.tasks_of_tile + task.head / a.task_heads;
    if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) < task.parts) return;
    __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < segments; ++i)
      merge_segment(w.earlier(), kept_segment(a, w, task, i).segment(), vectors, w.values);
  }
  store_rows(a, w, tile, task);
}

// ---- new rows of the cache

// i8: each group of dims divided by its scale, max |x| / 127, to the nearest whole number, ties to even.
inline void write_codes(const LatentView& c, const float* x, int begin, int width, uint8_t* row) {
  for (int at = 0; at < width; at += c.group) {
    const float top = magnitude(x + at, c.group), scale = (top < LEAST ? LEAST : top) / 127.0f;
    __builtin_memcpy(row + c.d + (begin + at) / c.group * sizeof(float), &scale, sizeof scale);
    for (int i = 0; i < c.group; i += LANES) {
      half codes[LANES];
      vstore_i16(codes, vdiv(vload(x + at + i), vset(scale)));
      for (int j = 0; j < LANES; ++j) row[begin + at + i + j] = static_cast<uint8_t>(codes[j]);
    }
  }
}

void write(const LatentWriteArgs& a, int row_begin, int row_end) {
  const LatentView& c = a.cache;
  for (int row = row_begin; row < row_end; ++row) {
    if (a.flags[row] & FLAG_NO_WRITE) continue;
    const int32_t* table = c.table + static_cast<size_t>(a.slot[a.request[row]]) * c.max_blocks;
    uint8_t* to = c.row(table, a.index[row]);
    for (int part = 0, begin = 0; part < 2; begin += a.widths[part++]) {
      const int width = a.widths[part];
      if (width == 0) continue;
      const float* x = a.parts[part] + static_cast<size_t>(row) * width;
      if (c.type == CacheType::I8) write_codes(c, x, begin, width, to);
      else round_row(x, reinterpret_cast<uint16_t*>(to) + begin, width);
    }
  }
}

// ---- the index

void score(const IndexArgs& a, int row, int begin, int end, float* scores, uint8_t* scratch) {
  const LatentView& c = a.cache;
  const Work w = carve_work(scratch, c.d, 0, a.heads);
  alignas(LINE) float weights[INDEX_VECTORS] = {};
  if (a.heads < w.lanes) __builtin_memset(w.q, 0, static_cast<size_t>(w.lanes) * w.d * 2);
  for (int head = 0; head < a.heads; ++head) {
    load_query(w, head, nullptr, a.q + (static_cast<size_t>(row) * a.heads + head) * c.d);
    weights[head] = a.weights[static_cast<size_t>(row) * a.heads + head] * a.scale;
  }
  const Order order(c, c.table + static_cast<size_t>(a.slot[a.request[row]]) * c.max_blocks, nullptr, 0, a.index, a.parent,
                    row, row);
  for (int at = begin; at < end; at += CHUNK_TOKENS) {
    const int n = end - at < CHUNK_TOKENS ? end - at : CHUNK_TOKENS;
    gather(w, order, at, n);
    score_chunk(w, order, at, n);
    for (int t = 0; t < n; ++t) {
      vf sum = vset(0.0f);
      for (int lane = 0; lane < w.lanes; lane += LANES) {
        const vf relu = vmax(vload(w.s + static_cast<size_t>(t) * w.lanes + lane), vset(0.0f));
        sum = vfma(relu, vload(weights + lane), sum);
      }
      scores[at + t] = vsum(sum) + 0.0f;  // no negative zero: it would lose a tie
    }
  }
}

// Bits that are ordered as floats are.
inline uint32_t rank(float x) {
  const uint32_t bits = float_bits(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The k-th largest rank of `count` scores, and how many of that rank are among the k largest: eleven bits at a time.
struct Cut {
  uint32_t least;
  int equal;
};

inline Cut cut_at(const float* scores, int count, int k) {
  constexpr int BITS[] = {11, 11, 10};
  uint32_t prefix = 0;
  int shift = 32;
  for (const int bits : BITS) {
    uint32_t bins[1 << 11] = {};
    const uint32_t known = shift == 32 ? 0 : ~0u << shift, mask = (1u << bits) - 1;
    shift -= bits;
    for (int i = 0; i < count; ++i) {
      const uint32_t r = rank(scores[i]);
      bins[r >> shift & mask] += (r & known) == prefix;
    }
    uint32_t bin = mask;
    for (; static_cast<int>(bins[bin]) < k; --bin) k -= static_cast<int>(bins[bin]);
    prefix |= bin << shift;
  }
  return {prefix, k};
}

void choose(const IndexArgs& a, int row, int places, const float* scores) {
  int32_t* out = a.out + static_cast<size_t>(row) * a.top_k;
  if (places <= a.top_k) {
    for (int i = 0; i < a.top_k; ++i) out[i] = i < places ? i : -1;
    return;
  }
  Cut cut = cut_at(scores, places, a.top_k);
  for (int i = 0, taken = 0; taken < a.top_k; ++i) {
    const uint32_t r = rank(scores[i]);
    const int tie = r == cut.least && cut.equal > 0, take = r > cut.least || tie;
    cut.equal -= tie;
    out[taken] = i;
    taken += take;
  }
}

}  // namespace

const LatentKernels LATENT = {write, attend, score, choose};

}  // namespace octavo::OCTAVO_ISA_NAME
