// Runs the CPU kernels over odd shapes in buffers of exact size, for the sanitizers (make
// sanitize), and compares the instruction sets with each other.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "attention.h"
#include "conv.h"
#include "dispatch.h"
#include "linear_attention.h"
#include "matmul.h"
#include "sample.h"

namespace {

using namespace tensorfold;

std::mt19937 random_bits(1);

std::vector<float> Floats(size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random_bits);
  return values;
}

void Close(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  float most = 0, apart = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::fabs(a[i]));
    apart = std::max(apart, std::fabs(a[i] - b[i]));
  }
  if (!(apart <= 1e-4f * (most + 1))) {
    std::printf("%s: %g apart at %g\n", what, apart, most);
    std::exit(1);
  }
}

void Same(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) return;
  std::printf("%s: other bits\n", what);
  std::exit(1);
}

// Writes ordinary numbers to scales, steps and dense values: all are a quarter or a half.
void FillValues(unsigned char* at, size_t bytes, size_t size, bool bf16) {
  const float value = 0.5f;
  const uint16_t half = bf16 ? 0x3e80 : 0x3400;
  for (size_t i = 0; i < bytes; i += size) {
    if (size == 4) std::memcpy(at + i, &value, 4);
    if (size == 2) std::memcpy(at + i, &half, 2);
    if (size == 1) at[i] = 3;
  }
}

void TryMatMul(Matrix matrix, size_t rows, unsigned around_bits) {
  const size_t inputs = matrix.inputs, outputs = matrix.outputs;
  std::vector<unsigned char> data(matrix.tiles() * matrix.tile_bytes());
  for (size_t i = 0; i < data.size(); ++i) data[i] = random_bits() & 255;
  matrix.data = data.data();
  unsigned char* at = data.data();
  for (size_t panel = 0; panel < matrix.panels(); ++panel) {
    const size_t tiles = matrix.panel_tiles(panel);
    FillValues(at, tiles * matrix.head_bytes(), 2, false);
    at += tiles * matrix.head_bytes();
    for (size_t g = 0; g < matrix.groups(); ++g, at += tiles * matrix.group_bytes()) {
      const size_t codes = tiles * matrix.code_bytes(), all = tiles * matrix.group_bytes();
      const size_t size = matrix.bits() ? matrix.scale_bytes() : matrix.value_bytes();
      FillValues(at + codes, all - codes, size, matrix.format == Format::kBF16);
    }
  }
  const Gate gate = !(around_bits & 1) ? Gate::kNone : rows % 2 ? Gate::kSilu : Gate::kGelu;
  const auto x = Floats(rows * inputs * (gate != Gate::kNone ? 2 : 1)), norm = Floats(inputs);
  const auto bias = Floats(outputs), residual = Floats(rows * outputs);
  const Around around{around_bits & 2 ? norm.data() : nullptr, 1e-5f, gate,
                      around_bits & 4 ? bias.data() : nullptr,
                      around_bits & 8 ? residual.data() : nullptr};
  std::vector<float> plain(rows * outputs), fast(rows * outputs);
  SetLevel(Level::kPortable);
  MatMul(matrix, around, x.data(), rows, plain.data());
  for (const Level level : {Level::kAvx2, Level::kAvx512}) {
    if (!SetLevel(level)) continue;
    MatMul(matrix, around, x.data(), rows, fast.data());
    // What a gate takes e^x of comes to other bits in plain C++.
    (gate == Gate::kNone ? Same : Close)(plain, fast, "matmul");
  }
  const std::vector<int32_t> index{0, static_cast<int32_t>(outputs) - 1, -1,
                                   static_cast<int32_t>(outputs)};
  std::vector<float> taken(index.size() * inputs);
  TakeRows(matrix, index.data(), index.size(), taken.data());
}

