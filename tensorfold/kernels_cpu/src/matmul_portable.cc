// The matmul kernels in plain C++: right everywhere, and the statement of what the others compute.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "matmul.h"
#include "pool.h"

namespace tensorfold {
namespace {

constexpr size_t kLanes = 8;

float Meet(const float (&lanes)[kLanes]) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

float ReadFloat(const Matrix& matrix, const unsigned char* at, size_t bytes) {
  if (bytes == 4) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  if (matrix.format != Format::kBF16) return HalfToFloat(bits);
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Where things of one output stand: its place among the outputs of its panel, and the panel.
struct Place {
  Place(const Matrix& matrix, size_t output)
      : panel(matrix.panel(output / kTile / kPanelTiles)),
        column(output % (kTile * kPanelTiles)),
        width(kTile * matrix.panel_tiles(output / kTile / kPanelTiles)) {}

  // Word w of group g.
  uint32_t Word(const Matrix& matrix, size_t g, size_t w) const {
    const size_t group = matrix.head_bytes() + g * matrix.group_bytes();
    const size_t bytes = matrix.word_bytes();
    unsigned char word[4] = {};
    std::memcpy(word, panel + group * (width / kTile) + (w * width + column) * bytes, bytes);
    uint32_t bits;
    std::memcpy(&bits, word, sizeof bits);
    return bits;
  }

  const unsigned char* panel;
  size_t column, width;
};

template <int kBits>
uint32_t BundledCode(const Matrix& matrix, const Place& place, size_t g, size_t input) {
  using Form = Bundle<kBits>;
  const size_t first = input / Form::kCodes * Form::kWords, i = input % Form::kCodes;
  const int j = static_cast<int>(i / 4), byte = static_cast<int>(8 * (i % 4));
  const uint32_t low = place.Word(matrix, g, first + j / 2) >> (byte + j % 2 * 4);
  const uint32_t rest = place.Word(matrix, g, first + Form::kWords - 1) >> byte;
  const uint32_t high = Form::Shift(j) > 0 ? rest << Form::Shift(j) : rest >> -Form::Shift(j);
  return (low & 15) | (high & (Form::kRest & 255));
}

uint32_t Code(const Matrix& matrix, const Place& place, size_t input) {
  const size_t g = input / matrix.group, in_group = input % matrix.group, bits = matrix.bits();
  if (bits == 5) return BundledCode<5>(matrix, place, g, in_group);
  if (bits == 6) return BundledCode<6>(matrix, place, g, in_group);
  const size_t per_word = 8 * matrix.word_bytes() / bits;
  const uint32_t word = place.Word(matrix, g, in_group / per_word);
  return (word >> (in_group % per_word * bits)) & ((1u << bits) - 1);
}

// The scales and offsets of a group of a panel.
struct GroupScales {
  GroupScales(const Matrix& matrix, const Place& place, size_t g)
      : matrix(matrix), scales(matrix, place.panel, place.width / kTile, g, 0),
        offsets(matrix, place.panel, place.width / kTile, g, matrix.scale_rows() - 1) {}

  float Read(const ScaleRow& row, size_t column) const {
    const size_t bytes = matrix.scale_bytes();
    const unsigned char* value = row.values + column * bytes;
    if (matrix.scales != Scales::kSteps) return ReadFloat(matrix, value, bytes);
    return ReadFloat(matrix, row.steps + 2 * column, 2) * static_cast<int8_t>(*value);
  }
  float Scale(size_t column) const { return Read(scales, column); }
  float Offset(size_t column) const {
    if (matrix.floats()) return -0.0f;  // Adds nothing, to a zero of either sign too.
    const float value = Read(offsets, column);
    return matrix.zero ? value * -static_cast<float>(matrix.zero) : value;
  }

  const Matrix& matrix;
  ScaleRow scales, offsets;
};

float DenseValue(const Matrix& matrix, const Place& place, size_t input) {
  const size_t bytes = matrix.value_bytes();
  return ReadFloat(matrix, place.panel + (input * place.width + place.column) * bytes, bytes);
}

// The power of two that a code of an integer counts too much, and x too little. Code i of a word
// (spread out, if it is of a bundle) is masked out where it stands: 16^i or 256^i times. The last
// one is shifted down instead, to keep clear of the sign.
float CodePower(const Matrix& matrix, size_t input) {
  if (matrix.floats()) return 1 / kE4M3Scale;
  const size_t per_word = matrix.bits() == 4 ? 8 : 4, i = input % per_word;
  return i + 1 < per_word ? static_cast<float>(1u << i * (32 / per_word)) : 1.0f;
}

// x before the product; `up` is what its gate is for, if there is one.
float Before(const Around& around, float value, const float* up) {
  if (around.gate == Gate::kNone) return value;
  const float gelu = value * std::fma(value * value, kGeluCubed, kGelu);
  return value / (1.0f + std::exp(-(around.gate == Gate::kGelu ? gelu : value))) * *up;
}

// One row of a block: x[k] goes to ready[k * stride].
void PrepareRow(const Matrix& matrix, const Around& around, const float* x, size_t stride,
                float* ready, float* sums) {
  const size_t inputs = matrix.inputs;
  for (size_t k = 0; k < inputs; ++k) {
    ready[k * stride] = Before(around, x[k], x + inputs + k);
  }
  if (around.norm) {
    float lanes[kLanes] = {0};
    for (size_t k = 0; k < inputs; ++k) {
      lanes[k % kLanes] = std::fma(ready[k * stride], ready[k * stride], lanes[k % kLanes]);
    }
    const float mean = Meet(lanes) / static_cast<float>(inputs);
    const float factor = 1.0f / std::sqrt(mean + around.epsilon);
    for (size_t k = 0; k < inputs; ++k) {
      ready[k * stride] = ready[k * stride] * factor * around.norm[k];
    }
  }
  if (!matrix.bits()) return;
  for (size_t g = 0; g < matrix.groups(); ++g) {
    float lanes[kLanes] = {0};
    for (size_t k = g * matrix.group; k < (g + 1) * matrix.group; ++k) {
      lanes[k % kLanes] += ready[k * stride];
    }
    sums[g * stride] = Meet(lanes);
  }
  for (size_t k = 0; k < inputs; ++k) {
    ready[k * stride] /= CodePower(matrix, k);  // A power of two divides exactly.
  }
}

void Prepare(const Matrix& matrix, const Around& around, const float* x, size_t rows, float* ready,
             float* sums) {
  const size_t x_row = around.x_row(matrix.inputs);
  for (size_t r = 0; r < rows; ++r) {
    PrepareRow(matrix, around, x + r * x_row, rows, ready + r, sums + r);
  }
}

// y[at], of output n, from its total.
void Finish(const Around& around, float total, size_t at, size_t n, float* y) {
  if (around.bias) total += around.bias[n];
  if (around.residual) total += around.residual[at];
  y[at] = total;
}

// The words of a tile's group.
struct TileWords {
  TileWords(const Matrix& matrix, const Place& first, size_t g)
      : at(first.panel + first.column * matrix.word_bytes() +
           (matrix.head_bytes() + g * matrix.group_bytes()) * (first.width / kTile)),
        stride(first.width * matrix.word_bytes()) {}

  // Word w of each output.
  template <class Word>
  void Read(size_t w, Word (&words)[kTile]) const {
    std::memcpy(words, at + w * stride, sizeof words);
  }

  const unsigned char* at;
  size_t stride;
};

// Codes [group, kTile] of whole words.
template <int kBits, class Word = uint32_t>
void UnpackWords(const TileWords& words, size_t group, int32_t* codes) {
  constexpr int kCodes = 8 * sizeof(Word) / kBits;
  for (size_t w = 0; w < group / kCodes; ++w) {
    Word word[kTile];
    words.Read(w, word);
    for (int i = 0; i < kCodes; ++i, codes += kTile) {
      for (size_t j = 0; j < kTile; ++j) {
        codes[j] = static_cast<int32_t>((word[j] >> (kBits * i)) & ((1u << kBits) - 1));
      }
    }
  }
}

// Codes [group, kTile] of bundles.
template <int kBits>
void UnpackBundles(const TileWords& words, size_t group, int32_t* codes) {
  using Form = Bundle<kBits>;
  for (size_t b = 0; b < group / Form::kCodes; ++b) {
    uint32_t low[kTile], rest[kTile];
    words.Read((b + 1) * Form::kWords - 1, rest);
    for (int s = 0; s < Form::kSpread; ++s) {
      words.Read(b * Form::kWords + s / 2, low);
      for (int byte = 0; byte < 32; byte += 8, codes += kTile) {
        for (size_t j = 0; j < kTile; ++j) {
          const uint32_t bits = rest[j] >> byte;
          const int shift = Form::Shift(s);
          const uint32_t high = shift > 0 ? bits << shift : bits >> -shift;
          codes[j] = static_cast<int32_t>(((low[j] >> (byte + s % 2 * 4)) & 15) |
                                          (high & (Form::kRest & 255)));
        }
      }
    }
  }
}

void Unpack(const Matrix& matrix, const TileWords& words, int32_t* codes) {
  switch (matrix.bits()) {
    case 4:
      return UnpackWords<4>(words, matrix.group, codes);
    case 5:
      return UnpackBundles<5>(words, matrix.group, codes);
    case 6:
      return UnpackBundles<6>(words, matrix.group, codes);
    default:
      if (matrix.floats()) return UnpackWords<8, uint16_t>(words, matrix.group, codes);
      return UnpackWords<8>(words, matrix.group, codes);
  }
}

// A tile's group, taken apart once for all rows: outputs side by side, so that a compiler makes
// vectors of them where it may.
struct TileGroup {
  TileGroup(const Matrix& matrix, size_t tile, size_t g)
      : codes(matrix.bits() ? matrix.group * kTile : 0), values(matrix.group * kTile) {
    const Place first(matrix, tile * kTile);
    if (!matrix.bits()) {
      for (size_t k = 0; k < matrix.group; ++k) {
        for (size_t j = 0; j < kTile; ++j) {
          Place place = first;
          place.column += j;
          values[k * kTile + j] = DenseValue(matrix, place, k);
        }
      }
      return;
    }
    Unpack(matrix, TileWords(matrix, first, g), codes.data());
    if (matrix.floats()) {
      std::transform(codes.begin(), codes.end(), values.begin(),
                     [](int32_t code) { return HalfToFloat(E4M3ToHalf(code)); });
    }
    for (size_t k = 0; k < matrix.group && !matrix.floats(); ++k) {
      const float power = CodePower(matrix, k);
      for (size_t j = 0; j < kTile; ++j) {
        values[k * kTile + j] = static_cast<float>(codes[k * kTile + j]) * power;
      }
    }
    const GroupScales scales(matrix, first, g);
    for (size_t j = 0; j < kTile; ++j) {
      scale[j] = scales.Scale(first.column + j);
      offset[j] = scales.Offset(first.column + j);
    }
  }

  std::vector<int32_t> codes;
  std::vector<float> values;
  float scale[kTile], offset[kTile];
};

// Calls body(row, index in its block of rows, rows of the block) for every row.
template <class Body>
void EachRow(size_t rows, Body&& body) {
  for (size_t row = 0, width; row < rows; row += width) {
    width = BlockRows(rows - row);
    for (size_t i = 0; i < width; ++i) body(row, i, width);
  }
}

// The totals of all rows of a tile [rows, kTile] to y.
void FinishTile(const Matrix& matrix, const Around& around, size_t tile, size_t rows,
                const float* totals, float* y) {
  const size_t first = tile * kTile, end = std::min(first + kTile, matrix.outputs);
  for (size_t row = 0; row < rows; ++row, totals += kTile) {
    for (size_t n = first; n < end; ++n) {
      Finish(around, totals[n - first], row * matrix.outputs + n, n, y);
    }
  }
}

void Panel(const Matrix& matrix, const Around& around, const Prepared& prepared, size_t panel,
           float* y) {
  std::vector<float> totals(prepared.rows * kTile);
  for (size_t t = 0; t < matrix.panel_tiles(panel); ++t) {
    const size_t tile = panel * kPanelTiles + t;
    std::fill(totals.begin(), totals.end(), 0.0f);
    for (size_t g = 0; g < matrix.groups(); ++g) {
      const TileGroup group(matrix, tile, g);
      EachRow(prepared.rows, [&](size_t row, size_t i, size_t width) {
        const float* x = prepared.x + row * matrix.inputs + g * matrix.group * width + i;
        float* total = totals.data() + (row + i) * kTile;
        float sum[kTile] = {};
        float* const to = matrix.bits() ? sum : total;
        for (size_t k = 0; k < matrix.group; ++k) {
          for (size_t j = 0; j < kTile; ++j) {
            to[j] = std::fma(group.values[k * kTile + j], x[k * width], to[j]);
          }
        }
        if (!matrix.bits()) return;
        const float of_x = prepared.sums[row * matrix.groups() + g * width + i];
        for (size_t j = 0; j < kTile; ++j) {
          const float scaled = std::fma(sum[j], group.scale[j], total[j]);
          total[j] = matrix.floats() ? scaled : std::fma(of_x, group.offset[j], scaled);
        }
      });
    }
    FinishTile(matrix, around, tile, prepared.rows, totals.data(), y);
  }
}

// Where of a word's row the code of an input stands: see PreparedInt8.
size_t CodeByte(const Matrix& matrix, size_t input) {
  if (matrix.format != Format::kQ4) return input;
  return input / 8 * 8 + input % 8 / 2 + (input % 2 ? 4 : 0);
}

void PrepareInt8Row(const Matrix& matrix, const float* x, size_t stride, int32_t* words,
                    float* scales, float* sums) {
  const size_t block = matrix.block();
  std::vector<int8_t> codes(matrix.inputs);
  for (size_t g = 0; g < matrix.groups(); ++g) sums[g * stride] = 0;
  for (size_t b = 0; b < matrix.inputs / block; ++b) {
    float most = 0;
    for (size_t k = b * block; k < (b + 1) * block; ++k) {
      // Once it is NaN it stays NaN.
      if (!(std::fabs(x[k]) <= most) && most == most) most = std::fabs(x[k]);
    }
    const float scale = most / 127.0f, inverse = most < kLeastInt8 ? 0.0f : 127.0f / most;
    int32_t sum = 0;
    for (size_t k = b * block; k < (b + 1) * block; ++k) {
      const float code = std::nearbyint(x[k] * inverse);
      codes[CodeByte(matrix, k)] = code == code ? static_cast<int8_t>(code) : int8_t{0};
      sum += codes[CodeByte(matrix, k)];
    }
    scales[b * stride] = scale;
    float* group = sums + b * block / matrix.group * stride;
    *group = std::fma(static_cast<float>(sum), scale, *group);
  }
  for (size_t w = 0; w < matrix.inputs / 4; ++w) {
    std::memcpy(words + w * stride, codes.data() + 4 * w, sizeof *words);
  }
}

void PrepareInt8(const Matrix& matrix, const Around& around, const float* x, size_t rows,
                 int32_t* codes, float* scales, float* sums) {
  const size_t x_row = around.x_row(matrix.inputs);
  std::vector<float> ready(matrix.inputs);
  for (size_t r = 0; r < rows; ++r) {
    ReadyRow({Prepare, Panel}, matrix, around, x + r * x_row, ready.data());
    PrepareInt8Row(matrix, ready.data(), rows, codes + r, scales + r, sums + r);
  }
}

// A block of a row's inputs times a tile's codes.
void BlockInt8(const Matrix& matrix, const TileGroup& group, size_t first, const int32_t* words,
               size_t stride, int32_t (&sum)[kTile]) {
  for (size_t k = first; k < first + matrix.block(); ++k) {
    const size_t at = CodeByte(matrix, k);
    const uint32_t word = static_cast<uint32_t>(words[at / 4 * stride]);
    const int32_t code = static_cast<int8_t>(word >> (8 * (at % 4)));
    for (size_t j = 0; j < kTile; ++j) sum[j] += group.codes[k * kTile + j] * code;
  }
}

void PanelInt8(const Matrix& matrix, const Around& around, const PreparedInt8& prepared,
               size_t panel, float* y) {
  const size_t block = matrix.block(), words = matrix.inputs / 4, blocks = matrix.inputs / block;
  std::vector<float> totals(prepared.rows * kTile);
  for (size_t t = 0; t < matrix.panel_tiles(panel); ++t) {
    const size_t tile = panel * kPanelTiles + t;
    std::fill(totals.begin(), totals.end(), 0.0f);
    for (size_t g = 0; g < matrix.groups(); ++g) {
      const TileGroup group(matrix, tile, g);
      EachRow(prepared.rows, [&](size_t row, size_t i, size_t width) {
        const size_t first = g * matrix.group;
        const int32_t* codes = prepared.codes + row * words + first / 4 * width + i;
        const float* scales = prepared.scales + row * blocks + first / block * width + i;
        float* total = totals.data() + (row + i) * kTile;
        for (size_t k = 0; k < matrix.group; k += block, scales += width) {
          int32_t sum[kTile] = {};
          BlockInt8(matrix, group, k, codes, width, sum);
          for (size_t j = 0; j < kTile; ++j) {
            total[j] = std::fma(static_cast<float>(sum[j]) * *scales, group.scale[j], total[j]);
          }
        }
        const float of_x = prepared.sums[row * matrix.groups() + g * width + i];
        for (size_t j = 0; j < kTile; ++j) {
          total[j] = std::fma(of_x, group.offset[j], total[j]);
        }
      });
    }
    FinishTile(matrix, around, tile, prepared.rows, totals.data(), y);
  }
}

}  // namespace

const MatMulKernels kMatMulPortable = {Prepare, Panel};
const MatMulInt8Kernels kMatMulInt8Portable = {PrepareInt8, PanelInt8};

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
      const Place place(matrix, index[r]);
      if (!matrix.bits()) {
        for (size_t k = 0; k < matrix.inputs; ++k) out[k] = DenseValue(matrix, place, k);
        continue;
      }
      for (size_t g = 0; g < matrix.groups(); ++g) {
        const GroupScales scales(matrix, place, g);
        const float scale = scales.Scale(place.column), offset = scales.Offset(place.column);
        for (size_t k = g * matrix.group; k < (g + 1) * matrix.group; ++k) {
          const uint32_t code = Code(matrix, place, k);
          const float value = matrix.floats() ? HalfToFloat(E4M3ToHalf(code)) * kE4M3Scale
                                              : static_cast<float>(code);
          out[k] = value * scale + offset;
        }
      }
    }
  });
}

}  // namespace tensorfold
