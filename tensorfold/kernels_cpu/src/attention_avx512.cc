// One page of a unit's queries, for AVX-512: sums are of one score or one dimension, so their bits
// are those of AVX2.
#if defined(__x86_64__)

#include <algorithm>

#include "attention_tiles.h"
#include "avx512.h"

namespace tensorfold {
namespace {

// Vectors of positions or dimensions that are taken at a time: a page's positions are four.
constexpr int kVectors = kPage / kWide512;

// sum[q][j] += broadcast(value[q]) * row[j]
template <int kQ, int kV>
TF_INLINE512 void Accumulate(const float* row, const float* const (&value)[kQ], size_t at,
                             __m512 (&sum)[kQ][kV]) {
  __m512 shared[kV];
  TF_UNROLL
  for (int j = 0; j < kV; ++j) {
    shared[j] = _mm512_loadu_ps(row + kWide512 * j);
    _mm_prefetch(row + kWide512 * j + kAhead / sizeof(float), _MM_HINT_T0);
    KeepInRegister(shared[j]);
  }
  TF_UNROLL
  for (int i = 0; i < kQ; ++i) {
    const __m512 each = _mm512_set1_ps(value[i][at]);
    TF_UNROLL
    for (int j = 0; j < kV; ++j) sum[i][j] = _mm512_fmadd_ps(each, shared[j], sum[i][j]);
  }
}

template <int kQ, int kV>
TF_INLINE512 void Clear(__m512 (&sum)[kQ][kV]) {
  TF_UNROLL
  for (int i = 0; i < kQ * kV; ++i) sum[i / kV][i % kV] = _mm512_setzero_ps();
}

template <int kQ>
TF_AVX512 __attribute__((noinline)) void ScoresOf(const Tile& tile, const float* k_page) {
  const float* q[kQ];
  std::copy_n(tile.q, kQ, q);
  __m512 sum[kQ][kVectors];
  Clear(sum);
  for (size_t d = 0; d < tile.dim; ++d) Accumulate(k_page + d * kPage, q, d, sum);
  TF_UNROLL
  for (int i = 0; i < kQ * kVectors; ++i) {
    _mm512_storeu_ps(tile.weights(i / kVectors) + kWide512 * (i % kVectors),
                     sum[i / kVectors][i % kVectors]);
  }
}

// The weighted values, kV vectors of dimensions from `first`.
template <int kQ, int kV>
TF_INLINE512 void MixSome(const Tile& tile, const float* v_page, size_t first) {
  const float* w[kQ];
  for (int i = 0; i < kQ; ++i) w[i] = tile.weights(i);
  __m512 sum[kQ][kV];
  Clear(sum);
  for (int64_t s = tile.begin; s < tile.end; ++s) {
    Accumulate(v_page + s * tile.dim + first, w, s, sum);
  }
  TF_UNROLL
  for (int i = 0; i < kQ * kV; ++i) {
    _mm512_storeu_ps(tile.mix(i / kV) + first + kWide512 * (i % kV), sum[i / kV][i % kV]);
  }
}

template <int kQ>
TF_AVX512 __attribute__((noinline)) void MixOf(const Tile& tile, const float* v_page) {
  size_t d = 0;
  for (; d + kVectors * kWide512 <= tile.dim; d += kVectors * kWide512) {
    MixSome<kQ, kVectors>(tile, v_page, d);
  }
  for (; d < tile.dim; d += kWide512) MixSome<kQ, 1>(tile, v_page, d);
}

// As WeightsOf.
TF_AVX512 void WideWeights(const Tile& tile, int i) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i from = _mm512_set1_epi32(static_cast<int>(tile.begin));
  const __m512i to = _mm512_set1_epi32(static_cast<int>(tile.end));
  const __m512 none = _mm512_set1_ps(-INFINITY);
  float* const score = tile.weights(i);
  const int first = static_cast<int>(tile.begin / 16 * 16), last = static_cast<int>(tile.end);
  __m512 highest = none;
  for (int s = first; s < last; s += 16) {
    const __m512i at = _mm512_add_epi32(lane, _mm512_set1_epi32(s));
    const __mmask16 seen = _mm512_cmpge_epi32_mask(at, from) & _mm512_cmplt_epi32_mask(at, to);
    const __m512 each = _mm512_mask_loadu_ps(none, seen, score + s);
    _mm512_storeu_ps(score + s, each);
    highest = _mm512_max_ps(highest, each);
  }
  const float peak = Max(_mm256_max_ps(Low(highest), High(highest)));
  __m256 sum = _mm256_setzero_ps();
  for (int s = first; s < last; s += 16) {
    const __m512 weight = Exp(_mm512_sub_ps(_mm512_loadu_ps(score + s), _mm512_set1_ps(peak)));
    _mm512_storeu_ps(score + s, weight);
    // In the order of 8 lanes.
    sum = _mm256_add_ps(_mm256_add_ps(sum, Low(weight)), High(weight));
  }
  tile.partials[i * tile.partial_size] = peak;
  tile.partials[i * tile.partial_size + 1] = Sum(sum);
}

struct KernelAvx512 {
  TF_AVX512 static void Weights(const Tile& tile, int i) { WideWeights(tile, i); }
  template <int kQ>
  TF_AVX512 static void Scores(const Tile& tile, const float* k_page) {
    ScoresOf<kQ>(tile, k_page);
  }
  template <int kQ>
  TF_AVX512 static void Mix(const Tile& tile, const float* v_page) {
    MixOf<kQ>(tile, v_page);
  }
};

TF_AVX2 void PageAvx512(const Attention& a, const Unit& unit, int64_t page, float* partials) {
  // A vector of dimensions must be whole.
  if (a.head_dim % kWide512) return kAttendAvx2.page(a, unit, page, partials);
  Page<KernelAvx512>(a, unit, page, partials);
}

TF_AVX512 void MergeAvx512(const Attention& a, size_t queries, const float* page, float* before) {
  if (a.head_dim % kWide512) return kAttendAvx2.merge(a, queries, page, before);
  const size_t size = PartialSize(a);
  for (size_t count; queries; queries -= count) {
    count = std::min(queries, kMergedAtOnce);
    Merged merged;
    merged.Measure(count, size, page, before);
    for (size_t i = 0; i < count; ++i, page += size, before += size) {
      merged.Apply(i, page, before);
      const __m512 kept = _mm512_set1_ps(merged.kept[i]), added = _mm512_set1_ps(merged.added[i]);
      for (size_t d = kMix; d < size; d += kWide512) {
        const __m512 old = _mm512_mul_ps(_mm512_loadu_ps(before + d), kept);
        _mm512_storeu_ps(before + d, _mm512_fmadd_ps(_mm512_loadu_ps(page + d), added, old));
      }
    }
  }
}

}  // namespace

const AttendKernels kAttendAvx512 = {PageAvx512, MergeAvx512};

}  // namespace tensorfold

#endif