void TryAttention(size_t heads, size_t kv_heads, size_t dim, int64_t window, size_t count) {
  const size_t pages_per_lane = 3, lanes = 2, rows = 2 * count + 1;
  Attention a{};
  a.rows = rows;
  a.heads = heads;
  a.kv_heads = kv_heads;
  a.head_dim = dim;
  a.pages_per_lane = pages_per_lane;
  a.pages = lanes * pages_per_lane;
  a.scale = 0.2f;
  a.window = window;
  a.epsilon = 1e-6f;
  std::vector<int32_t> lane(rows, -1), position(rows), table{5, 0, 3, 1, 4, 2};
  for (size_t i = 0; i < count; ++i) {
    lane[i] = 1;
    position[i] = static_cast<int32_t>(pages_per_lane * kPage - count + i);
    lane[count + i] = 0;
    position[count + i] = static_cast<int32_t>(i);
  }
  const auto qkv = Floats(rows * (heads + 2 * kv_heads) * dim), norm = Floats(dim);
  const auto turn = Floats(rows * dim / 2), sinks = Floats(heads);
  const auto keys = Floats(a.pages * kv_heads * dim * kPage);
  std::vector<float> q(rows * heads * dim), plain(rows * heads * dim), fast(rows * heads * dim);
  a.lane = lane.data();
  a.position = position.data();
  a.table = table.data();
  a.qkv = qkv.data();
  a.cos = a.sin = turn.data();
  a.q_norm = a.k_norm = count % 2 ? norm.data() : nullptr;
  a.sinks = window ? sinks.data() : nullptr;
  a.q = q.data();
  for (const Level level : {Level::kPortable, Level::kAvx2, Level::kAvx512}) {
    if (!SetLevel(level)) continue;
    auto k = keys, v = keys;
    a.k_pages = k.data();
    a.v_pages = v.data();
    a.out = level == Level::kPortable ? plain.data() : fast.data();
    Attend(a);
    if (level != Level::kPortable) Close(plain, fast, "attention");
  }
}

// `count` rows of each of two lanes, from within a chunk and from the start, and padding.
struct Rows {
  explicit Rows(size_t count) : lane(2 * count + 1, -1), position(2 * count + 1) {
    for (size_t i = 0; i < count; ++i) {
      lane[i] = 1;
      position[i] = static_cast<int32_t>(100 + i);
      lane[count + i] = 0;
      position[count + i] = static_cast<int32_t>(i);
    }
  }
  std::vector<int32_t> lane, position;
};

void TryLinearAttention(size_t key_heads, size_t group, size_t key_dim, size_t value_dim,
                        bool corrected, bool by_channel, size_t count) {
  const Rows rows(count);
  LinearAttention a{};
  a.rows = rows.lane.size();
  a.key_heads = key_heads;
  a.heads = key_heads * group;
  a.key_dim = key_dim;
  a.value_dim = value_dim;
  a.decays = by_channel ? key_dim : 1;
  a.lane = rows.lane.data();
  a.position = rows.position.data();
  auto q = Floats(a.rows * key_heads * key_dim), k = Floats(q.size());
  for (float& each : k) each *= 0.1f;
  const auto v = Floats(a.rows * a.heads * value_dim);
  auto g = Floats(a.rows * a.heads * a.decays);
  for (float& each : g) each = -0.1f * std::fabs(each);
  const std::vector<float> b(a.rows * a.heads, 0.5f);
  a.q = q.data();
  a.k = k.data();
  a.v = v.data();
  a.g = g.data();
  a.b = corrected ? b.data() : nullptr;
  const size_t places = 4 * kChunk;
  const auto old_k = Floats(places * key_heads * key_dim);
  const auto old_u = Floats(places * a.heads * value_dim);
  const auto old_S = Floats(4 * a.heads * key_dim * value_dim);
  const std::vector<float> old_G(places * a.heads * a.decays, -0.5f);
  std::vector<float> plain(a.rows * a.heads * value_dim), fast(plain.size()), avx2;
  for (const Level level : {Level::kPortable, Level::kAvx2, Level::kAvx512}) {
    if (!SetLevel(level)) continue;
    auto kept_k = old_k, kept_u = old_u, kept_G = old_G, kept_S = old_S;
    a.kept = {kept_k.data(), kept_u.data(), kept_G.data(), kept_S.data()};
    a.out = level == Level::kPortable ? plain.data() : fast.data();
    Attend(a);
    if (level != Level::kPortable) Close(plain, fast, "linear attention");
    if (level == Level::kAvx2) avx2 = fast;
    if (level == Level::kAvx512) Same(avx2, fast, "linear attention");
  }
}

