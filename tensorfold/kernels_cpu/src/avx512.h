// What the AVX-512 kernels share.
#pragma once

#include <cstddef>

// GCC 12 takes the registers that its own intrinsics leave unset for a fault (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "avx2.h"

#define TF_AVX512 __attribute__((target("avx512f,avx2,fma,f16c")))
#define TF_INLINE512 TF_AVX512 inline __attribute__((always_inline))

namespace tensorfold {

// Floats of a register.
constexpr size_t kWide512 = 16;

// Stops the compiler from reading a value from memory again at each of its uses.
TF_INLINE512 void KeepInRegister(__m512& value) { asm("" : "+v"(value)); }

}  // namespace tensorfold
