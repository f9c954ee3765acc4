// A program as the executor walks it, decoded from the flat words that src/octavo/program/encode.py writes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "activation.h"
#include "cache.h"

namespace octavo {

enum class OpKind : int32_t {
  EMBED, FEED, TAKE, NORM, ADD, CONCAT, GLU, LINEAR, QKV, LINEAR_ADD, GATE_UP, ROPE_ANGLES, ROPE, KV_WRITE, ATTENTION,
  QUANTIZE, ACT, POOL, LINEAR_F32, ROUTE, DISPATCH, EXPERT_LINEAR, EXPERT_GATE_UP, COMBINE, GATE, HEAD_LINEAR,
  LATENT_WRITE, LATENT_ATTENTION, INDEX_TOPK, CONV_STATE, DELTA_GATES, DELTA_RULE,
};

// V pages or K pages (cache.h), or rows of dims (latent.h).
enum class CacheLayout : int32_t { VALUES = 0, KEYS = 1, ROWS = 2 };

enum class BufferKind : int32_t { HEADER = 0, VALUE = 1, EXPORT = 2, FOREIGN = 3 };
enum class DType : int32_t { F32 = 0, BF16 = 1, I32 = 2, I15 = 3, I8G32 = 4, I15G32 = 5, I8ROW = 6, I8X = 7, I15Q = 8 };

// Whether a linear may eat it, and as what (activation.h).
inline bool is_quantized(DType t) { return t != DType::F32 && t != DType::I32; }
inline ActKind act_kind(DType t) {
  switch (t) {
    case DType::I15: return ActKind::I15;
    case DType::I8G32: return ActKind::I8G32;
    case DType::I15G32: return ActKind::I15G32;
    case DType::I8ROW: return ActKind::I8ROW;
    case DType::I8X: return ActKind::I8X;
    case DType::I15Q: return ActKind::I15Q;
    default: return ActKind::BF16;
  }
}
enum class Symbol : int32_t { CONSTANT = 0, T = 1, R = 2, N = 3 };

struct BufferRecord {
  std::string name;
  BufferKind kind;
  int32_t field;  // HEADER: which one
  DType dtype;
  Symbol symbol;  // rows = a * symbol + b
  int32_t a, b, width, ld;
  int32_t region;  // of the arena; -1 where the memory is not the program's own

  int32_t rows(int32_t T, int32_t R, int32_t N) const {
    const int32_t value[4] = {1, T, R, N};
    return a * value[static_cast<int>(symbol)] + b;
  }
  size_t row_bytes() const { return static_cast<size_t>(ld) * (is_quantized(dtype) ? act_element(act_kind(dtype)) : 4); }
};

struct CacheRecord {
  std::string name;
  int32_t group, kv_heads, d;
  CacheLayout layout;  // rows: kv_heads is the number of scales of one, were it i8
  CacheType type;
};

// Recurrent state of one operator, in floats: of a slot, and what one draft leaves in its tail.
struct StateRecord {
  std::string name;
  int32_t floats, tail;
};

struct OpRecord {
  OpKind kind;
  std::string name;  // what it writes first, for messages and profiles
  bool barrier;      // every thread has finished everything before
  std::vector<int32_t> ins, outs, weights, caches, states, ints;
  std::vector<float> floats;
};

struct ProgramRecord {
  std::string name;
  std::vector<std::string> groups;
  std::vector<CacheRecord> caches;
  std::vector<StateRecord> states;
  std::vector<int32_t> tails;  // per group: -1 has blocks; else the drafts that a slot of its state can replay
  std::vector<std::string> weights;
  int32_t regions;
  std::vector<BufferRecord> buffers;
  std::vector<OpRecord> ops;
};

// Throws std::runtime_error that names the first thing it cannot read: an operator without a kernel, by name.
ProgramRecord decode_program(const int32_t* words, size_t count);

// Operators that have a kernel, for the loader's check before any weight is read.
std::vector<std::string> op_names();

}  // namespace octavo
