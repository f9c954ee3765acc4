// Single linear layers, for tests, and what may be asked of instruction-set classes. Arrays are addresses; the caller
// has checked shapes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "denormals.h"
#include "linear.h"
#include "ops.h"

namespace nb = nanobind;

namespace octavo {
namespace {

template <class T>
T* address(uintptr_t at) {
  return reinterpret_cast<T*>(at);
}

struct Packed {
  PackedLinear linear{};
  std::unique_ptr<uint8_t[]> owned;
  size_t nbytes = 0;
};

Packed pack(int kind, int m, int n, int group, int offset, uintptr_t data, uintptr_t scale, uintptr_t bias,
            uintptr_t super_scale, uintptr_t super_bias, int scale_code, int bias_code) {
  LogicalTensor t{};
  t.kind = (WeightKind)kind;
  t.m = m;
  t.n = n;
  t.group = group;
  t.offset = offset;
  t.data = address<void>(data);
  t.scale = address<void>(scale);
  t.bias = address<void>(bias);
  t.super_scale = address<uint16_t>(super_scale);
  t.super_bias = address<uint16_t>(super_bias);
  t.scale_code = (ScaleCode)scale_code;
  t.bias_code = (BiasCode)bias_code;
  Packed out;
  out.nbytes = packed_bytes(t);
  out.owned = std::make_unique<uint8_t[]>(out.nbytes + 64);
  out.linear.data = address<uint8_t>((reinterpret_cast<uintptr_t>(out.owned.get()) + 63) / 64 * 64);
  pack_linear(t, out.linear);
  return out;
}

// Panels are claimed in chunks by `threads` threads, each with its own scratch.
// input, output: ActKind; output -1: floats of GLU.
void run(int isa, const Packed& w, const Packed* w2, int input, uintptr_t x, int rows, int ldx, int epilogue,
         int activation, uintptr_t bias, uintptr_t bias2, uintptr_t addend, int output, uintptr_t out, int ldo, int chunk,
         int threads) {
  LinearArgs a{};
  a.w = &w.linear;
  a.w2 = w2 ? &w2->linear : nullptr;
  a.input = (ActKind)input, a.output = output < 0 ? ActKind::BF16 : (ActKind)output;
  a.x = address<uint8_t>(x);
  a.rows = rows;
  a.ldx = ldx;
  a.epilogue = (Epilogue)epilogue;
  a.activation = activation;
  a.bias = address<float>(bias);
  a.bias2 = address<float>(bias2);
  a.addend = address<float>(addend);
  if (a.epilogue != Epilogue::GLU || output < 0) a.out = address<float>(out);
  else if (a.output != ActKind::BF16) a.records = address<uint8_t>(out);
  else a.out16 = address<uint16_t>(out);
  a.ldo = ldo;
  const LinearKernels& kernels = linear_kernels((Isa)isa);
  const int panels = w.linear.panels;
  std::atomic<int> next{0};
  const auto work = [&] {
    const FlushDenormals flush;
    std::vector<uint8_t> scratch(linear_scratch_bytes(w.linear.n, rows));
    kernels.prepare(a, scratch.data());
    for (int begin; (begin = next.fetch_add(chunk)) < panels;)
      kernels.run(a, begin, std::min(begin + chunk, panels), scratch.data());
  };
  nb::gil_scoped_release release;
  std::vector<std::thread> others;
  for (int i = 1; i < threads; i++) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

// Rows of `width` floats as records, ld bytes apart.
void quantize(int isa, int kind, uintptr_t x, int rows, int width, uintptr_t out, int ld) {
  const FlushDenormals flush;
  ElementArgs e{};
  e.a = address<float>(x), e.records = address<uint8_t>(out), e.kind = (ActKind)kind;
  e.width = width, e.ldo = ld;
  op_kernels((Isa)isa).quantize(e, 0, rows);
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<Packed>(m, "PackedLinear").def_ro("nbytes", &Packed::nbytes);
  m.def("linear_pack", &pack);
  m.def("linear_run", &run, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
  m.def("linear_unpack_row", [](const Packed& w, int row, uintptr_t out) {
    unpack_row(w.linear, row, address<float>(out));
  });
  m.def("linear_quantize", &quantize);
  m.def("linear_record_bytes", [](int kind) { return record_bytes((ActKind)kind); });
  m.def("isa_supported", [](int isa) { return isa_supported((Isa)isa); });
  m.def("allow_isa", [](int isa) { allow_isa((Isa)isa); });
  m.def("amx_wanted", &amx_wanted);
  m.def("tiles_held", [](int isa) { return linear_kernels((Isa)isa).tiles_held(); });
  m.def("isa_self_check", [](int isa) { return isa_self_check((Isa)isa); });
}

}  // namespace octavo
