// Flush-to-zero and denormals-are-zero for the life of a scope. The matrix instructions flush whatever the mode says;
// every thread that runs kernels sets it so that all operators agree, and restores it before Python code runs again.
#pragma once
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace octavo {

#if defined(__x86_64__)
class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
};

// The opposite, for work of the pool's threads whose floats are no activations: sampling orders logits to the last bit.
class KeepDenormals {
 public:
  KeepDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ & ~0x8040u); }
  ~KeepDenormals() { _mm_setcsr(saved_); }
  KeepDenormals(const KeepDenormals&) = delete;

 private:
  unsigned saved_;
};
#else
struct FlushDenormals {
  FlushDenormals() {}
};
struct KeepDenormals {
  KeepDenormals() {}
};
#endif

}  // namespace octavo
