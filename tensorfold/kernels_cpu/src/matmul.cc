#include "matmul.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "dispatch.h"
#include "pool.h"

namespace tensorfold {
namespace {

// Tiles that one thread takes at a time: a multiple of every block width of the kernels.
constexpr size_t kTilesAtOnce = 24;
constexpr size_t kTilesAtOnceFewRows = 12;
constexpr size_t kFewRows = 4;

constexpr size_t kRowsAtOnce = 16;

float* Scratch(size_t floats) {
  // A kernel runs on one of a few threads, which come back again and again.
  thread_local std::unique_ptr<float[]> memory;
  thread_local size_t size = 0;
  if (size < floats) {
    memory.reset(new float[floats]);
    size = floats;
  }
  return memory.get();
}

const MatMulKernels& Kernels() {
#if defined(__x86_64__)
  if (CurrentLevel() == Level::kAvx2) return kMatMulAvx2;
#endif
  return kMatMulPortable;
}

}  // namespace

void MatMul(const Matrix& matrix, const Around& around, const float* x, size_t rows, float* y) {
  const MatMulKernels& kernels = Kernels();
  const bool quantised = matrix.codes_per_word() > 0;
  Prepared prepared{x, nullptr, rows};
  if (quantised || around.norm || around.gated) {
    const size_t groups = quantised ? matrix.groups() : 0;
    float* ready = Scratch(rows * (matrix.inputs + groups));
    float* sums = quantised ? ready + rows * matrix.inputs : nullptr;
    const size_t x_row = around.gated ? 2 * matrix.inputs : matrix.inputs;
    ParallelFor((rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](size_t block) {
      const size_t end = std::min(rows, (block + 1) * kRowsAtOnce);
      for (size_t r = block * kRowsAtOnce; r < end; ++r) {
        kernels.prepare(matrix, around, x + r * x_row, ready + r * matrix.inputs,
                        sums + r * groups);
      }
    });
    prepared = Prepared{ready, sums, rows};
  }
  const size_t tiles = matrix.tiles();
  const size_t at_once = rows <= kFewRows ? kTilesAtOnceFewRows : kTilesAtOnce;
  ParallelFor((tiles + at_once - 1) / at_once, [&](size_t i) {
    const size_t first = i * at_once;
    kernels.block(matrix, around, prepared, first, std::min(at_once, tiles - first), y);
  });
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 31, mantissa = half & 1023;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  const uint32_t wide =
      sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | (mantissa << 13);
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

}  // namespace tensorfold
