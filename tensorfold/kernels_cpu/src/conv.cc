#include "conv.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dispatch.h"
#include "pool.h"

#if defined(__x86_64__)
#include "avx512.h"
#endif

namespace tensorfold {
namespace {

constexpr size_t kChunk = 64;

// Channels that a thread takes through all rows: their filters and a few rows fit the first-level
// cache.
constexpr size_t kChannels = 256;

// sum[c] += x[c] * weight[c]. The compiler makes vectors of it: each channel is by itself, so how
// wide they are changes no bit.
__attribute__((always_inline)) inline void AddTap(const float* __restrict x,
                                                  const float* __restrict weight, size_t count,
                                                  float* __restrict sum) {
  for (size_t c = 0; c < count; ++c) sum[c] = std::fma(x[c], weight[c], sum[c]);
}

using AddTapFunction = void (*)(const float*, const float*, size_t, float*);

void AddTapPortable(const float* x, const float* weight, size_t count, float* sum) {
  AddTap(x, weight, count, sum);
}

#if defined(__x86_64__)
TF_AVX2 void AddTapAvx2(const float* x, const float* weight, size_t count, float* sum) {
  AddTap(x, weight, count, sum);
}

TF_AVX512 void AddTapAvx512(const float* x, const float* weight, size_t count, float* sum) {
  AddTap(x, weight, count, sum);
}
#endif

AddTapFunction BestAddTap() {
#if defined(__x86_64__)
  if (CurrentLevel() == Level::kAvx512) return AddTapAvx512;
  if (CurrentLevel() == Level::kAvx2) return AddTapAvx2;
#endif
  return AddTapPortable;
}

// Some channels, and room for their filters, tap by tap, and for what a lane had before its rows.
struct Block {
  size_t first, count;
  std::vector<float> filters, before;
};

// Where a lane keeps the block's channels of a position.
float* KeptAt(const Convolution& a, const Block& block, size_t lane, size_t position) {
  const size_t at = (lane * 2 + position / kChunk % 2) * kChunk + position % kChunk;
  return a.kept + at * a.channels + block.first;
}

// The rows of one lane from `row` to `end`, in the block's channels.
void ConvolveRun(const Convolution& a, AddTapFunction add_tap, Block& block, size_t row,
                 size_t end) {
  const size_t taps = a.taps, count = block.count, first = row, start = a.position[row];
  // What is kept may be overwritten below by rows two chunks on: it is taken out first.
  for (size_t distance = 1; distance < taps; ++distance) {
    float* to = block.before.data() + distance * kChannels;
    if (distance > start) {
      std::fill_n(to, count, 0.0f);
    } else {
      std::copy_n(KeptAt(a, block, a.lane[row], start - distance), count, to);
    }
  }
  for (; row < end; ++row) {
    const float* const x = a.x + row * a.channels + block.first;
    float* const sum = a.out + row * a.channels + block.first;
    if (a.bias) {
      std::copy_n(a.bias + block.first, count, sum);
    } else {
      std::fill_n(sum, count, 0.0f);
    }
    add_tap(x, block.filters.data() + (taps - 1) * kChannels, count, sum);
    for (size_t distance = taps - 1; distance > 0; --distance) {
      const size_t done = row - first;
      const float* past = distance <= done
                              ? x - distance * a.channels
                              : block.before.data() + (distance - done) * kChannels;
      add_tap(past, block.filters.data() + (taps - 1 - distance) * kChannels, count, sum);
    }
  }
  // Of more than two chunks the last two.
  const size_t last = a.position[end - 1] / kChunk;
  for (row = first; row < end; ++row) {
    const size_t position = a.position[row];
    if (position / kChunk + 2 <= last) continue;
    std::copy_n(a.x + row * a.channels + block.first, count,
                KeptAt(a, block, a.lane[row], position));
  }
}

void ConvolveBlock(const Convolution& a, AddTapFunction add_tap, size_t first) {
  Block block{first, std::min(kChannels, a.channels - first), {}, {}};
  block.filters.resize(a.taps * kChannels);
  block.before.resize(a.taps * kChannels);
  for (size_t c = 0; c < block.count; ++c) {
    for (size_t tap = 0; tap < a.taps; ++tap) {
      block.filters[tap * kChannels + c] = a.weight[(first + c) * a.taps + tap];
    }
  }
  for (size_t row = 0, end; row < a.rows; row = end) {
    end = row + 1;
    while (end < a.rows && a.lane[end] == a.lane[row]) ++end;
    if (a.lane[row] >= 0) {
      ConvolveRun(a, add_tap, block, row, end);
      continue;
    }
    for (; row < end; ++row) std::fill_n(a.out + row * a.channels + first, block.count, 0.0f);
  }
}

}  // namespace

void Convolve(const Convolution& a) {
  const AddTapFunction add_tap = BestAddTap();
  ParallelFor((a.channels + kChannels - 1) / kChannels,
              [&](size_t i) { ConvolveBlock(a, add_tap, i * kChannels); });
}

}  // namespace tensorfold
