// Python's view of a session's weights: packing, borrowing, and their bytes for a file. Arrays are addresses; the caller
// has checked their sizes and keeps them alive.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "weights.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Held = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>, nb::c_contig>;

template <class T>
T* address(uintptr_t at) {
  return reinterpret_cast<T*>(at);
}

StoredMatrix stored(const std::string& format, int m, int n, uintptr_t data, uintptr_t order) {
  const BlockFormat* found = block_format(format);
  if (!found) throw std::invalid_argument(format + " is not a format");
  return {found, address<const uint8_t>(data), address<const int32_t>(order), m, n};
}

// [kind, m, n, group, offset, scale code, bias code] without data; perhaps how many such matrices follow one another.
LogicalTensor described(const std::vector<int>& shape) {
  if (shape.size() != 7 && shape.size() != 8) throw std::invalid_argument("has no shape");
  LogicalTensor t{};
  t.kind = static_cast<WeightKind>(shape[0]);
  t.m = shape[1], t.n = shape[2], t.group = shape[3], t.offset = shape[4];
  t.scale_code = static_cast<ScaleCode>(shape[5]);
  t.bias_code = static_cast<BiasCode>(shape[6]);
  return t;
}

// Rows from PANEL `panel` on of a weight that has its room. shape: of these rows.
void fill(WeightStore& s, const std::string& name, int panel, const std::vector<int>& shape, uintptr_t data,
          uintptr_t scale, uintptr_t bias, uintptr_t super_scale, uintptr_t super_bias) {
  LogicalTensor tensor = described(shape);
  tensor.data = address<const void>(data);
  tensor.scale = address<const void>(scale);
  tensor.bias = address<const void>(bias);
  tensor.super_scale = address<const uint16_t>(super_scale);
  tensor.super_bias = address<const uint16_t>(super_bias);
  nb::gil_scoped_release release;
  s.fill(name, tensor, panel);
}

const HeldWeight& held(const WeightStore& s, const std::string& name) {
  const HeldWeight* found = s.find(name);
  if (!found) throw std::invalid_argument("no weight " + name);
  return *found;
}

// As `described` takes it of a matrix, [length] of a vector.
std::vector<int> shape(const WeightStore& s, const std::string& name) {
  const HeldWeight& w = held(s, name);
  if (w.vector) return {w.length};
  const PackedLinear& p = w.matrix;
  return {static_cast<int>(p.kind),       p.m, p.n, p.group, p.offset, static_cast<int>(p.scale_code),
          static_cast<int>(p.bias_code), w.count};
}

// As `shape` gives it.
void borrow(WeightStore& s, const std::string& name, const std::vector<int>& shape, Bytes data) {
  auto* at = const_cast<uint8_t*>(data.data());
  if (shape.size() == 1) {
    if (data.size() != shape[0] * sizeof(float)) throw std::invalid_argument("has another size");
    s.borrow_vector(name, reinterpret_cast<const float*>(at), shape[0]);
    return;
  }
  s.borrow_matrix(name, described(shape), at, data.size(), shape.size() > 7 ? shape[7] : 1);
}

}  // namespace

void bind_weights(nb::module_& m) {
  nb::class_<WeightStore>(m, "WeightStore")
      .def("make_room", [](WeightStore& s, const std::string& name,
                           const std::vector<int>& shape) {
        s.make_room(name, described(shape), shape.size() > 7 ? shape[7] : 1);
      })
      .def("fill", &fill)
      .def("add_vector",
           [](WeightStore& s, const std::string& name, uintptr_t data, int length) {
             s.add_vector(name, address<const float>(data), length);
           })
      .def("reserve",
           [](WeightStore& s, const std::string& name, const std::string& format, int rows, int columns, int count) {
             s.reserve(name, stored(format, rows, columns, 0, 0), count);
           },
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg("count") = 1)
      .def("pack",
           [](WeightStore& s, const std::string& name, const std::string& format, int rows, int columns, uintptr_t data,
              uintptr_t order, int begin, int end, int number, size_t apart) {
             StoredMatrix matrix = stored(format, rows, columns, data, order);
             matrix.apart = apart;
             nb::gil_scoped_release release;
             s.pack(name, matrix, begin, end, number);
           },
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg("number") = 0, nb::arg("apart") = 0)
      .def("borrow", &borrow)
      .def("shape", &shape)
      .def("data", [](nb::handle self, const std::string& name) {
        const HeldWeight& w = held(nb::cast<const WeightStore&>(self), name);
        return Held(w.data(), {w.bytes()}, self);
      });
  m.def("checksum", [](Bytes data, int threads) {
    nb::gil_scoped_release release;
    return checksum(data.data(), data.size(), threads);
  });
}

}  // namespace octavo
