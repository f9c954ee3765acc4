// Which compiled copy of the sampling scans runs. All give the same bits; the widest is the fastest.
#include "linear.h"
#include "sampling_kernels.h"

namespace octavo {

namespace portable {
extern const SamplingKernels sampling_table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const SamplingKernels sampling_table;
}
namespace avx512 {
extern const SamplingKernels sampling_table;
}

const SamplingKernels& sampling_kernels(int isa) {
  static const int most = isa_supported(Isa::AVX512) ? 2 : isa_supported(Isa::AVX2) ? 1 : 0;
  if (isa < 0 || isa > most) isa = most;
  return isa == 2 ? avx512::sampling_table : isa == 1 ? avx2::sampling_table : portable::sampling_table;
}
#else
const SamplingKernels& sampling_kernels(int) { return portable::sampling_table; }
#endif

}  // namespace octavo
