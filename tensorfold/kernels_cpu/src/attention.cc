#include "attention.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "dispatch.h"
#include "pool.h"

namespace tensorfold {
namespace {

// Rows that one thread places at a time.
constexpr size_t kRowsAtOnce = 8;

// With fewer units the threads share their pages.
constexpr size_t kUnitsPerThread = 6;

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

// Each lane's run of rows in units.
std::vector<Unit> Units(const Attention& a) {
  std::vector<Unit> units;
  for (size_t row = 0, end; row < a.rows; row = end) {
    end = row + 1;
    while (end < a.rows && a.lane[end] == a.lane[row] && end - row < kUnitRows) ++end;
    for (size_t h = 0; h < a.kv_heads && a.lane[row] >= 0; ++h) units.push_back({row, end - row, h});
  }
  return units;
}

// The pages that a unit's rows see: [first, end).
struct Pages {
  Pages(const Attention& a, const Unit& unit)
      : first(FirstPage(a, a.position[unit.first_row])),
        end(a.position[unit.first_row + unit.rows - 1] / static_cast<int64_t>(kPage) + 1) {}
  int64_t first, end;
};

// Merges the partials of one page of a unit into those of the pages before.
void MergePage(const Attention& a, const AttendKernels& kernels, const Unit& unit, int64_t page,
               const float* partials, float* before) {
  const auto sees = [&](size_t row) {
    int64_t begin, end;
    SeenInPage(a, a.position[unit.first_row + row], page, &begin, &end);
    return begin < end;
  };
  for (size_t row = 0, end; row < unit.rows; row = end) {
    end = row + 1;
    if (!sees(row)) continue;
    while (end < unit.rows && sees(end)) ++end;
    const size_t at = row * a.group() * PartialSize(a);
    kernels.merge(a, (end - row) * a.group(), partials + at, before + at);
  }
}

// What comes before the first page.
void Start(const Attention& a, const Unit& unit, float* partials) {
  const size_t queries = unit.rows * a.group(), size = PartialSize(a);
  std::fill_n(partials, queries * size, 0.0f);
  for (size_t i = 0; i < queries; ++i, partials += size) {
    partials[0] = a.sinks ? a.sinks[unit.kv_head * a.group() + i % a.group()] : -INFINITY;
    partials[1] = a.sinks ? 1.0f : 0.0f;
  }
}

void Finish(const Attention& a, const Unit& unit, const float* partials) {
  for (size_t i = 0; i < unit.rows * a.group(); ++i, partials += PartialSize(a)) {
    float* out = a.out + (a.query(unit, i) - a.q);
    for (size_t d = 0; d < a.head_dim; ++d) out[d] = partials[kMix + d] / partials[1];
  }
}

// Pages one after another, each merged at once.
void AttendUnit(const Attention& a, const AttendKernels& kernels, const Unit& unit) {
  const size_t size = PartialSize(a), queries = unit.rows * a.group();
  thread_local std::vector<float> memory;
  if (memory.size() < 2 * queries * size) memory.resize(2 * queries * size);
  float* before = memory.data();
  float* partials = before + queries * size;
  Start(a, unit, before);
  const Pages pages(a, unit);
  for (int64_t page = pages.first; page < pages.end; ++page) {
    kernels.page(a, unit, page, partials);
    MergePage(a, kernels, unit, page, partials, before);
  }
  Finish(a, unit, before);
}

// With few units all pages at once, so that every thread has work, and then the merging.
void AttendPages(const Attention& a, const AttendKernels& kernels, const std::vector<Unit>& units) {
  struct Task {
    size_t unit;
    int64_t page;
    size_t partials;
  };
  const size_t size = PartialSize(a);
  std::vector<Task> tasks;
  std::vector<size_t> first_task;
  size_t room = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    first_task.push_back(tasks.size());
    const Pages pages(a, units[u]);
    for (int64_t page = pages.first; page < pages.end; ++page) {
      tasks.push_back({u, page, room});
      room += units[u].rows * a.group() * size;
    }
  }
  const std::unique_ptr<float[]> partials(new float[room]);
  ParallelFor(tasks.size(), [&](size_t t) {
    kernels.page(a, units[tasks[t].unit], tasks[t].page, partials.get() + tasks[t].partials);
  });
  for (size_t u = 0; u < units.size(); ++u) {
    const Unit& unit = units[u];
    const size_t queries = unit.rows * a.group();
    std::vector<float> before(queries * size);
    Start(a, unit, before.data());
    for (size_t t = first_task[u]; t < tasks.size() && tasks[t].unit == u; ++t) {
      MergePage(a, kernels, unit, tasks[t].page, partials.get() + tasks[t].partials, before.data());
    }
    Finish(a, unit, before.data());
  }
}

void PagePortable(const Attention& a, const Unit& unit, int64_t page, float* partials) {
  const size_t dim = a.head_dim, group = a.group();
  const size_t at = a.page_at(unit.first_row, page, unit.kv_head);
  for (size_t i = 0; i < unit.rows * group; ++i, partials += PartialSize(a)) {
    int64_t begin, end;
    SeenInPage(a, a.position[unit.first_row + i / group], page, &begin, &end);
    if (begin >= end) continue;
    const float* q = a.query(unit, i);
    float* weight = partials + kWeights;
    float peak = -INFINITY;
    for (int64_t s = begin; s < end; ++s) {
      float score = 0;
      for (size_t d = 0; d < dim; ++d) {
        score = std::fma(q[d], a.k_pages[at + d * kPage + s], score);
      }
      weight[s] = score;
      peak = std::max(peak, score);
    }
    float lanes[8] = {0};
    for (int64_t s = begin; s < end; ++s) {
      weight[s] = std::exp(weight[s] - peak);
      lanes[s % 8] += weight[s];
    }
    partials[0] = peak;
    partials[1] = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                  ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
    for (size_t d = 0; d < dim; ++d) {
      float value = 0;
      for (int64_t s = begin; s < end; ++s) {
        value = std::fma(weight[s], a.v_pages[at + s * dim + d], value);
      }
      partials[kMix + d] = value;
    }
  }
}

void MergePortable(const Attention& a, size_t queries, const float* page, float* before) {
  const size_t size = PartialSize(a);
  for (size_t i = 0; i < queries; ++i, page += size, before += size) {
    const float peak = std::max(before[0], page[0]);
    const float kept = std::exp(before[0] - peak), added = std::exp(page[0] - peak);
    before[0] = peak;
    before[1] = std::fma(page[1], added, before[1] * kept);
    for (size_t d = kMix; d < size; ++d) before[d] = std::fma(page[d], added, before[d] * kept);
  }
}

}  // namespace

const AttendKernels kAttendPortable = {PagePortable, MergePortable};

void Attend(const Attention& a) {
  ParallelFor((a.rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](size_t block) {
    const size_t end = std::min(a.rows, (block + 1) * kRowsAtOnce);
    for (size_t row = block * kRowsAtOnce; row < end; ++row) PlaceRow(a, row);
  });
  const AttendKernels& kernels =
#if defined(__x86_64__)
      CurrentLevel() == Level::kAvx512 ? kAttendAvx512
      : CurrentLevel() == Level::kAvx2 ? kAttendAvx2 :
#endif
                                       kAttendPortable;
  const std::vector<Unit> units = Units(a);
  if (units.size() < kUnitsPerThread * Threads()) return AttendPages(a, kernels, units);
  ParallelFor(units.size(), [&](size_t i) { AttendUnit(a, kernels, units[i]); });
}

}  // namespace tensorfold
