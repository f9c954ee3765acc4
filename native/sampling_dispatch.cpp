// Which compiled copy of the sampling scans runs. All give the same bits; the widest is the fastest.
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

namespace {

int widest() {
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi2") &&
                __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512bf16");
  return avx512 ? 2 : avx2 ? 1 : 0;
}

}  // namespace

const SamplingKernels& sampling_kernels(int isa) {
  static const int most = widest();
  if (isa < 0 || isa > most) isa = most;
  return isa == 2 ? avx512::sampling_table : isa == 1 ? avx2::sampling_table : portable::sampling_table;
}
#else
const SamplingKernels& sampling_kernels(int) { return portable::sampling_table; }
#endif

}  // namespace octavo