void TryConvolution(size_t channels, size_t taps, size_t count) {
  const Rows rows(count);
  Convolution a{};
  a.rows = rows.lane.size();
  a.channels = channels;
  a.taps = taps;
  a.lane = rows.lane.data();
  a.position = rows.position.data();
  const auto x = Floats(a.rows * channels), weight = Floats(channels * taps);
  const auto bias = Floats(channels), old = Floats(4 * kChunk * channels);
  a.x = x.data();
  a.weight = weight.data();
  a.bias = count % 2 ? bias.data() : nullptr;
  std::vector<float> plain(a.rows * channels), fast(plain.size());
  for (const Level level : {Level::kPortable, Level::kAvx2, Level::kAvx512}) {
    if (!SetLevel(level)) continue;
    auto kept = old;
    a.kept = kept.data();
    a.out = level == Level::kPortable ? plain.data() : fast.data();
    Convolve(a);
    if (level != Level::kPortable) Same(plain, fast, "convolution");
  }
}

void TryDraw(size_t vocabulary, float spread) {
  std::vector<float> logits = Floats(vocabulary);
  for (float& logit : logits) logit *= spread;
  for (const size_t most : {size_t{1}, vocabulary}) {
    std::vector<int32_t> top_ids(most);
    std::vector<float> top(most);
    float logprob;
    int32_t rank;
    TokenLogprobs(logits.data(), vocabulary, 0, most, {&logprob, &rank, top_ids.data(), top.data()});
  }
  for (const float temperature : {0.0f, 0.01f, 1.0f, 100.0f}) {
    for (const int32_t top_k : {0, 1, 5, 1024, 1025, 1 << 30}) {
      for (const float top_p : {0.0f, 0.01f, 0.9f, 0.9999f}) {
        for (const float min_p : {0.0f, 0.05f}) {
          const Draw draw{temperature, top_k, top_p, min_p, {7, ~0u}, 11};
          const int32_t token = DrawToken(logits.data(), vocabulary, draw);
          if (token < 0 || static_cast<size_t>(token) >= vocabulary) {
            std::printf("draw: %d of %zu\n", token, vocabulary);
            std::exit(1);
          }
        }
      }
    }
  }
  Digest(logits.data(), vocabulary);
}

// Every format, way to write scales, and kind of rows.
void TryMatrices(size_t outputs, size_t rows, unsigned around) {
  for (const Format format : {Format::kF32, Format::kF16, Format::kBF16}) {
    TryMatMul({format, outputs, 96, 96, Scales::kHalf, 0, false, nullptr}, rows, around);
  }
  for (const Format format :
       {Format::kQ4, Format::kQ5, Format::kQ6, Format::kQ8, Format::kE4M3}) {
    for (const Scales scales : {Scales::kHalf, Scales::kFloat, Scales::kSteps}) {
      const size_t inputs = scales == Scales::kSteps ? 256 : 96, zero = rows % 2 ? 32 : 0;
      for (const bool int8 : {false, true}) {
        if (int8 && format == Format::kE4M3) continue;
        TryMatMul({format, outputs, inputs, 32, scales, zero, int8, nullptr}, rows, around);
      }
    }
  }
}

}  // namespace

int main() {
  for (const size_t outputs : {1, 8, 23, 200}) {
    for (const size_t rows : {1, 2, 3, 4, 9, 33}) {
      for (unsigned around = 0; around < 16; around += 5) TryMatrices(outputs, rows, around);
    }
  }
  for (const size_t dim : {8, 64, 72, 128}) {
    for (const int64_t window : {0, 1, 70}) {
      for (const size_t count : {1, 2, 9, 64}) TryAttention(6, 2, dim, window, count);
    }
  }
  for (const size_t count : {1, 3, 28, 200}) {
    for (const bool corrected : {false, true}) {
      TryLinearAttention(2, 3, 16, 48, corrected, false, count);
      TryLinearAttention(1, 1, 24, 8, corrected, count == 28, count);
      TryLinearAttention(1, 2, 32, 16, corrected, count == 3, count);
    }
    for (const size_t channels : {1, 256, 300}) TryConvolution(channels, count == 3 ? 1 : 4, count);
  }
  for (const size_t vocabulary : {1, 7, 8, 9, 300, 513, 5003}) {
    for (const float spread : {0.01f, 3.0f, 1e30f}) TryDraw(vocabulary, spread);
  }
  std::puts("clean");
  return 0;
}
