// One head of some rows of a lane, for AVX2 with FMA.
//
// A page's keys lie with their 64 positions side by side and its values with their dimensions side
// by side, so neither product needs a sum across a vector. A page is read once for all rows of the
// item: 32 KiB from the second-level cache at head_dim 64, hidden from 4 rows up.
#if defined(__x86_64__)

#include <cmath>
#include <cstring>

#include "attention.h"
#include "avx2.h"

namespace tensorfold {
namespace {

constexpr int kVectors = kPage / 8;
constexpr size_t kMaxDim = 512;

TF_INLINE float ExpOne(float x) { return _mm256_cvtss_f32(Exp(_mm256_set1_ps(x))); }

struct Running {
  float peak, total;
};

// Scores of one row against the 64 keys of a page.
TF_INLINE void Scores(const float* q, const float* k_page, size_t dim, __m256 (&score)[kVectors]) {
  TF_UNROLL
  for (int j = 0; j < kVectors; ++j) score[j] = _mm256_setzero_ps();
  for (size_t d = 0; d < dim; ++d) {
    const __m256 value = _mm256_broadcast_ss(q + d);
    TF_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      score[j] = _mm256_fmadd_ps(value, _mm256_loadu_ps(k_page + d * kPage + 8 * j), score[j]);
    }
  }
}

// Turns scores into weights, 0 outside [begin, end); the factor for what came before.
TF_INLINE float Weights(__m256 (&score)[kVectors], int64_t begin, int64_t end, Running* running) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i from = _mm256_set1_epi32(static_cast<int>(begin) - 1);
  const __m256i to = _mm256_set1_epi32(static_cast<int>(end));
  const __m256 none = _mm256_set1_ps(-INFINITY);
  __m256 peak = none;
  TF_UNROLL
  for (int j = 0; j < kVectors; ++j) {
    const __m256i at = _mm256_add_epi32(lane, _mm256_set1_epi32(8 * j));
    const __m256i seen = _mm256_and_si256(_mm256_cmpgt_epi32(at, from), _mm256_cmpgt_epi32(to, at));
    score[j] = _mm256_blendv_ps(none, score[j], _mm256_castsi256_ps(seen));
    peak = _mm256_max_ps(peak, score[j]);
  }
  const float new_peak = std::fmax(running->peak, Max(peak));
  const float kept = ExpOne(running->peak - new_peak);
  __m256 sum = _mm256_setzero_ps();
  TF_UNROLL
  for (int j = 0; j < kVectors; ++j) {
    score[j] = Exp(_mm256_sub_ps(score[j], _mm256_set1_ps(new_peak)));
    sum = _mm256_add_ps(sum, score[j]);
  }
  running->total = std::fma(running->total, kept, Sum(sum));
  running->peak = new_peak;
  return kept;
}

// mixed = mixed * kept + the weighted values, kWide vectors of dimensions at a time.
template <int kWide>
TF_INLINE void Mix(const float* weight, int64_t begin, int64_t end, const float* v_page, size_t dim,
                   float kept, float* mixed) {
  __m256 sum[kWide];
  const __m256 factor = _mm256_set1_ps(kept);
  TF_UNROLL
  for (int j = 0; j < kWide; ++j) sum[j] = _mm256_mul_ps(_mm256_loadu_ps(mixed + 8 * j), factor);
  for (int64_t s = begin; s < end; ++s) {
    const __m256 w = _mm256_broadcast_ss(weight + s);
    TF_UNROLL
    for (int j = 0; j < kWide; ++j) {
      sum[j] = _mm256_fmadd_ps(w, _mm256_loadu_ps(v_page + s * dim + 8 * j), sum[j]);
    }
  }
  TF_UNROLL
  for (int j = 0; j < kWide; ++j) _mm256_storeu_ps(mixed + 8 * j, sum[j]);
}

}  // namespace

TF_AVX2 void AttendAvx2(const Attention& a, size_t first_row, size_t rows, size_t head) {
  const size_t dim = a.head_dim;
  if (dim > kMaxDim) return AttendPortable(a, first_row, rows, head);
  const size_t kv_head = head / (a.heads / a.kv_heads);
  const int32_t* table = a.table + a.lane[first_row] * a.pages_per_lane;
  alignas(32) float mixed[kQueries][kMaxDim];
  Running running[kQueries];
  for (size_t r = 0; r < rows; ++r) {
    std::memset(mixed[r], 0, dim * sizeof(float));
    running[r] = {-INFINITY, 0};
  }
  const int64_t last = a.position[first_row + rows - 1] / static_cast<int64_t>(kPage);
  for (int64_t page = FirstPage(a, a.position[first_row]); page <= last; ++page) {
    const size_t at = (static_cast<size_t>(table[page]) * a.kv_heads + kv_head) * dim * kPage;
    const float* v_page = a.v_pages + at;
    for (size_t r = 0; r < rows; ++r) {
      int64_t begin, end;
      SeenInPage(a, a.position[first_row + r], page, &begin, &end);
      if (begin >= end) continue;
      __m256 score[kVectors];
      const float* q = a.q + ((first_row + r) * a.heads + head) * dim;
      Scores(q, a.k_pages + at, dim, score);
      const float kept = Weights(score, begin, end, &running[r]);
      alignas(32) float weight[kPage];
      for (int j = 0; j < kVectors; ++j) _mm256_store_ps(weight + 8 * j, score[j]);
      size_t d = 0;
      for (; d + 64 <= dim; d += 64) {
        Mix<8>(weight, begin, end, v_page + d, dim, kept, mixed[r] + d);
      }
      for (; d < dim; d += 8) Mix<1>(weight, begin, end, v_page + d, dim, kept, mixed[r] + d);
    }
  }
  for (size_t r = 0; r < rows; ++r) {
    float* out = a.out + ((first_row + r) * a.heads + head) * dim;
    const __m256 total = _mm256_set1_ps(running[r].total);
    for (size_t d = 0; d < dim; d += 8) {
      _mm256_storeu_ps(out + d, _mm256_div_ps(_mm256_load_ps(mixed[r] + d), total));
    }
  }
}

}  // namespace tensorfold

#endif
