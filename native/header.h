// The step header: mirrors src/octavo/program/header.py. One array of int32; T tokens, R rows, N requests, C copies,
// S snapshots, U words of table updates.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo {

constexpr int32_t HEADER_VERSION = 2;
constexpr int32_t HEADER_SCALARS = 7;
constexpr int32_t FLAG_NO_WRITE = 1;

// Header buffers that a program may name, in the order of encode.py (HEADER_IDS).
enum HeaderField : int32_t {
  FIELD_TOKEN = 0,
  FIELD_POSITION,
  FIELD_INDEX,
  FIELD_REQUEST,
  FIELD_ADAPTER,
  FIELD_SOURCE_ROW,
  FIELD_LOGIT_ROW,
  FIELD_COUNT,
};

struct Header {
  int32_t T, R, N, C, S, U;
  const int32_t *token, *position, *index, *request, *adapter, *flags, *parent, *source_row;  // [T]
  const int32_t *slot;       // [N]
  const int32_t *row_begin;  // [N + 1]
  const int32_t *context, *firm, *replay, *restore;  // [N]
  const int32_t *logit_row;  // [R]
  const int32_t *copies;     // [C][3]: slot, source index, target index
  const int32_t *snapshots;  // [S][3]: request, tokens from the state before, snapshot
  const int32_t *tables;     // [U]: repeated slot, group, first, count, block * count

  const int32_t* field(int32_t id) const {
    const int32_t* fields[FIELD_COUNT] = {token, position, index, request, adapter, source_row, logit_row};
    return fields[id];
  }
};

// The words of one step, kept from step to step: Python fills it (bind_header.cpp), sessions and the sampler read it.
struct StepHeader {
  std::vector<int32_t> words;
};

constexpr size_t header_words(size_t T, size_t R, size_t N, size_t C, size_t S, size_t U) {
  return HEADER_SCALARS + 8 * T + N + (N + 1) + 4 * N + R + 3 * C + 3 * S + U;
}

// Sets the pointers. False when the version or the length is not what the scalars say.
inline bool parse_header(const int32_t* words, size_t count, Header& h) {
  if (count < static_cast<size_t>(HEADER_SCALARS) || words[0] != HEADER_VERSION) return false;
  h.T = words[1], h.R = words[2], h.N = words[3], h.C = words[4], h.S = words[5], h.U = words[6];
  if (h.T < 0 || h.R < 0 || h.N < 0 || h.C < 0 || h.S < 0 || h.U < 0) return false;
  const size_t T = h.T, R = h.R, N = h.N, C = h.C, S = h.S, U = h.U;
  if (count != header_words(T, R, N, C, S, U)) return false;
  const int32_t* at = words + HEADER_SCALARS;
  auto next = [&at](size_t length) {
    const int32_t* begin = at;
    at += length;
    return begin;
  };
  h.token = next(T), h.position = next(T), h.index = next(T), h.request = next(T);
  h.adapter = next(T), h.flags = next(T), h.parent = next(T), h.source_row = next(T);
  h.slot = next(N), h.row_begin = next(N + 1), h.context = next(N);
  h.firm = next(N), h.replay = next(N), h.restore = next(N);
  h.logit_row = next(R), h.copies = next(3 * C), h.snapshots = next(3 * S), h.tables = next(U);
  return true;
}

}  // namespace octavo
