#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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

void WriteRow(const Attention& a, size_t row) {
  const size_t lane = a.lane[row], position = a.position[row];
  const size_t page = a.table[lane * a.pages_per_lane + position / kPage];
  const size_t place = position % kPage, dim = a.head_dim;
  for (size_t h = 0; h < a.kv_heads; ++h) {
    const float* k = a.k + (row * a.kv_heads + h) * dim;
    float* k_page = a.k_pages + (page * a.kv_heads + h) * dim * kPage;
    for (size_t d = 0; d < dim; ++d) k_page[d * kPage + place] = k[d];
    float* v_page = a.v_pages + (page * a.kv_heads + h) * dim * kPage;
    std::memcpy(v_page + place * dim, a.v + (row * a.kv_heads + h) * dim, dim * sizeof(float));
  }
}

}  // namespace

void Attend(const Attention& a) {
  for (size_t row = 0; row < a.rows; ++row) {
    if (a.lane[row] >= 0) {
      WriteRow(a, row);
    } else {
      std::memset(a.out + row * a.heads * a.head_dim, 0, a.heads * a.head_dim * sizeof(float));
    }
  }
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
    for (int64_t page = 0; page <= position / static_cast<int64_t>(kPage); ++page) {
      int64_t begin, end;
      SeenInPage(a, position, page, &begin, &end);
      if (begin >= end) continue;
      const size_t at =
          (a.table[a.lane[row] * a.pages_per_lane + page] * a.kv_heads + kv_head) * dim * kPage;
      float weight[kPage];
      float new_peak = peak;
      for (int64_t s = begin; s < end; ++s) {
        float score = 0;
        for (size_t d = 0; d < dim; ++d) {
          score = std::fma(q[d] * a.scale, a.k_pages[at + d * kPage + s], score);
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
