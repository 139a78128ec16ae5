// One page of a unit's queries, for AVX2 with FMA.
#if defined(__x86_64__)

#include <algorithm>
#include <cmath>

#include "attention_tiles.h"

namespace tensorfold {
namespace {

// Vectors of positions or dimensions that kQ queries take at a time: sums enough to wait for none.
template <int kQ>
constexpr int kWide = kQ == 1 ? 8 : kQ == 4 ? 2 : 4;

// sum[q][j] += broadcast(value[q]) * row[j]
template <int kQ, int kV>
TF_INLINE void Accumulate(const float* row, const float* const (&value)[kQ], size_t at,
                          __m256 (&sum)[kQ][kV]) {
  // 3 values, 12 sums and one vector of the row are all 16 registers.
  __m256 each[kQ];
  TF_UNROLL
  for (int i = 0; i < kQ; ++i) {
    each[i] = _mm256_broadcast_ss(value[i] + at);
    KeepInRegister(each[i]);
  }
  TF_UNROLL
  for (int j = 0; j < kV; ++j) {
    __m256 shared = _mm256_loadu_ps(row + 8 * j);
    if constexpr (kQ > 1) KeepInRegister(shared);
    TF_UNROLL
    for (int i = 0; i < kQ; ++i) sum[i][j] = _mm256_fmadd_ps(each[i], shared, sum[i][j]);
  }
}

template <int kQ, int kV>
TF_INLINE void Clear(__m256 (&sum)[kQ][kV]) {
  TF_UNROLL
  for (int i = 0; i < kQ * kV; ++i) sum[i / kV][i % kV] = _mm256_setzero_ps();
}

// Scores of kQ queries against the positions that they see and some beside them.
template <int kQ>
TF_AVX2 void ScoresOf(const Tile& tile, const float* k_page) {
  constexpr int kV = kWide<kQ>;
  const float* q[kQ];
  std::copy_n(tile.q, kQ, q);
  for (int64_t s = tile.begin / (8 * kV) * (8 * kV); s < tile.end; s += 8 * kV) {
    __m256 sum[kQ][kV];
    Clear(sum);
    for (size_t d = 0; d < tile.dim; ++d) Accumulate(k_page + d * kPage + s, q, d, sum);
    TF_UNROLL
    for (int i = 0; i < kQ * kV; ++i) {
      _mm256_storeu_ps(tile.weights(i / kV) + s + 8 * (i % kV), sum[i / kV][i % kV]);
    }
  }
}

// The weighted values, kV vectors of dimensions from `first`.
template <int kQ, int kV>
TF_INLINE void MixSome(const Tile& tile, const float* v_page, size_t first) {
  const float* w[kQ];
  for (int i = 0; i < kQ; ++i) w[i] = tile.weights(i);
  __m256 sum[kQ][kV];
  Clear(sum);
  for (int64_t s = tile.begin; s < tile.end; ++s) {
    Accumulate(v_page + s * tile.dim + first, w, s, sum);
  }
  TF_UNROLL
  for (int i = 0; i < kQ * kV; ++i) {
    _mm256_storeu_ps(tile.mix(i / kV) + first + 8 * (i % kV), sum[i / kV][i % kV]);
  }
}

template <int kQ>
TF_AVX2 void MixOf(const Tile& tile, const float* v_page) {
  size_t d = 0;
  for (; d + 8 * kWide<kQ> <= tile.dim; d += 8 * kWide<kQ>) {
    MixSome<kQ, kWide<kQ>>(tile, v_page, d);
  }
  for (; d < tile.dim; d += 8) MixSome<kQ, 1>(tile, v_page, d);
}

struct KernelAvx2 {
  TF_AVX2 static void Weights(const Tile& tile, int i) { WeightsOf(tile, i); }
  template <int kQ>
  TF_AVX2 static void Scores(const Tile& tile, const float* k_page) {
    ScoresOf<kQ>(tile, k_page);
  }
  template <int kQ>
  TF_AVX2 static void Mix(const Tile& tile, const float* v_page) {
    MixOf<kQ>(tile, v_page);
  }
};

TF_AVX2 void MergeAvx2(const Attention& a, size_t queries, const float* page, float* before) {
  const size_t size = PartialSize(a);
  for (size_t count; queries; queries -= count) {
    count = std::min(queries, kMergedAtOnce);
    Merged merged;
    merged.Measure(count, size, page, before);
    for (size_t i = 0; i < count; ++i, page += size, before += size) {
      merged.Apply(i, page, before);
      const __m256 kept = _mm256_set1_ps(merged.kept[i]), added = _mm256_set1_ps(merged.added[i]);
      for (size_t d = kMix; d < size; d += 8) {
        const __m256 old = _mm256_mul_ps(_mm256_loadu_ps(before + d), kept);
        _mm256_storeu_ps(before + d, _mm256_fmadd_ps(_mm256_loadu_ps(page + d), added, old));
      }
    }
  }
}

}  // namespace

const AttendKernels kAttendAvx2 = {Page<KernelAvx2>, MergeAvx2};

}  // namespace tensorfold

#endif
