// Repacks blocks of file formats into (data, scale, bias, ...) arrays without loss, and evaluates the logical kinds.
//
// Blocks never straddle rows, so everything here runs over flat sequences of blocks. All loads go through memcpy:
// mapped files promise no alignment. The layouts of the blocks stand at each function; i is the element's index.
#include "convert.h"

#include <nanobind/ndarray.h>

#include <nanobind/stl/optional.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

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

// Eight bytes at a time, as lanes of a word; little-endian, as the files are.
constexpr uint64_t LOW_NIBBLES = 0x0f0f0f0f0f0f0f0fu;
constexpr uint64_t ONES = 0x0101010101010101u;

uint64_t load64(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}

// Eight bytes below 16, elements 0 to 7: four bytes, byte j = elements 2j (low nibble) and 2j + 1.
void store_pairs(uint64_t v, uint8_t* out) {
  v = (v | (v >> 4)) & 0x00ff00ff00ff00ffu;
  v = (v | (v >> 8)) & 0x0000ffff0000ffffu;
  const uint32_t packed = static_cast<uint32_t>(v | (v >> 16));
  std::memcpy(out, &packed, 4);
}

// `width` bytes, byte k = elements k (low nibble) and k + width (high): as many bytes, byte j = elements 2j and 2j + 1.
void interleave_halves(const uint8_t* qs, int width, uint8_t* out) {
  for (int k = 0; k < width; k += 8) {
    const uint64_t v = load64(qs + k);
    store_pairs(v & LOW_NIBBLES, out + k / 2);
    store_pairs((v >> 4) & LOW_NIBBLES, out + width / 2 + k / 2);
  }
}

// Eight bytes of 0 to 127, less `shift` of 0 to 128, as int8.
void store_shifted(uint64_t v, uint64_t shift, int8_t* out) {
  v = ((v | (ONES << 7)) - ONES * shift) ^ (ONES << 7);  // the top bit stops borrows
  std::memcpy(out, &v, 8);
}

// Bit i of `bits` to byte i.
uint64_t spread_bits(uint8_t bits) {
  const uint64_t v = (ONES * bits) & 0x8040201008040201u;
  return ((v + ONES * 0x7f) >> 7) & ONES;
}

// Q4_0, 18 bytes for 32: d f16 | qs[16].  y = d (v - 8)
void q4_0(const uint8_t* s, size_t blocks, uint8_t* data, uint16_t* scale) {
  for (size_t b = 0; b < blocks; ++b, s += 18) {
    scale[b] = load16(s);
    interleave_halves(s + 2, 16, data + 16 * b);
  }
}

// Q4_1, 20 bytes for 32: d f16 | m f16 | qs[16].  y = d v + m
void q4_1(const uint8_t* s, size_t blocks, uint8_t* data, uint16_t* scale, uint16_t* bias) {
  for (size_t b = 0; b < blocks; ++b, s += 20) {
    scale[b] = load16(s);
    bias[b] = load16(s + 2);
    interleave_halves(s + 4, 16, data + 16 * b);
  }
}

// v = nibble | bit i of qh << 4, minus `shift`.
void five_bits(const uint8_t* qh, const uint8_t* qs, uint64_t shift, int8_t* out) {
  for (int k = 0; k < 16; k += 8) {
    const uint64_t v = load64(qs + k);
    store_shifted((v & LOW_NIBBLES) | (spread_bits(qh[k / 8]) << 4), shift, out + k);
    store_shifted(((v >> 4) & LOW_NIBBLES) | (spread_bits(qh[k / 8 + 2]) << 4), shift, out + k + 16);
  }
}

// Q5_0, 22 bytes for 32: d f16 | qh u32 | qs[16].  y = d (v - 16)
void q5_0(const uint8_t* s, size_t blocks, int8_t* data, uint16_t* scale) {
  for (size_t b = 0; b < blocks; ++b, s += 22) {
    scale[b] = load16(s);
    five_bits(s + 2, s + 6, 16, data + 32 * b);
  }
}

