#include "matmul.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "dispatch.h"
#include "pool.h"

namespace tensorfold {
namespace {

// Rows that one thread prepares at a time.
constexpr size_t kRowsAtOnce = 8;

thread_local Scratch call_scratch;
thread_local std::vector<int32_t> code_scratch;

const MatMulKernels& Kernels() {
#if defined(__x86_64__)
  if (CurrentLevel() == Level::kAvx512) return kMatMulAvx512;
  if (CurrentLevel() == Level::kAvx2) return kMatMulAvx2;
#endif
  return kMatMulPortable;
}

const MatMulInt8Kernels& Int8Kernels() {
#if defined(__x86_64__)
  if (CurrentLevel() == Level::kAvx512 && HasVnni()) return kMatMulInt8Vnni;
  if (CurrentLevel() >= Level::kAvx2) return kMatMulInt8Avx2;
#endif
  return kMatMulInt8Portable;
}

// Calls body(first row, rows) for every block of rows, on all cores.
template <class Body>
void ForRowBlocks(size_t rows, Body&& body) {
  ParallelFor((rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](size_t i) {
    const size_t end = std::min(rows, (i + 1) * kRowsAtOnce);
    for (size_t row = i * kRowsAtOnce, count; row < end; row += count) {
      count = BlockRows(end - row);
      body(row, count);
    }
  });
}

void MatMulInt8(const Matrix& matrix, const Around& around, const float* x, size_t rows,
                float* y) {
  const MatMulInt8Kernels& kernels = Int8Kernels();
  const size_t inputs = matrix.inputs, words = inputs / 4, blocks = inputs / matrix.block();
  if (code_scratch.size() < rows * words) code_scratch.resize(rows * words);
  int32_t* codes = code_scratch.data();
  float* scales = call_scratch.At(rows * (blocks + matrix.groups()));
  float* sums = scales + rows * blocks;
  const size_t x_row = around.x_row(inputs);
  ForRowBlocks(rows, [&](size_t row, size_t count) {
    kernels.prepare(matrix, around, x + row * x_row, count, codes + row * words,
                    scales + row * blocks, sums + row * matrix.groups());
  });
  const PreparedInt8 prepared{codes, scales, sums, rows};
  ParallelFor(matrix.panels(),
              [&](size_t panel) { kernels.panel(matrix, around, prepared, panel, y); });
}

}  // namespace

void MatMul(const Matrix& matrix, const Around& around, const float* x, size_t rows, float* y) {
  if (matrix.int8) return MatMulInt8(matrix, around, x, rows, y);
  const MatMulKernels& kernels = Kernels();
  float* ready = call_scratch.At(rows * (matrix.inputs + matrix.groups()));
  float* sums = ready + rows * matrix.inputs;
  const size_t x_row = around.x_row(matrix.inputs);
  const Prepared prepared{ready, sums, rows};
  ForRowBlocks(rows, [&](size_t row, size_t count) {
    kernels.prepare(matrix, around, x + row * x_row, count, ready + row * matrix.inputs,
                    sums + row * matrix.groups());
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
