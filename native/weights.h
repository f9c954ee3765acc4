// The weights of a session: matrices in panels, vectors as f32. Packed here from tensors or straight from the blocks of
// a file, or borrowed from a mapped file of packed weights.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "blocks.h"
#include "linear.h"
#include "memory.h"

namespace octavo {

// A weight in memory: a matrix in panels, or plain f32 (norms, biases, routers).
// Of a stack, `matrix` is the first of `count` equal ones that follow one another.
struct HeldWeight {
  PackedLinear matrix{};
  int32_t count = 1;
  const float* vector = nullptr;
  int32_t length = 0;

  const uint8_t* data() const { return vector ? reinterpret_cast<const uint8_t*>(vector) : matrix.data; }
  size_t bytes() const { return vector ? length * sizeof(float) : count * matrix.panels * matrix.panel_bytes; }
};

// A matrix as a file holds it: whole rows of blocks. order[r]: which row of the file becomes row r; null: as they stand.
// apart: bytes from the first to the next of a stack.
struct StoredMatrix {
  const BlockFormat* format;
  const uint8_t* data;
  const int32_t* order;
  int32_t m, n;
  size_t apart = 0;
};

class WeightStore {
 public:
  explicit WeightStore(int32_t threads) : threads_(threads), scratch_(threads) {}
  WeightStore(const WeightStore&) = delete;

  // Room for `count` matrices, of `like` all but the data; then panels from `first` on, whose rows are the tensor's, in
  // any number of calls.
  void make_room(const std::string& name, const LogicalTensor& like, int32_t count = 1);
  void fill(const std::string& name, const LogicalTensor& rows, int32_t first);
  void add_vector(const std::string& name, const float* data, int32_t length);

  // Room for `count` matrices; panels [begin, end), counted from the first of matrix `number`, are then packed by all
  // threads, in any number of calls, from any part of the file: what a thread holds besides is one panel's rows.
  void reserve(const std::string& name, const StoredMatrix& stored, int32_t count = 1);
  void pack(const std::string& name, const StoredMatrix& stored, int32_t begin, int32_t end, int32_t number = 0);
  // Gives back what packing needed.
  void packed();

  // A weight that lies packed in memory which outlives the session. `like` has no data.
  // Throws std::invalid_argument when such a weight takes another number of bytes.
  void borrow_matrix(const std::string& name, const LogicalTensor& like, uint8_t* data, size_t bytes, int32_t count = 1);
  void borrow_vector(const std::string& name, const float* data, int32_t length);

  const HeldWeight* find(const std::string& name) const;
  const std::map<std::string, HeldWeight>& all() const { return held_; }

 private:
  int32_t threads_;
  Pieces pieces_;
  std::map<std::string, HeldWeight> held_;
  std::vector<std::vector<uint8_t>> scratch_;  // one a thread
};

// A sum over bytes, for files: the same for any number of threads. Not against forgery.
uint64_t checksum(const uint8_t* data, size_t bytes, int32_t threads);

}  // namespace octavo
