#include "matmul.h"

#include <cmath>
#include <cstring>
#include <memory>

#include "dispatch.h"
#include "pool.h"

namespace tensorfold {
namespace {

constexpr size_t kGroupSumWidth = 8;

// Tiles that one thread takes at a time: a multiple of every block width of the kernels.
constexpr size_t kTilesAtOnce = 24;
constexpr size_t kTilesAtOnceFewRows = 12;

size_t CodesPerWord(Format format) {
  return format == Format::kQ4 ? 8 : format == Format::kQ8 ? 4 : 0;
}

// One row of x as the kernels want it. Code i of a word is masked out where it stands, so it counts
// 16^i (or 256^i) times too much; the last one is shifted down instead, to keep clear of the sign.
// A power of two divides exactly.
void PrepareRow(const Matrix& matrix, const float* x, float* scaled, float* sums) {
  const size_t per_word = CodesPerWord(matrix.format);
  const float step = matrix.format == Format::kQ4 ? 1.0f / 16 : 1.0f / 256;
  float power[8] = {1};
  for (size_t i = 1; i + 1 < per_word; ++i) power[i] = power[i - 1] * step;
  power[per_word - 1] = 1;
  for (size_t k = 0; k < matrix.inputs; k += per_word) {
    for (size_t i = 0; i < per_word; ++i) scaled[k + i] = x[k + i] * power[i];
  }
  for (size_t g = 0; g < matrix.groups(); ++g) {
    float lanes[kGroupSumWidth] = {0};
    const float* part = x + g * matrix.group;
    for (size_t k = 0; k < matrix.group; k += kGroupSumWidth) {
      for (size_t i = 0; i < kGroupSumWidth; ++i) lanes[i] += part[k + i];
    }
    sums[g] = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
              ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  }
}

float Scale(const Matrix& matrix, const void* scales, size_t at) {
  if (!matrix.half_scales) return static_cast<const float*>(scales)[at];
  return HalfToFloat(static_cast<const uint16_t*>(scales)[at]);
}

uint32_t Code(const Matrix& matrix, size_t output, size_t input) {
  const size_t per_word = CodesPerWord(matrix.format);
  const size_t words = matrix.inputs / per_word;
  const size_t at = (output / kTile * words + input / per_word) * kTile + output % kTile;
  const uint32_t word = static_cast<const uint32_t*>(matrix.codes)[at];
  const size_t bits = 32 / per_word;
  return (word >> (input % per_word * bits)) & ((1u << bits) - 1);
}

float Dense(const Matrix& matrix, size_t output, size_t input) {
  const size_t at = (output / kTile * matrix.inputs + input) * kTile + output % kTile;
  if (matrix.format == Format::kF32) return static_cast<const float*>(matrix.codes)[at];
  const uint16_t bits = static_cast<const uint16_t*>(matrix.codes)[at];
  if (matrix.format == Format::kF16) return HalfToFloat(bits);
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

float* Scratch(size_t floats) {
  // A kernel runs on one of XLA's threads, which come back again and again.
  thread_local std::unique_ptr<float[]> memory;
  thread_local size_t size = 0;
  if (size < floats) {
    memory.reset(new float[floats]);
    size = floats;
  }
  return memory.get();
}

}  // namespace

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 31, mantissa = half & 1023;
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -value : value;
  }
  const uint32_t wide =
      sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | (mantissa << 13);
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

void MatMul(const Matrix& matrix, const float* x, size_t rows, float* y) {
  Prepared prepared{x, nullptr, rows};
  if (CodesPerWord(matrix.format)) {
    float* scaled = Scratch(rows * (matrix.inputs + matrix.groups()));
    float* sums = scaled + rows * matrix.inputs;
    const size_t at_once = 16;
    ParallelFor((rows + at_once - 1) / at_once, [&](size_t block) {
      for (size_t r = block * at_once; r < rows && r < (block + 1) * at_once; ++r) {
        PrepareRow(matrix, x + r * matrix.inputs, scaled + r * matrix.inputs,
                   sums + r * matrix.groups());
      }
    });
    prepared = Prepared{scaled, sums, rows};
  }
  const BlockKernel kernel =
#if defined(__x86_64__)
      CurrentLevel() == Level::kAvx2 ? BlockAvx2 :
#endif
                                     BlockPortable;
  const size_t tiles = matrix.tiles();
  const size_t at_once = rows < 4 ? kTilesAtOnceFewRows : kTilesAtOnce;
  ParallelFor((tiles + at_once - 1) / at_once, [&](size_t i) {
    const size_t first = i * at_once;
    kernel(matrix, prepared, first, first + at_once < tiles ? at_once : tiles - first, y);
  });
}

void TakeRows(const Matrix& matrix, const int32_t* index, size_t rows, float* y) {
  const bool codes = CodesPerWord(matrix.format) > 0;
  ParallelFor((rows + 15) / 16, [&](size_t block) {
    for (size_t r = block * 16; r < rows && r < (block + 1) * 16; ++r) {
      float* out = y + r * matrix.inputs;
      if (index[r] < 0 || static_cast<size_t>(index[r]) >= matrix.outputs) {
        std::memset(out, 0, matrix.inputs * sizeof(float));
        continue;
      }
      const size_t output = index[r];
      for (size_t k = 0; k < matrix.inputs; ++k) {
        if (!codes) {
          out[k] = Dense(matrix, output, k);
          continue;
        }
        const size_t at = (output / kTile * matrix.groups() + k / matrix.group) * kTile;
        const float scale = Scale(matrix, matrix.scale, at + output % kTile);
        const float offset = Scale(matrix, matrix.offset, at + output % kTile);
        out[k] = static_cast<float>(Code(matrix, output, k)) * scale + offset;
      }
    }
  });
}

void BlockPortable(const Matrix& matrix, const Prepared& prepared, size_t first, size_t count,
                   float* y) {
  const size_t end = std::min((first + count) * kTile, matrix.outputs);
  const bool codes = CodesPerWord(matrix.format) > 0;
  const size_t per_word = codes ? CodesPerWord(matrix.format) : 1;
  const size_t bits = 32 / per_word;
  for (size_t r = 0; r < prepared.rows; ++r) {
    const float* x = prepared.x + r * matrix.inputs;
    for (size_t n = first * kTile; n < end; ++n) {
      float total = 0;
      for (size_t g = 0; g < matrix.groups(); ++g) {
        float sum = 0;
        for (size_t k = g * matrix.group; k < (g + 1) * matrix.group; ++k) {
          float weight;
          if (codes) {
            const size_t i = k % per_word;
            const size_t place = i + 1 < per_word ? i * bits : 0;
            weight = std::ldexp(static_cast<float>(Code(matrix, n, k)), static_cast<int>(place));
          } else {
            weight = Dense(matrix, n, k);
          }
          sum = std::fma(weight, x[k], sum);
        }
        if (!codes) {
          total = sum;
          continue;
        }
        const size_t at = (n / kTile * matrix.groups() + g) * kTile + n % kTile;
        total = std::fma(sum, Scale(matrix, matrix.scale, at), total);
        total = std::fma(prepared.sums[r * matrix.groups() + g], Scale(matrix, matrix.offset, at),
                         total);
      }
      y[r * matrix.outputs + n] = total;
    }
  }
}

}  // namespace tensorfold
