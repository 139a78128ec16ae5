// What the AVX2 kernels share.
#pragma once

#include <immintrin.h>

#define TF_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TF_INLINE TF_AVX2 inline __attribute__((always_inline))
#if defined(__clang__)
#define TF_UNROLL _Pragma("unroll")
#else
#define TF_UNROLL _Pragma("GCC unroll 16")
#endif

namespace tensorfold {

// Bytes between the weights that are read and those that are asked for: a page, which a processor's
// own prefetch does not look beyond. Past the end of a matrix it asks for nothing that matters.
constexpr int kAhead = 4096;

// Stops the compiler from reading a value from memory again at each of its uses.
TF_INLINE void KeepInRegister(__m256& value) { asm("" : "+x"(value)); }

// e^x to about 1 ulp; 0 below -87, and e^87 above 87. The usual split: 2^n times a polynomial on
// [-ln 2 / 2, ln 2 / 2] (coefficients of Cephes' expf).
TF_INLINE __m256 Exp(__m256 x) {
  const __m256 small = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ);
  x = _mm256_min_ps(x, _mm256_set1_ps(87.0f));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.9875691500e-4f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
  p = _mm256_fmadd_ps(_mm256_mul_ps(p, r), r, _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
  const __m256i exponent =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_andnot_ps(small, _mm256_mul_ps(p, _mm256_castsi256_ps(exponent)));
}

// The 8 lanes' sum in one fixed tree, and their maximum.
TF_INLINE float Sum(__m256 x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

TF_INLINE float Max(__m256 x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

}  // namespace tensorfold
