#include "attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dispatch.h"
#include "pool.h"

namespace tensorfold {
namespace {

struct Item {
  size_t first_row, rows;
};

// Each lane's run of rows in items of at most kQueries.
std::vector<Item> Items(const Attention& a) {
  std::vector<Item> items;
  for (size_t r = 0; r < a.rows;) {
    size_t end = r + 1;
    while (end < a.rows && a.lane[end] == a.lane[r] && end - r < kQueries) ++end;
    if (a.lane[r] >= 0) items.push_back({r, end - r});
    r = end;
  }
  return items;
}

constexpr size_t kRowsAtOnce = 16;

// One head, normalised and rotated.
void Turn(const Attention& a, size_t row, const float* head, const float* norm, float scale,
          float* out) {
  const size_t dim = a.head_dim, half = dim / 2;
  float factor = 1;
  if (norm) {
    float lanes[8] = {0};
    for (size_t d = 0; d < dim; ++d) lanes[d % 8] += head[d] * head[d];
    const float sum = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                      ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
    factor = 1.0f / std::sqrt(sum / static_cast<float>(dim) + a.epsilon);
  }
  const float* cos = a.cos + row * half;
  const float* sin = a.sin + row * half;
  for (size_t d = 0; d < half; ++d) {
    float first = head[d], second = head[half + d];
    if (norm) {
      first = first * factor * norm[d];
      second = second * factor * norm[half + d];
    }
    out[d] = (first * cos[d] - second * sin[d]) * scale;
    out[half + d] = (second * cos[d] + first * sin[d]) * scale;
  }
}

// Everything about one row that comes before attention.
void PlaceRow(const Attention& a, size_t row) {
  const size_t dim = a.head_dim;
  if (a.lane[row] < 0) {
    std::fill_n(a.out + row * a.heads * dim, a.heads * dim, 0.0f);
    return;
  }
  const float* q = a.qkv + row * (a.heads + 2 * a.kv_heads) * dim;
  const float* k = q + a.heads * dim;
  const float* v = k + a.kv_heads * dim;
  for (size_t h = 0; h < a.heads; ++h) {
    Turn(a, row, q + h * dim, a.q_norm, a.scale, a.q + (row * a.heads + h) * dim);
  }
  const size_t lane = a.lane[row], position = a.position[row];
  const size_t page = a.table[lane * a.pages_per_lane + position / kPage];
  const size_t place = position % kPage;
  std::vector<float> turned(dim);
  for (size_t h = 0; h < a.kv_heads; ++h) {
    Turn(a, row, k + h * dim, a.k_norm, 1.0f, turned.data());
    float* k_page = a.k_pages + (page * a.kv_heads + h) * dim * kPage;
    for (size_t d = 0; d < dim; ++d) k_page[d * kPage + place] = turned[d];
    float* v_page = a.v_pages + (page * a.kv_heads + h) * dim * kPage;
    std::copy_n(v + h * dim, dim, v_page + place * dim);
  }
}

}  // namespace

void Attend(const Attention& a) {
  ParallelFor((a.rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](size_t block) {
    const size_t end = std::min(a.rows, (block + 1) * kRowsAtOnce);
    for (size_t row = block * kRowsAtOnce; row < end; ++row) PlaceRow(a, row);
  });
  const AttendKernel kernel =
#if defined(__x86_64__)
      CurrentLevel() == Level::kAvx2 ? AttendAvx2 :
#endif
                                     AttendPortable;
  const std::vector<Item> items = Items(a);
  ParallelFor(items.size() * a.heads, [&](size_t i) {
    const Item& item = items[i / a.heads];
    kernel(a, item.first_row, item.rows, i % a.heads);
  });
}

void AttendPortable(const Attention& a, size_t first_row, size_t rows, size_t head) {
  const size_t dim = a.head_dim, kv_head = head / (a.heads / a.kv_heads);
  for (size_t row = first_row; row < first_row + rows; ++row) {
    const float* q = a.q + (row * a.heads + head) * dim;
    float* out = a.out + (row * a.heads + head) * dim;
    const int64_t position = a.position[row];
    std::vector<float> mixed(dim, 0.0f);
    float peak = -INFINITY, total = 0;
    const int64_t last = position / static_cast<int64_t>(kPage);
    for (int64_t page = FirstPage(a, position); page <= last; ++page) {
      int64_t begin, end;
      SeenInPage(a, position, page, &begin, &end);
      const size_t at =
          (a.table[a.lane[row] * a.pages_per_lane + page] * a.kv_heads + kv_head) * dim * kPage;
      float weight[kPage];
      float new_peak = peak;
      for (int64_t s = begin; s < end; ++s) {
        float score = 0;
        for (size_t d = 0; d < dim; ++d) {
          score = std::fma(q[d], a.k_pages[at + d * kPage + s], score);
        }
        weight[s] = score;
        new_peak = std::max(new_peak, score);
      }
      const float kept = std::exp(peak - new_peak);
      float lanes[8] = {0};
      for (int64_t s = begin; s < end; ++s) {
        weight[s] = std::exp(weight[s] - new_peak);
        lanes[s % 8] += weight[s];
      }
      const float sum = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                        ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
      total = std::fma(total, kept, sum);
      for (size_t d = 0; d < dim; ++d) {
        float value = mixed[d] * kept;
        for (int64_t s = begin; s < end; ++s) {
          value = std::fma(weight[s], a.v_pages[at + s * dim + d], value);
        }
        mixed[d] = value;
      }
      peak = new_peak;
    }
    for (size_t d = 0; d < dim; ++d) out[d] = mixed[d] / total;
  }
}

}  // namespace tensorfold
