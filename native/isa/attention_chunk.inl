// One chunk of at most 128 tokens for all query vectors of a tile: scores, softmax, P V. Included by attention.cpp.
//
// Keys and values are met in either type. bf16: Q and P in bf16, products in float. i8: Q and P in 16-bit integers with
// a scale a vector (P: a vector and chunk, after the scales of V were multiplied in), sums exact in int32, so that they
// have no order.

// The pages of one chunk of one KV head.
struct Pages {
  const uint8_t* k[CHUNK_PAGES];
  const uint8_t* v[CHUNK_PAGES];
  int count;
};

// What will be read after this chunk, page by page with all the task's heads, fetched a line for each line that is read
// now. Into the second cache: the first is full of what this chunk is using.
struct Stream {
  const uint8_t* pages[CHUNK_PAGES];
  size_t bytes;
  int count = 0, begun = 0;
  const uint8_t *at = nullptr, *end = nullptr;

  void fetch(int lines) {
    for (; lines > 0; --lines, at += LINE) {
      if (at == end) {
        if (begun == count) return;
        at = pages[begun++], end = at + bytes;
      }
      __builtin_prefetch(at, 0, 2);
    }
  }
};

// ---- scores: w.s[vector][token] = q . k, times the key's scale in an i8 cache

template <int Q, int P>
inline void score_block_bf16(const Work& w, const Pages& pages, int vector, int page, Stream* ahead) {
  vf acc[Q][P];
  for (int i = 0; i < Q; ++i)
    for (int j = 0; j < P; ++j) acc[i][j] = vset(0.0f);
  for (int word = 0; word < w.q_dims / 2; ++word) {
    vp keys[P];
    for (int j = 0; j < P; ++j) keys[j] = pload(pages.k[page + j] + word * LINE);
    if (ahead) ahead->fetch(P);
    for (int i = 0; i < Q; ++i) {
      const vp query = pset(w.q[(vector + i) * (w.q_dims / 2) + word]);
      for (int j = 0; j < P; ++j) acc[i][j] = dp(acc[i][j], query, keys[j]);
    }
  }
  for (int i = 0; i < Q; ++i)
    for (int j = 0; j < P; ++j) vstore(w.s + (vector + i) * CHUNK_TOKENS + (page + j) * PAGE_TOKENS, acc[i][j]);
}

template <int Q, int P>
inline void score_block_i8(const Work& w, const Pages& pages, int vector, int page, Stream* ahead) {
  vi acc[Q][P];
  for (int i = 0; i < Q; ++i)
    for (int j = 0; j < P; ++j) acc[i][j] = izero();
  for (int word = 0; word < w.q_dims / 4; ++word) {
    vp even[P], odd[P];
    for (int j = 0; j < P; ++j) {
      const vp keys = pload(pages.k[page + j] + word * LINE);
      even[j] = evens(keys), odd[j] = odds(keys);
    }
    if (ahead) ahead->fetch(P);
    for (int i = 0; i < Q; ++i) {
      const pair* q = w.q + (vector + i) * (w.q_dims / 2) + 2 * word;
      const vp first = pset(q[0]), second = pset(q[1]);
      for (int j = 0; j < P; ++j) acc[i][j] = idot(idot(acc[i][j], first, even[j]), second, odd[j]);
    }
  }
  for (int j = 0; j < P; ++j) {
    const uint8_t* scales = pages.k[page + j] + scales_at(w.d);
    const vf scale = vload(reinterpret_cast<const float*>(scales));
    if (ahead) ahead->fetch(1);
    for (int i = 0; i < Q; ++i) {
      vstore(w.s + (vector + i) * CHUNK_TOKENS + (page + j) * PAGE_TOKENS, vmul(vfloat(acc[i][j]), scale));
    }
  }
}

template <CacheType K, int Q, int P>
inline void score_block(const Work& w, const Pages& pages, int vector, int page, Stream* ahead) {
  if (K == CacheType::BF16) score_block_bf16<Q, P>(w, pages, vector, page, ahead);
  else score_block_i8<Q, P>(w, pages, vector, page, ahead);
}

template <CacheType K, int Q>
inline void score_vectors(const Work& w, const Pages& pages, int vector, Stream& stream) {
  Stream* ahead = vector == 0 ? &stream : nullptr;
  int page = 0;
  for (; page + BLOCK_V <= pages.count; page += BLOCK_V) score_block<K, Q, BLOCK_V>(w, pages, vector, page, ahead);
  for (; page + 2 <= pages.count; page += 2) score_block<K, Q, 2>(w, pages, vector, page, ahead);
  if (page < pages.count) score_block<K, Q, 1>(w, pages, vector, page, ahead);
}

// ---- softmax: scores -> P and the segment's running maximum and sum

