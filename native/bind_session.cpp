// Python's view of sessions. Arguments are addresses, sizes and one flat encoded program; the GIL is free during a step.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "pool.h"
#include "session.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Words = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>, nb::c_contig>;
using Floats = nb::ndarray<nb::numpy, const float, nb::ndim<2>, nb::c_contig>;

Floats view(nb::handle self, const std::string& name) {
  const Session::View v = nb::cast<Session&>(self).exported(name).view();
  return Floats(v.data, {static_cast<size_t>(v.rows), static_cast<size_t>(v.width)}, self);
}

Bytes cache_bytes(nb::handle self) {
  const Session& s = nb::cast<Session&>(self);
  return Bytes(s.cache_data(), {static_cast<size_t>(s.limits().num_blocks), s.block_bytes()}, self);
}

void run(Session& s, int program, const StepHeader& header) {
  nb::gil_scoped_release release;
  s.run(program, header.words.data(), header.words.size());
}

void run_words(Session& s, int program, Words header) {
  nb::gil_scoped_release release;
  s.run(program, header.data(), header.size());
}

}  // namespace

void bind_session(nb::module_& m) {
  nb::class_<Session::Export>(m, "Export");
  nb::class_<Session>(m, "Session")
      .def("__init__",
           [](Session* self, int isa, int max_tokens, int max_rows, int max_seqs, int max_blocks, int num_blocks,
              int block_tokens, int threads, int num_snapshots) {
             new (self) Session(static_cast<Isa>(isa),
                                {max_tokens, max_rows, max_seqs, max_blocks, num_blocks, block_tokens, threads,
                                 num_snapshots});
           })
      .def_prop_ro("weights", [](Session& s) { return &s.weights(); }, nb::rv_policy::reference_internal)
      .def("add_program", [](Session& s, Words words) { s.add_program(words.data(), words.size()); })
      .def("finish", &Session::finish)
      .def("run", &run)
      .def("run", &run_words)
      .def("exported", &Session::exported, nb::rv_policy::reference_internal)
      .def("view", [](nb::handle self, const std::string& name) { return view(self, name); })
      .def("cache_bytes", [](nb::handle self) { return cache_bytes(self); })
      .def("set_profiling", &Session::set_profiling)
      .def("profile", &Session::profile)
      .def("weight_bytes", &Session::weight_bytes)
      .def_prop_ro("block_bytes", &Session::block_bytes)
      .def_prop_ro("steps", &Session::steps)
      .def_prop_ro("barriers", &Session::barriers);
  m.def("op_names", &op_names);
}

}  // namespace octavo
