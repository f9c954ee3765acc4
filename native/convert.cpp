// Python's view of the block formats (blocks.h), the logical kinds evaluated as float32, and strings of GGUF headers.
#include "convert.h"

#include <nanobind/ndarray.h>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "blocks.h"
#include "codes.h"
#include "floats.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using In = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<nb::c_contig, nb::device::cpu>;

constexpr size_t SUPER = 256;  // elements of a K block

uint16_t load16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

// The scales of a grouped tensor, flat. Group g belongs to super group g * group / 256.
struct Scales {
  const uint8_t *scale, *bias;
  const uint8_t *super_scale, *super_bias;
  size_t group;
  ScaleCode code;
  BiasCode bias_code;

  float scale_of(size_t g) const {
    if (code == ScaleCode::F16) return f16_to_f32(load16(scale + 2 * g));
    if (code == ScaleCode::E8M0) return power_of_two(scale[g]);
    if (code == ScaleCode::F32) {
      float value;
      std::memcpy(&value, scale + 4 * g, 4);
      return value;
    }
    const float factor = code == ScaleCode::I8 ? static_cast<float>(static_cast<int8_t>(scale[g])) : scale[g];
    return f16_to_f32(load16(super_scale + 2 * (g * group / SUPER))) * factor;
  }
  int zero_of(size_t g) const {
    return bias_code == BiasCode::ZERO ? static_cast<int16_t>(load16(bias + 2 * g)) : 0;
  }
  float bias_of(size_t g) const {
    if (!super_bias) return f16_to_f32(load16(bias + 2 * g));
    return f16_to_f32(load16(super_bias + 2 * (g * group / SUPER))) * static_cast<float>(bias[g]);
  }
};

// element(i): the integer, or float, that stands at i.
template <class Element>
void evaluate(size_t count, const Scales& s, int offset, Element element, float* out) {
  for (size_t g = 0; g < count / s.group; ++g) {
    const float scale = s.scale_of(g);
    const int zero = offset + s.zero_of(g);
    float* to = out + g * s.group;
    const size_t first = g * s.group;
    for (size_t i = 0; i < s.group; ++i) to[i] = scale * static_cast<float>(element(first + i) - zero);
    if (s.bias_code == BiasCode::VALUE) {
      const float bias = s.bias_of(g);
      for (size_t i = 0; i < s.group; ++i) to[i] = to[i] + bias;
    }
  }
}

// ---- binding
void need(size_t have, size_t want, const char* what) {
  if (have != want) {
    throw std::invalid_argument(std::string(what) + ": " + std::to_string(have) + " bytes, not " + std::to_string(want));
  }
}

size_t blocks_of(const Bytes& src, size_t block_bytes) {
  if (src.size() % block_bytes) throw std::invalid_argument("source is not whole blocks");
  return src.size() / block_bytes;
}

template <class T>
T* array(const Out& out, size_t count, const char* what) {
  need(out.nbytes(), count * sizeof(T), what);
  return static_cast<T*>(out.data());
}

const uint8_t* optional_bytes(const std::optional<In>& in, size_t bytes, const char* what) {
  if (!in) return nullptr;
  need(in->nbytes(), bytes, what);
  return static_cast<const uint8_t*>(in->data());
}

uint8_t* part(const std::optional<Out>& out, size_t bytes, const char* what) {
  if (bytes == 0 && !out) return nullptr;
  need(out ? out->nbytes() : 0, bytes, what);
  return static_cast<uint8_t*>(out->data());
}

void unpack_blocks(const std::string& name, Bytes src, Out data, std::optional<Out> scale, std::optional<Out> bias,
                   std::optional<Out> super_scale, std::optional<Out> super_bias) {
  const BlockFormat* format = block_format(name);
  if (!format) throw std::invalid_argument(name + " is not a format");
  const size_t n = blocks_of(src, format->bytes);
  const size_t scales = n * format->scale_bytes(), supers = n * format->super_bytes();
  const BlockArrays out = {part(data, n * format->data_bytes(), "data"), part(scale, scales, "scale"),
                           part(bias, format->has_bias ? scales : 0, "bias"), part(super_scale, supers, "super_scale"),
                           part(super_bias, format->has_bias ? supers : 0, "super_bias")};
  nb::gil_scoped_release release;
  format->unpack(src.data(), n, out);
}

void bind_floats(nb::module_& m) {
  m.def("f16_to_f32", [](Bytes src, Out out) {
    const size_t n = blocks_of(src, 2);
    auto *to = array<float>(out, n, "out");
    const uint8_t* from = src.data();
    nb::gil_scoped_release release;
    for (size_t i = 0; i < n; ++i) to[i] = f16_to_f32(load16(from + 2 * i));
  });
  m.def("bf16_to_f32", [](Bytes src, Out out) {
    const size_t n = blocks_of(src, 2);
    auto *to = array<float>(out, n, "out");
    const uint8_t* from = src.data();
    nb::gil_scoped_release release;
    for (size_t i = 0; i < n; ++i) to[i] = bf16_to_f32(load16(from + 2 * i));
  });
}