// P of one vector in whole numbers of 15 bits, after the scales of V: w.p and w.p_scale. y: lanes [first, last) are
// visible, the others 0, but stale scales may be anything. WHOLE: all lanes of all pages.
template <bool WHOLE>
inline void weigh_i8(const Work& w, const Pages& pages, int vector, int first, int last, const vf* y) {
  const int count = WHOLE ? CHUNK_PAGES : pages.count;
  const auto cut = [&](int i) { return !WHOLE && (first > i * LANES || last < (i + 1) * LANES); };
  vf scaled[CHUNK_PAGES];
  vf top = vset(0.0f), sum = top;
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    scaled[i] = vmul(y[i], vload(reinterpret_cast<const float*>(pages.v[i] + scales_at(w.d))));
    if (cut(i)) scaled[i] = vkeep(scaled[i], first - i * LANES, last - i * LANES, vset(0.0f));
    top = vmax(top, scaled[i]);
    sum = vadd(sum, scaled[i]);
  }
  const float largest = vmaximum(top);
  const vf factor = vset(largest > 0.0f ? P_LARGEST / largest : 0.0f);
  auto* p = reinterpret_cast<half*>(w.p + vector * (CHUNK_TOKENS / 2));
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) vstore_i16(p + i * LANES, vmul(scaled[i], factor));
  w.p_scale[vector] = largest * (1.0f / P_LARGEST) + vsum(sum) * 0.0f;  // not a number if some scale is not
}

// Lanes [first, last) of the chunk are visible to the vector. WHOLE: they are all lanes of all pages, and nothing is
// capped; the same operations, in registers.
template <CacheType V, bool WHOLE>
inline void soften(const Work& w, const Pages& pages, int vector, int first, int last, float scale, float cap) {
  const float* s = w.s + vector * CHUNK_TOKENS;
  auto* p = reinterpret_cast<half*>(w.p + vector * (CHUNK_TOKENS / 2));
  const int count = WHOLE ? CHUNK_PAGES : pages.count;
  if (!WHOLE && first >= last) {
    __builtin_memset(p, 0, pages.count * PAGE_TOKENS * 2);
    w.p_scale[vector] = 0.0f;
    return;
  }
  const auto cut = [&](int i) { return !WHOLE && (first > i * LANES || last < (i + 1) * LANES); };
  vf x[CHUNK_PAGES];
  vf top = vset(LOWEST);
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    x[i] = vmul(vload(s + i * LANES), vset(scale));
    if (!WHOLE && cap > 0.0f) x[i] = vmul(vtanh(vmul(x[i], vset(1.0f / cap))), vset(cap));
    if (cut(i)) x[i] = vkeep(x[i], first - i * LANES, last - i * LANES, vset(LOWEST));
    top = vmax(top, x[i]);
  }
  const float chunk_top = vmaximum(top), old = w.m[vector];
  const float now = old > chunk_top ? old : chunk_top;
  vf sum = vset(0.0f);
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    x[i] = vexp2(vsub(x[i], vset(now)));
    if (cut(i)) x[i] = vkeep(x[i], first - i * LANES, last - i * LANES, vset(0.0f));
    sum = vadd(sum, x[i]);
    if (V == CacheType::BF16) vstore_bf16(p + i * LANES, x[i]);
  }
  if (V == CacheType::I8) weigh_i8<WHOLE>(w, pages, vector, first, last, x);
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

// ---- P V: w.o[vector] += P V of the chunk

template <int Q, int V>
inline void value_block_bf16(const Work& w, const Pages& pages, int vector, int at, Stream* ahead) {
  constexpr int WORDS = PAGE_TOKENS / 2;
  vf acc[Q][V];
  for (int i = 0; i < Q; ++i)
    for (int j = 0; j < V; ++j) acc[i][j] = vload(w.o + (vector + i) * w.padded_d + at + j * LANES);
  for (int page = 0; page < pages.count; ++page) {
    const uint8_t* v = pages.v[page] + at * 4;
    for (int word = 0; word < WORDS; ++word) {
      vp values[V];
      for (int j = 0; j < V; ++j) values[j] = pload(v + word * w.padded_d * 4 + j * LINE);
      if (ahead) ahead->fetch(w.padded_d / LANES);
      for (int i = 0; i < Q; ++i) {
        const vp weight = pset(w.p[(vector + i) * (CHUNK_TOKENS / 2) + page * WORDS + word]);
        for (int j = 0; j < V; ++j) acc[i][j] = dp(acc[i][j], weight, values[j]);
      }
    }
  }
  for (int i = 0; i < Q; ++i)
    for (int j = 0; j < V; ++j) vstore(w.o + (vector + i) * w.padded_d + at + j * LANES, acc[i][j]);
}

