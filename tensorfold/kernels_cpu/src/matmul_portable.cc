// The matmul kernels in plain C++: right everywhere, and the statement of what the others compute.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "matmul.h"
#include "pool.h"

namespace tensorfold {
namespace {

constexpr size_t kLanes = 8;

float Meet(const float (&lanes)[kLanes]) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

float Scale(const Matrix& matrix, const unsigned char* scales, size_t at) {
  if (matrix.half_scales) {
    uint16_t half;
    std::memcpy(&half, scales + at * 2, sizeof half);
    return HalfToFloat(half);
  }
  float value;
  std::memcpy(&value, scales + at * 4, sizeof value);
  return value;
}

uint32_t Code(const Matrix& matrix, size_t output, size_t input) {
  const size_t per_word = matrix.codes_per_word(), bits = 32 / per_word;
  uint32_t word;
  std::memcpy(&word, matrix.codes(output / kTile) + (input / per_word * kTile + output % kTile) * 4,
              sizeof word);
  return (word >> (input % per_word * bits)) & ((1u << bits) - 1);
}

float DenseValue(const Matrix& matrix, size_t output, size_t input) {
  const unsigned char* tile = matrix.codes(output / kTile);
  const size_t at = input * kTile + output % kTile;
  uint32_t wide;
  uint16_t bits;
  if (matrix.format == Format::kF32) {
    std::memcpy(&wide, tile + at * 4, sizeof wide);
  } else {
    std::memcpy(&bits, tile + at * 2, sizeof bits);
    if (matrix.format == Format::kF16) return HalfToFloat(bits);
    wide = static_cast<uint32_t>(bits) << 16;
  }
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Code i of a word is masked out where it stands, so it counts 16^i (or 256^i) times too much. The
// last one is shifted down instead, to keep clear of the sign.
size_t CodePlace(const Matrix& matrix, size_t input) {
  const size_t per_word = matrix.codes_per_word(), i = input % per_word;
  return i + 1 < per_word ? i * (32 / per_word) : 0;
}

void Prepare(const Matrix& matrix, const Around& around, const float* x, float* ready,
             float* sums) {
  const size_t inputs = matrix.inputs;
  for (size_t k = 0; k < inputs; ++k) {
    ready[k] = around.gated ? x[k] / (1.0f + std::exp(-x[k])) * x[inputs + k] : x[k];
  }
  if (around.norm) {
    float lanes[kLanes] = {0};
    for (size_t k = 0; k < inputs; ++k) {
      lanes[k % kLanes] = std::fma(ready[k], ready[k], lanes[k % kLanes]);
    }
    const float mean = Meet(lanes) / static_cast<float>(inputs);
    const float factor = 1.0f / std::sqrt(mean + around.epsilon);
    for (size_t k = 0; k < inputs; ++k) ready[k] = ready[k] * factor * around.norm[k];
  }
  if (!sums) return;
  for (size_t g = 0; g < matrix.groups(); ++g) {
    float lanes[kLanes] = {0};
    for (size_t k = g * matrix.group; k < (g + 1) * matrix.group; ++k) {
      lanes[k % kLanes] += ready[k];
    }
    sums[g] = Meet(lanes);
  }
  for (size_t k = 0; k < inputs; ++k) {
    // A power of two divides exactly.
    ready[k] = std::ldexp(ready[k], -static_cast<int>(CodePlace(matrix, k)));
  }
}

float Dot(const Matrix& matrix, const float* x, const float* sums, size_t output) {
  float total = 0;
  if (!matrix.codes_per_word()) {
    for (size_t k = 0; k < matrix.inputs; ++k) {
      total = std::fma(DenseValue(matrix, output, k), x[k], total);
    }
    return total;
  }
  for (size_t g = 0; g < matrix.groups(); ++g) {
    float sum = 0;
    for (size_t k = g * matrix.group; k < (g + 1) * matrix.group; ++k) {
      const float code = static_cast<float>(Code(matrix, output, k));
      sum = std::fma(std::ldexp(code, static_cast<int>(CodePlace(matrix, k))), x[k], sum);
    }
    const size_t at = g * kTile + output % kTile, tile = output / kTile;
    total = std::fma(sum, Scale(matrix, matrix.scale(tile), at), total);
    total = std::fma(sums[g], Scale(matrix, matrix.offset(tile), at), total);
  }
  return total;
}

void Block(const Matrix& matrix, const Around& around, const Prepared& prepared, size_t first,
           size_t count, float* y) {
  const size_t end = std::min((first + count) * kTile, matrix.outputs);
  for (size_t r = 0; r < prepared.rows; ++r) {
    const float* x = prepared.x + r * matrix.inputs;
    const float* sums = prepared.sums ? prepared.sums + r * matrix.groups() : nullptr;
    for (size_t n = first * kTile; n < end; ++n) {
      float total = Dot(matrix, x, sums, n);
      if (around.bias) total += around.bias[n];
      if (around.residual) total += around.residual[r * matrix.outputs + n];
      y[r * matrix.outputs + n] = total;
    }
  }
}

}  // namespace

const MatMulKernels kMatMulPortable = {Prepare, Block};

void TakeRows(const Matrix& matrix, const int32_t* index, size_t rows, float* y) {
  constexpr size_t kRowsAtOnce = 16;
  ParallelFor((rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](size_t block) {
    const size_t end = std::min(rows, (block + 1) * kRowsAtOnce);
    for (size_t r = block * kRowsAtOnce; r < end; ++r) {
      float* out = y + r * matrix.inputs;
      if (index[r] < 0 || static_cast<size_t>(index[r]) >= matrix.outputs) {
        std::fill(out, out + matrix.inputs, 0.0f);
        continue;
      }
      const size_t output = index[r], tile = output / kTile;
      for (size_t k = 0; k < matrix.inputs; ++k) {
        if (!matrix.codes_per_word()) {
          out[k] = DenseValue(matrix, output, k);
          continue;
        }
        const size_t at = k / matrix.group * kTile + output % kTile;
        const float scale = Scale(matrix, matrix.scale(tile), at);
        const float offset = Scale(matrix, matrix.offset(tile), at);
        out[k] = static_cast<float>(Code(matrix, output, k)) * scale + offset;
      }
    }
  });
}

}  // namespace tensorfold