// The codes are those of linear.h.
void dequantize(int kind, In data, In scale, std::optional<In> bias, std::optional<In> super_scale,
                std::optional<In> super_bias, int scale_code, int bias_code, size_t group, int offset, Out out) {
  const size_t count = out.nbytes() / sizeof(float);
  const auto code = static_cast<ScaleCode>(scale_code);
  const auto held = static_cast<WeightKind>(kind);
  const bool four_bits = held == WeightKind::U4 || has_table(held);
  if (group == 0 || count % group || (is_two_level(code) && (SUPER % group || count % SUPER))) {
    throw std::invalid_argument("group does not divide the tensor");
  }
  need(data.nbytes(), four_bits ? count / 2 : count, "data");
  const size_t groups = count / group, supers = is_two_level(code) ? count / SUPER * 2 : 0;
  need(scale.nbytes(), groups * scale_bytes(code), "scale");
  const Scales s = {static_cast<const uint8_t*>(scale.data()), optional_bytes(bias, groups * (super_bias ? 1 : 2), "bias"),
                    optional_bytes(super_scale, supers, "super_scale"), optional_bytes(super_bias, supers, "super_bias"),
                    group, code, static_cast<BiasCode>(bias_code)};
  if ((s.bias_code != BiasCode::NONE) != (s.bias != nullptr) || is_two_level(code) != (s.super_scale != nullptr)) {
    throw std::invalid_argument("scales and their codes differ");
  }
  auto* to = static_cast<float*>(out.data());
  const auto* from = static_cast<const uint8_t*>(data.data());
  nb::gil_scoped_release release;
  const auto nibble = [from](size_t i) { return (from[i / 2] >> (4 * (i % 2))) & 15; };
  if (held == WeightKind::U4) {
    evaluate(count, s, offset, nibble, to);
  } else if (four_bits) {
    const int8_t* table = held == WeightKind::NL4 ? NL4_TABLE : FP4_TABLE;
    evaluate(count, s, offset, [&](size_t i) { return static_cast<int>(table[nibble(i)]); }, to);
  } else if (held == WeightKind::FP8) {
    evaluate(count, s, 0, [from](size_t i) { return e4m3_to_f32(from[i]); }, to);
  } else {  // bytes of 5 or 6 bits too
    evaluate(count, s, offset, [from](size_t i) { return static_cast<int>(static_cast<int8_t>(from[i])); }, to);
  }
}

// `count` strings (u64 length, bytes) that begin at `offset`: the list, and where the next byte stands. None in place
// of the list: the file ends first, or a string is not UTF-8; the number is then where that string begins.
nb::tuple strings(Bytes buffer, size_t offset, size_t count) {
  const uint8_t* base = buffer.data();
  const size_t size = buffer.size();
  if (offset > size || count > (size - offset) / 8) return nb::make_tuple(nb::none(), size);
  nb::list found;
  for (size_t i = 0; i < count; ++i) {
    uint64_t length;
    if (size - offset < 8) return nb::make_tuple(nb::none(), offset);
    std::memcpy(&length, base + offset, 8);
    if (length > size - offset - 8) return nb::make_tuple(nb::none(), offset);
    PyObject* text = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(base) + offset + 8,
                                          static_cast<Py_ssize_t>(length), "strict");
    if (!text) {
      PyErr_Clear();
      return nb::make_tuple(nb::none(), offset);
    }
    found.append(nb::steal(text));
    offset += 8 + length;
  }
  return nb::make_tuple(found, offset);
}

}  // namespace

void bind_convert(nb::module_& m) {
  m.def("unpack_blocks", &unpack_blocks, nb::arg("format"), nb::arg("src"), nb::arg("data"), nb::arg("scale") = nb::none(),
        nb::arg("bias") = nb::none(), nb::arg("super_scale") = nb::none(), nb::arg("super_bias") = nb::none());
  bind_floats(m);
  m.def("dequantize", &dequantize, nb::arg("kind"), nb::arg("data"), nb::arg("scale"), nb::arg("bias").none(),
        nb::arg("super_scale").none(), nb::arg("super_bias").none(), nb::arg("scale_code"), nb::arg("bias_code"),
        nb::arg("group"), nb::arg("offset"), nb::arg("out"));
  m.def("gguf_strings", &strings, nb::arg("buffer"), nb::arg("offset"), nb::arg("count"));
}

}  // namespace octavo
