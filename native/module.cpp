// The binding: pointers, sizes and flat buffers only. Each room registers its own functions.
#include <nanobind/nanobind.h>

#include "convert.h"

namespace nb = nanobind;

namespace octavo {
void bind_calibrate(nb::module_& m);
void bind_header(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_memory(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_session(nb::module_& m);
void bind_weights(nb::module_& m);
}

NB_MODULE(_native, m) {
  m.attr("__doc__") = "Octavo's native kernels.";
  octavo::bind_calibrate(m);
  octavo::bind_convert(m);
  octavo::bind_words(m);
  octavo::bind_header(m);
  octavo::bind_linear(m);
  octavo::bind_memory(m);
  octavo::bind_sampling(m);
  octavo::bind_weights(m);
  octavo::bind_session(m);
}
