#include "matmul.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "dispatch.h"
#include "pool.h"

namespace tensorfold {
namespace {

// Rows that one thread prepares at a time.
constexpr size_t kRowsAtOnce = 8;

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
  if (CurrentLevel() == Level::kAvx512) return kMatMulAvx512;
  if (CurrentLevel() == Level::kAvx2) return kMatMulAvx2;
#endif
  return kMatMulPortable;
}

}  // namespace

void MatMul(const Matrix& matrix, const Around& around, const float* x, size_t rows, float* y) {
  const MatMulKernels& kernels = Kernels();
  float* ready = Scratch(rows * (matrix.inputs + matrix.groups()));
  float* sums = ready + rows * matrix.inputs;
  const size_t x_row = around.gated ? 2 * matrix.inputs : matrix.inputs;
  const Prepared prepared{ready, sums, rows};
  ParallelFor((rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](size_t i) {
    const size_t end = std::min(rows, (i + 1) * kRowsAtOnce);
    for (size_t row = i * kRowsAtOnce, count; row < end; row += count) {
      count = BlockRows(end - row);
      kernels.prepare(matrix, around, x + row * x_row, count, ready + row * matrix.inputs,
                      sums + row * matrix.groups());
    }
  });
  ParallelFor(matrix.panels(),
              [&](size_t panel) { kernels.panel(matrix, around, prepared, panel, y); });
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
