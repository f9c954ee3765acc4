// Which table of operator kernels a class uses, and the scratch that attention asks for.
#include "ops.h"

namespace octavo {

namespace portable {
extern const OpKernels OPS;
}
#if defined(__x86_64__)
namespace avx2 {
extern const OpKernels OPS;
}
namespace avx512 {
extern const OpKernels OPS;
}
namespace amx {
extern const OpKernels OPS;
}
#endif

const OpKernels& op_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::AMX) return amx::OPS;
  if (isa == Isa::AVX512) return avx512::OPS;
  if (isa == Isa::AVX2) return avx2::OPS;
  if (isa != Isa::PORTABLE && isa_supported(Isa::AVX512)) return avx512::OPS;  // the AMX class in software
#endif
  return portable::OPS;
}

size_t attention_scratch_bytes(const CacheView& c, int group) {
  const size_t vectors = static_cast<size_t>(tile_rows(group)) * group;
  const size_t per_vector = key_dims(c.d) * 2 + CHUNK_TOKENS * 6 + padded_dims(c.d) * 8 + 24;
  const size_t pages = CHUNK_PAGES * (c.k_page + c.v_page);
  return vectors * per_vector + tile_rows(group) * 8 + pages + 16 * 64;  // 16 pieces, each rounded up to 64
}

}  // namespace octavo
