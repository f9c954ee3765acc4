// Conversion of file formats into the logical kinds of weights/kinds.py, and from those to float32.
#pragma once
#include <nanobind/nanobind.h>

namespace octavo {

void bind_convert(nanobind::module_& m);
void bind_words(nanobind::module_& m);

}  // namespace octavo
