// Which table of kernels over latents a class uses, and the scratch that they ask for.
#include "latent.h"

namespace octavo {

namespace portable {
extern const LatentKernels LATENT;
}
#if defined(__x86_64__)
namespace avx2 {
extern const LatentKernels LATENT;
}
namespace avx512 {
extern const LatentKernels LATENT;
}
namespace amx {
extern const LatentKernels LATENT;
}
#endif

const LatentKernels& latent_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::AMX) return amx::LATENT;
  if (isa == Isa::AVX512) return avx512::LATENT;
  if (isa == Isa::AVX2) return avx2::LATENT;
  if (isa != Isa::PORTABLE && isa_supported(Isa::AVX512)) return avx512::LATENT;  // the AMX class in software
#endif
  return portable::LATENT;
}

size_t latent_scratch_bytes(int d, int values, int vectors) {
  constexpr size_t VALUE_PAIRS = CHUNK_TOKENS / 2 * 64 * 4, ROWS = (CHUNK_TOKENS + 8) * sizeof(void*);
  const size_t lanes = (vectors + 15) / 16 * 16;
  const size_t per_lane = static_cast<size_t>(d) * 2 + (CHUNK_TOKENS + 8) * 4 + CHUNK_TOKENS * 2 + static_cast<size_t>(values) * 8 + 20;
  return lanes * per_lane + VALUE_PAIRS + ROWS + (CHUNK_TOKENS + 1) * static_cast<size_t>(d) * 2 + 16 * 64;  // pieces rounded up
}

}  // namespace octavo
