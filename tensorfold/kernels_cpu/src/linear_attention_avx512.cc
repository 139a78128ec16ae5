// Linear attention for AVX-512: every sum is of one column or in 16 lanes, so its bits are those of
// AVX2.
#if defined(__x86_64__)

#include "avx512.h"

#define TF_KERNEL TF_AVX512
#define TF_KERNEL_INLINE TF_INLINE512

namespace tensorfold {
namespace {

using Vector = __m512;
constexpr size_t kWidth = kWide512;

TF_INLINE512 Vector Load(const float* at) { return _mm512_loadu_ps(at); }
TF_INLINE512 void Store(float* at, Vector x) { _mm512_storeu_ps(at, x); }
TF_INLINE512 Vector Broadcast(float x) { return _mm512_set1_ps(x); }
TF_INLINE512 Vector Zero() { return _mm512_setzero_ps(); }
TF_INLINE512 Vector Sub(Vector x, Vector y) { return _mm512_sub_ps(x, y); }
TF_INLINE512 Vector Mul(Vector x, Vector y) { return _mm512_mul_ps(x, y); }
TF_INLINE512 Vector Fma(Vector x, Vector y, Vector z) { return _mm512_fmadd_ps(x, y, z); }
TF_INLINE512 void Keep(Vector& x) { KeepInRegister(x); }
// The 16 lanes are one vector, given twice.
TF_INLINE512 float SumOf(Vector lanes, Vector) {
  return Sum(_mm256_add_ps(Low(lanes), High(lanes)));
}

}  // namespace
}  // namespace tensorfold

#include "linear_attention_tiles.h"

namespace tensorfold {

const LinearKernels kLinearAvx512 = kKernels;

}  // namespace tensorfold

#endif