template <int Q, int V>
inline void value_block_i8(const Work& w, const Pages& pages, int vector, int at, Stream* ahead) {
  constexpr int WORDS = PAGE_TOKENS / 4;
  vi acc[Q][V];
  for (int i = 0; i < Q; ++i)
    for (int j = 0; j < V; ++j) acc[i][j] = izero();
  for (int page = 0; page < pages.count; ++page) {
    const uint8_t* v = pages.v[page] + at * 4;
    for (int word = 0; word < WORDS; ++word) {
      if (ahead) ahead->fetch(w.padded_d / LANES);
      vp first[Q], second[Q];
      for (int i = 0; i < Q; ++i) {
        const pair* p = w.p + (vector + i) * (CHUNK_TOKENS / 2) + (page * WORDS + word) * 2;
        first[i] = pset(p[0]), second[i] = pset(p[1]);
      }
      for (int j = 0; j < V; ++j) {
        const vp values = pload(v + word * w.padded_d * 4 + j * LINE);
        const vp even = evens(values), odd = odds(values);
        for (int i = 0; i < Q; ++i) acc[i][j] = idot(idot(acc[i][j], first[i], even), second[i], odd);
      }
    }
  }
  for (int i = 0; i < Q; ++i) {
    const vf scale = vset(w.p_scale[vector + i]);
    for (int j = 0; j < V; ++j) {
      float* o = w.o + (vector + i) * w.padded_d + at + j * LANES;
      vstore(o, vadd(vload(o), vmul(vfloat(acc[i][j]), scale)));
    }
  }
}

template <CacheType T, int Q, int V>
inline void value_block(const Work& w, const Pages& pages, int vector, int at, Stream* ahead) {
  if (T == CacheType::BF16) value_block_bf16<Q, V>(w, pages, vector, at, ahead);
  else value_block_i8<Q, V>(w, pages, vector, at, ahead);
}

template <CacheType T, int Q>
inline void value_vectors(const Work& w, const Pages& pages, int vector, Stream& stream) {
  Stream* ahead = vector == 0 ? &stream : nullptr;
  int at = 0;
  for (; at + BLOCK_V * LANES <= w.padded_d; at += BLOCK_V * LANES) {
    value_block<T, Q, BLOCK_V>(w, pages, vector, at, at == 0 ? ahead : nullptr);
  }
  for (; at + 2 * LANES <= w.padded_d; at += 2 * LANES) value_block<T, Q, 2>(w, pages, vector, at, at == 0 ? ahead : nullptr);
  if (at < w.padded_d) value_block<T, Q, 1>(w, pages, vector, at, at == 0 ? ahead : nullptr);
}

// ---- the chunk

template <CacheType K>
inline void score_chunk(const Work& w, const Pages& pages, Stream& stream) {
  int vector = 0;
  for (; vector + BLOCK_Q <= w.vectors; vector += BLOCK_Q) score_vectors<K, BLOCK_Q>(w, pages, vector, stream);
  if (BLOCK_Q > 3 && vector + 3 <= w.vectors) score_vectors<K, 3>(w, pages, vector, stream), vector += 3;
  if (vector + 2 <= w.vectors) score_vectors<K, 2>(w, pages, vector, stream), vector += 2;
  if (vector < w.vectors) score_vectors<K, 1>(w, pages, vector, stream);
}

template <CacheType V>
inline void value_chunk(const Work& w, const Pages& pages, int begin, float scale, float cap, Stream& stream) {
  int vector = 0;
  for (; vector < w.vectors; ++vector) {
    const int row = vector / w.group, first = w.first[row] - begin, last = w.last[row] - begin;
    const bool whole = first <= 0 && last >= CHUNK_TOKENS && cap <= 0.0f;
    const float all = scale * w.q_scale[vector];
    if (whole) soften<V, true>(w, pages, vector, first, last, all, cap);
    else soften<V, false>(w, pages, vector, first, last, all, cap);
  }
  for (vector = 0; vector + BLOCK_Q <= w.vectors; vector += BLOCK_Q) value_vectors<V, BLOCK_Q>(w, pages, vector, stream);
  if (BLOCK_Q > 3 && vector + 3 <= w.vectors) value_vectors<V, 3>(w, pages, vector, stream), vector += 3;
  if (vector + 2 <= w.vectors) value_vectors<V, 2>(w, pages, vector, stream), vector += 2;
  if (vector < w.vectors) value_vectors<V, 1>(w, pages, vector, stream);
}

inline void run_chunk(const AttentionArgs& a, const Work& w, const Pages& pages, int begin, Stream& stream) {
  const float scale = a.scale * LOG2E, cap = a.cap * LOG2E;
  if (a.cache.k_type == CacheType::BF16) score_chunk<CacheType::BF16>(w, pages, stream);
  else score_chunk<CacheType::I8>(w, pages, stream);
  if (a.cache.v_type == CacheType::BF16) value_chunk<CacheType::BF16>(w, pages, begin, scale, cap, stream);
  else value_chunk<CacheType::I8>(w, pages, begin, scale, cap, stream);
}
