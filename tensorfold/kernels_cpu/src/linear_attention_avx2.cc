// Linear attention for AVX2 with FMA.
#if defined(__x86_64__)

#include "avx2.h"

#define TF_KERNEL TF_AVX2
#define TF_KERNEL_INLINE TF_INLINE

namespace tensorfold {
namespace {

using Vector = __m256;
constexpr size_t kWidth = 8;

TF_INLINE Vector Load(const float* at) { return _mm256_loadu_ps(at); }
TF_INLINE void Store(float* at, Vector x) { _mm256_storeu_ps(at, x); }
TF_INLINE Vector Broadcast(float x) { return _mm256_set1_ps(x); }
TF_INLINE Vector Zero() { return _mm256_setzero_ps(); }
TF_INLINE Vector Sub(Vector x, Vector y) { return _mm256_sub_ps(x, y); }
TF_INLINE Vector Mul(Vector x, Vector y) { return _mm256_mul_ps(x, y); }
TF_INLINE Vector Fma(Vector x, Vector y, Vector z) { return _mm256_fmadd_ps(x, y, z); }
TF_INLINE void Keep(Vector& x) { KeepInRegister(x); }
TF_INLINE float SumOf(Vector first, Vector second) { return Sum(_mm256_add_ps(first, second)); }

}  // namespace
}  // namespace tensorfold

#include "linear_attention_tiles.h"

namespace tensorfold {

const LinearKernels kLinearAvx2 = kKernels;

}  // namespace tensorfold

#endif
