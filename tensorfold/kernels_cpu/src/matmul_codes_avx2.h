// Codes as floats, as the AVX2 kernel of float rows takes them.
#pragma once

#include "matmul_avx2.h"

namespace tensorfold {

// The masks lie in memory, where `vpand` reads them; in registers they would crowd out the sums.
template <int kBits>
struct Masks {
  alignas(32) uint32_t of[32 / kBits - 1][kTile];
};

template <int kBits>
constexpr Masks<kBits> MakeMasks() {
  Masks<kBits> masks{};
  for (int i = 0; i + 1 < 32 / kBits; ++i) {
    for (size_t j = 0; j < kTile; ++j) masks.of[i][j] = ((1u << kBits) - 1) << (kBits * i);
  }
  return masks;
}

template <int kBits>
constexpr Masks<kBits> kMasks = MakeMasks<kBits>();

// Code i of each of 8 words, as floats too large by 16^i or 256^i (the last one as it is).
template <int kBits, int i>
TF_INLINE __m256 UnpackCode(__m256i words) {
  if constexpr (i == 32 / kBits - 1) {
    return _mm256_cvtepi32_ps(_mm256_srli_epi32(words, kBits * i));
  } else {
    __m256i code;
    asm("vpand %2, %1, %0" : "=x"(code) : "x"(words), "m"(kMasks<kBits>.of[i]));
    return _mm256_cvtepi32_ps(code);
  }
}

// What a code is, in words of 8 outputs. Unpack makes floats of code i of each word, with the powers
// of two that Prepared speaks of; a step along the inputs is so many words.
//
// Integers are in words of 4-bit codes, one a step, or in bundles, which are spread out to words.
template <int kBits>
struct Integers {
  using Words = __m256i;
  static constexpr bool kOffsets = true;
  static constexpr int kUnpacked = kBits == 4 ? 4 : 8;
  static constexpr int kWordCodes = 32 / kUnpacked;
  static constexpr int kStepWords = kBits == 4 ? 1 : Bundle<kBits>::kWords;
  static constexpr int kStepCodes = kBits == 4 ? 8 : Bundle<kBits>::kCodes;

  template <int i>
  TF_INLINE static __m256 Unpack(Words words) {
    return UnpackCode<kUnpacked, i>(words);
  }

  template <int j>
  TF_INLINE static Words Load(const unsigned char* at, size_t stride) {
    if constexpr (kBits == 4) {
      return LoadWords(at);
    } else {
      return SpreadWord<kBits, j>(at, stride);
    }
  }
};

struct Floats {
  using Words = __m128i;
  static constexpr bool kOffsets = false;
  static constexpr int kWordCodes = 2, kStepWords = 4, kStepCodes = 8;

  // As a half, a sign stands twice until the mask.
  template <int i>
  TF_INLINE static __m256 Unpack(Words words) {
    if constexpr (i == 0) words = _mm_slli_epi16(words, 8);
    const __m128i mask = _mm_set1_epi16(static_cast<int16_t>(E4M3ToHalf(0xff)));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(words, 1), mask));
  }

  template <int j>
  TF_INLINE static Words Load(const unsigned char* at, size_t stride) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + j * stride));
  }
};

// Calls body(words, first) for what a step holds of kTiles tiles: the words of codes from `first` on.
template <class Code, int kTiles, int j = 0, class Body>
TF_INLINE void Step(const unsigned char* at, size_t stride, Body&& body) {
  typename Code::Words words[kTiles];
  TF_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    const unsigned char* const tile = at + t * sizeof words[t];
    words[t] = Code::template Load<j>(tile, stride);
    if constexpr (j < Code::kStepWords) _mm_prefetch(tile + j * stride + kAhead, _MM_HINT_T0);
  }
  body(words, Code::kWordCodes * j);
  if constexpr ((j + 1) * Code::kWordCodes < Code::kStepCodes) {
    Step<Code, kTiles, j + 1>(at, stride, body);
  }
}

}  // namespace tensorfold
