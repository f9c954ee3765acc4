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
namespace amx {
extern const SamplingKernels sampling_table;
}

const SamplingKernels& sampling_kernels(int isa) {
  static const SamplingKernels* const tables[] = {&portable::sampling_table, &avx2::sampling_table,
                                                  &avx512::sampling_table, &amx::sampling_table};
  static const int most = isa_supported(Isa::AMX)      ? 3
                          : isa_supported(Isa::AVX512) ? 2
                          : isa_supported(Isa::AVX2)   ? 1
                                                       : 0;
  return *tables[isa < 0 || isa > most ? most : isa];
}
#else
const SamplingKernels& sampling_kernels(int) { return portable::sampling_table; }
#endif

}  // namespace octavo
