// Integers out of words of 32 bits, and the few steps of floats that reading quantized checkpoints takes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "convert.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Words = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using In = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Places = std::vector<int>;

// A row of words is a stream of integers of `bits` bits, the lowest first. order: of each word's value j, its place.
template <class T>
void unpack(const uint32_t* words, size_t rows, size_t width, size_t count, int bits, const Places& order, int plus, T* out) {
  const uint32_t mask = (1u << bits) - 1;
  const size_t per_word = 32 / bits;
  for (size_t r = 0; r < rows; ++r, words += width, out += count) {
    for (size_t i = 0; i < count; ++i) {
      const size_t place = order.empty() ? i : i / per_word * per_word + order[i % per_word];
      const size_t bit = place * bits, word = bit / 32, shift = bit % 32;
      uint32_t value = words[word] >> shift;
      if (shift + bits > 32) value |= words[word + 1] << (32 - shift);
      out[i] = static_cast<T>(static_cast<int>(value & mask) + plus);
    }
  }
}

void unpack_words(Words words, int bits, const Places& order, int plus, Out out) {
  if (bits < 1 || bits > 8 || (!order.empty() && (32 % bits || order.size() != 32u / bits))) {
    throw std::invalid_argument("no such stream of bits");
  }
  for (const int place : order)
    if (place < 0 || place >= 32 / bits) throw std::invalid_argument("no such place in a word");
  const size_t rows = words.shape(0), width = words.shape(1);
  if (out.ndim() != 2 || out.shape(0) != rows || out.itemsize() > 2) throw std::invalid_argument("out does not fit");
  const size_t count = out.shape(1);
  if (count * bits > width * 32 || (!order.empty() && count % order.size())) throw std::invalid_argument("words end first");
  nb::gil_scoped_release release;
  if (out.itemsize() == 1) unpack(words.data(), rows, width, count, bits, order, plus, static_cast<uint8_t*>(out.data()));
  else unpack(words.data(), rows, width, count, bits, order, plus, static_cast<int16_t*>(out.data()));
}

void same_size(size_t have, size_t want) {
  if (have != want) throw std::invalid_argument("arrays do not fit");
}

// Pairs of values as the nibbles of bytes, the first one low.
void pack_nibbles(In values, Out out) {
  same_size(values.nbytes(), 2 * out.nbytes());
  const auto* from = static_cast<const uint8_t*>(values.data());
  auto* to = static_cast<uint8_t*>(out.data());
  nb::gil_scoped_release release;
  for (size_t i = 0; i < out.nbytes(); ++i) to[i] = static_cast<uint8_t>((from[2 * i] & 15) | from[2 * i + 1] << 4);
}

void divide(Floats x, float by, Out out) {
  same_size(x.nbytes(), out.nbytes());
  auto* to = static_cast<float*>(out.data());
  for (size_t i = 0; i < x.size(); ++i) to[i] = x.data()[i] / by;
}

// Each row as int8 with one scale: q = x 127 / c to the nearest, ties to even; scale = c / 127, c its largest magnitude.
void quantize_rows(Floats x, Out data, Out scale) {
  const size_t rows = x.shape(0), width = x.shape(1);
  same_size(data.nbytes(), rows * width);
  same_size(scale.nbytes(), rows * sizeof(float));
  nb::gil_scoped_release release;
  for (size_t r = 0; r < rows; ++r) {
    const float* from = x.data() + r * width;
    auto* to = static_cast<int8_t*>(data.data()) + r * width;
    float most = 0;
    for (size_t i = 0; i < width; ++i) most = std::fmax(most, std::fabs(from[i]));
    static_cast<float*>(scale.data())[r] = most / 127.0f;
    const float factor = most > 0 ? 127.0f / most : 0.0f;
    for (size_t i = 0; i < width; ++i) {
      const float q = std::nearbyint(from[i] * factor);
      to[i] = static_cast<int8_t>(q < -127 ? -127 : q > 127 ? 127 : q);
    }
  }
}

}  // namespace

void bind_words(nb::module_& m) {
  m.def("unpack_words", &unpack_words);
  m.def("pack_nibbles", &pack_nibbles);
  m.def("divide", &divide);
  m.def("quantize_rows", &quantize_rows);
}

}  // namespace octavo