// Q5_1, 24 bytes for 32: d f16 | m f16 | qh u32 | qs[16].  y = d v + m
void q5_1(const uint8_t* s, size_t blocks, int8_t* data, uint16_t* scale, uint16_t* bias) {
  for (size_t b = 0; b < blocks; ++b, s += 24) {
    scale[b] = load16(s);
    bias[b] = load16(s + 2);
    five_bits(s + 4, s + 8, 0, data + 32 * b);
  }
}

// Q8_0, 34 bytes for 32: d f16 | q int8[32].  y = d q
void q8_0(const uint8_t* s, size_t blocks, int8_t* data, uint16_t* scale) {
  for (size_t b = 0; b < blocks; ++b, s += 34) {
    scale[b] = load16(s);
    std::memcpy(data + 32 * b, s + 2, 32);
  }
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes.
void six_bit_pairs(const uint8_t* s, uint8_t* scale, uint8_t* bias) {
  for (int j = 0; j < 4; ++j) {
    scale[j] = s[j] & 63;
    bias[j] = s[j + 4] & 63;
    scale[j + 4] = static_cast<uint8_t>((s[j + 8] & 15) | ((s[j] >> 6) << 4));
    bias[j + 4] = static_cast<uint8_t>((s[j + 8] >> 4) | ((s[j + 4] >> 6) << 4));
  }
}

struct KBlock {
  uint8_t *scale, *bias;                 // [8] a block
  uint16_t *super_scale, *super_bias;    // [1] a block
};

// d and dmin f16, then the packed pairs. The minimum is subtracted, so its factor is kept negated.
void k_scales(const uint8_t* s, size_t b, const KBlock& out) {
  out.super_scale[b] = load16(s);
  out.super_bias[b] = load16(s + 2) ^ 0x8000u;
  six_bit_pairs(s + 4, out.scale + 8 * b, out.bias + 8 * b);
}

// Q4_K, 144 bytes for 256: d | dmin | s[12] | qs[128].  j = i / 32: nibble j % 2 of qs[32 (j / 2) + i % 32]
void q4_k(const uint8_t* s, size_t blocks, uint8_t* data, const KBlock& out) {
  for (size_t b = 0; b < blocks; ++b, s += 144) {
    k_scales(s, b, out);
    for (int pair = 0; pair < 128; pair += 32) interleave_halves(s + 16 + pair, 32, data + 128 * b + pair);
  }
}

// Q5_K, 176 bytes for 256: d | dmin | s[12] | qh[32] | qs[128].  As Q4_K, bit j of qh[i % 32] on top
void q5_k(const uint8_t* s, size_t blocks, int8_t* data, const KBlock& out) {
  for (size_t b = 0; b < blocks; ++b, s += 176) {
    k_scales(s, b, out);
    const uint8_t* qh = s + 16;
    for (int j = 0; j < 8; ++j) {
      const uint8_t* qs = s + 48 + 32 * (j / 2);
      int8_t* to = data + SUPER * b + 32 * j;
      for (int l = 0; l < 32; l += 8) {
        const uint64_t low = (load64(qs + l) >> (4 * (j % 2))) & LOW_NIBBLES;
        store_shifted(low | (((load64(qh + l) >> j) & ONES) << 4), 0, to + l);
      }
    }
  }
}

// Q6_K, 210 bytes for 256: ql[128] | qh[64] | sc int8[16] | d.  y = d sc[i / 16] (v - 32)
void q6_k(const uint8_t* s, size_t blocks, int8_t* data, int8_t* scale, uint16_t* super_scale) {
  for (size_t b = 0; b < blocks; ++b, s += 210) {
    std::memcpy(scale + 16 * b, s + 192, 16);
    super_scale[b] = load16(s + 208);
    for (int part = 0; part < 8; ++part) {  // 32 elements: half of the block h, k within it
      const int h = part / 4, k = part % 4;
      const uint8_t* ql = s + 64 * h + 32 * (k % 2);
      const uint8_t* qh = s + 128 + 32 * h;
      int8_t* to = data + SUPER * b + 32 * part;
      for (int l = 0; l < 32; l += 8) {
        const uint64_t low = (load64(ql + l) >> (4 * (k / 2))) & LOW_NIBBLES;
        store_shifted(low | (((load64(qh + l) >> (2 * k)) & (ONES * 3)) << 4), 32, to + l);
      }
    }
  }
}

// The scales of an i8 or u4 tensor, flat. Group g belongs to super group g * group / 256.
struct Scales {
  const uint8_t *scale, *bias;
  const uint8_t *super_scale, *super_bias;
  size_t group;
  bool scale_signed;

  float scale_of(size_t g) const {
    if (!super_scale) return f16_to_f32(load16(scale + 2 * g));
    const float factor = scale_signed ? static_cast<float>(static_cast<int8_t>(scale[g])) : scale[g];
    return f16_to_f32(load16(super_scale + 2 * (g * group / SUPER))) * factor;
  }
  float bias_of(size_t g) const {
    if (!super_bias) return f16_to_f32(load16(bias + 2 * g));
    return f16_to_f32(load16(super_bias + 2 * (g * group / SUPER))) * static_cast<float>(bias[g]);
  }
};

template <class Element>
void evaluate(size_t count, const Scales& s, int offset, Element element, float* out) {
  for (size_t g = 0; g < count / s.group; ++g) {
    const float scale = s.scale_of(g);
    float* to = out + g * s.group;
    const size_t first = g * s.group;
    for (size_t i = 0; i < s.group; ++i) to[i] = scale * static_cast<float>(element(first + i) - offset);
    if (s.bias) {
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

KBlock k_arrays(size_t n, const Out& scale, const Out& bias, const Out& super_scale, const Out& super_bias) {
  return {array<uint8_t>(scale, 8 * n, "scale"), array<uint8_t>(bias, 8 * n, "bias"),
          array<uint16_t>(super_scale, n, "super_scale"), array<uint16_t>(super_bias, n, "super_bias")};
}

void bind_blocks(nb::module_& m) {
  m.def("unpack_q4_0", [](Bytes src, Out data, Out scale) {
    const size_t n = blocks_of(src, 18);
    auto *d = array<uint8_t>(data, 16 * n, "data");
    auto *s = array<uint16_t>(scale, n, "scale");
    nb::gil_scoped_release release;
    q4_0(src.data(), n, d, s);
  });
  m.def("unpack_q4_1", [](Bytes src, Out data, Out scale, Out bias) {
    const size_t n = blocks_of(src, 20);
    auto *d = array<uint8_t>(data, 16 * n, "data");
    auto *s = array<uint16_t>(scale, n, "scale"), *b = array<uint16_t>(bias, n, "bias");
    nb::gil_scoped_release release;
    q4_1(src.data(), n, d, s, b);
  });
  m.def("unpack_q5_0", [](Bytes src, Out data, Out scale) {
    const size_t n = blocks_of(src, 22);
    auto *d = array<int8_t>(data, 32 * n, "data");
    auto *s = array<uint16_t>(scale, n, "scale");
    nb::gil_scoped_release release;
    q5_0(src.data(), n, d, s);
  });
  m.def("unpack_q5_1", [](Bytes src, Out data, Out scale, Out bias) {
    const size_t n = blocks_of(src, 24);
    auto *d = array<int8_t>(data, 32 * n, "data");
    auto *s = array<uint16_t>(scale, n, "scale"), *b = array<uint16_t>(bias, n, "bias");
    nb::gil_scoped_release release;
    q5_1(src.data(), n, d, s, b);
  });
  m.def("unpack_q8_0", [](Bytes src, Out data, Out scale) {
    const size_t n = blocks_of(src, 34);
    auto *d = array<int8_t>(data, 32 * n, "data");
    auto *s = array<uint16_t>(scale, n, "scale");
    nb::gil_scoped_release release;
    q8_0(src.data(), n, d, s);
  });
  m.def("unpack_q4_k", [](Bytes src, Out data, Out scale, Out bias, Out super_scale, Out super_bias) {
    const size_t n = blocks_of(src, 144);
    auto *d = array<uint8_t>(data, 128 * n, "data");
    const KBlock out = k_arrays(n, scale, bias, super_scale, super_bias);
    nb::gil_scoped_release release;
    q4_k(src.data(), n, d, out);
  });
  m.def("unpack_q5_k", [](Bytes src, Out data, Out scale, Out bias, Out super_scale, Out super_bias) {
    const size_t n = blocks_of(src, 176);
    auto *d = array<int8_t>(data, SUPER * n, "data");
    const KBlock out = k_arrays(n, scale, bias, super_scale, super_bias);
    nb::gil_scoped_release release;
    q5_k(src.data(), n, d, out);
  });
  m.def("unpack_q6_k", [](Bytes src, Out data, Out scale, Out super_scale) {
    const size_t n = blocks_of(src, 210);
    auto *d = array<int8_t>(data, SUPER * n, "data"), *s = array<int8_t>(scale, 16 * n, "scale");
    auto *super = array<uint16_t>(super_scale, n, "super_scale");
    nb::gil_scoped_release release;
    q6_k(src.data(), n, d, s, super);
  });
}

// Every f16 as bf16. A look-up beats the arithmetic where only SSE2 may be assumed.
const std::vector<uint16_t>& f16_as_bf16() {
  static const std::vector<uint16_t> table = [] {
    std::vector<uint16_t> all(1 << 16);
    for (size_t bits = 0; bits < all.size(); ++bits) all[bits] = f32_to_bf16(f16_to_f32(static_cast<uint16_t>(bits)));
    return all;
  }();
  return table;
}

void bind_floats(nb::module_& m) {
  m.def("f32_to_bf16", [](Bytes src, Out out) {
    const size_t n = blocks_of(src, 4);
    auto *to = array<uint16_t>(out, n, "out");
    const uint8_t* from = src.data();
    nb::gil_scoped_release release;
    for (size_t i = 0; i < n; ++i) {
      float x;
      std::memcpy(&x, from + 4 * i, 4);
      to[i] = f32_to_bf16(x);
    }
  });
  m.def("f16_to_bf16", [](Bytes src, Out out) {
    const size_t n = blocks_of(src, 2);
    auto *to = array<uint16_t>(out, n, "out");
    const uint8_t* from = src.data();
    nb::gil_scoped_release release;
    const std::vector<uint16_t>& table = f16_as_bf16();
    for (size_t i = 0; i < n; ++i) to[i] = table[load16(from + 2 * i)];
  });
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

void dequantize(bool four_bits, In data, In scale, std::optional<In> bias, std::optional<In> super_scale,
                std::optional<In> super_bias, size_t group, int offset, bool scale_signed, Out out) {
  const size_t count = out.nbytes() / sizeof(float);
  if (group == 0 || count % group || (super_scale && (SUPER % group || count % SUPER))) {
    throw std::invalid_argument("group does not divide the tensor");
  }
  need(data.nbytes(), four_bits ? count / 2 : count, "data");
  const size_t groups = count / group, width = super_scale ? 1 : 2;
  need(scale.nbytes(), groups * width, "scale");
  const Scales s = {static_cast<const uint8_t*>(scale.data()), optional_bytes(bias, groups * (super_bias ? 1 : 2), "bias"),
                    optional_bytes(super_scale, count / SUPER * 2, "super_scale"),
                    optional_bytes(super_bias, count / SUPER * 2, "super_bias"), group, scale_signed};
  auto* to = static_cast<float*>(out.data());
  const auto* from = static_cast<const uint8_t*>(data.data());
  nb::gil_scoped_release release;
  if (four_bits) {
    evaluate(count, s, offset, [from](size_t i) { return (from[i / 2] >> (4 * (i % 2))) & 15; }, to);
  } else {
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
  bind_blocks(m);
  bind_floats(m);
  m.def("dequantize", &dequantize, nb::arg("four_bits"), nb::arg("data"), nb::arg("scale"), nb::arg("bias").none(),
        nb::arg("super_scale").none(), nb::arg("super_bias").none(), nb::arg("group"), nb::arg("offset"),
        nb::arg("scale_signed"), nb::arg("out"));
  m.def("gguf_strings", &strings, nb::arg("buffer"), nb::arg("offset"), nb::arg("count"));
}

}  // namespace octavo
