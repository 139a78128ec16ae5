// The draw without ordering the vocabulary: only tokens that can still win get their noise, and only
// those that a cut may keep are sorted. Log probabilities likewise order only what is reported.

#include "sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace tensorfold {
namespace {

constexpr size_t kLanes = 8;
constexpr double kLn2 = 0.693147180559945309417232121458;
// The largest noise, -log(-log(1 - 2^-24)), is 16.64.
constexpr float kMostNoise = 17;
// exp(-21) in units of 2^-30 is below one.
constexpr float kNoMass = -21;
// Candidates that are ordered first when top_p cuts; they are often enough.
constexpr size_t kFew = 256;

// exp(x) for x in [-700, 0], within 1e-15 of the value.
inline double Exp(double x) {
  constexpr double kInverse[] = {1.0,          1.0,          1.0 / 2,        1.0 / 6,
                                 1.0 / 24,     1.0 / 120,    1.0 / 720,      1.0 / 5040,
                                 1.0 / 40320,  1.0 / 362880, 1.0 / 3628800,  1.0 / 39916800,
                                 1.0 / 479001600};
  const int n = static_cast<int>(x * (1 / kLn2) - 0.5);
  const double r = x - n * kLn2;
  double sum = kInverse[12];
  for (int i = 11; i >= 0; --i) sum = sum * r + kInverse[i];
  const uint64_t bits = static_cast<uint64_t>(1023 + n) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof power);
  return sum * power;
}

// log(x) for x above 0, within 2e-15 of the value (relative to the larger of it and 1).
double Log(double x) {
  int n;
  double m = std::frexp(x, &n);  // In [0.5, 1).
  if (m < 0.70710678118654752) {
    m *= 2;
    --n;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double power = s, sum = 0;
  for (int i = 1; i <= 21; i += 2) {
    sum += power / i;
    power *= square;
  }
  return 2 * sum + n * kLn2;
}

struct Words {
  uint32_t of[kLanes];
};

// Rounds of Threefry on kLanes counters side by side.
template <int kBits>
inline void Round(Words& x0, Words& x1) {
  for (size_t j = 0; j < kLanes; ++j) {
    x0.of[j] += x1.of[j];
    x1.of[j] = ((x1.of[j] << kBits) | (x1.of[j] >> (32 - kBits))) ^ x0.of[j];
  }
}

inline void Inject(Words& x0, Words& x1, uint32_t key0, uint32_t key1) {
  for (size_t j = 0; j < kLanes; ++j) {
    x0.of[j] += key0;
    x1.of[j] += key1;
  }
}

// The first words of Threefry-2x32 with 20 rounds, for the tokens `first` and after.
Words Threefry(const Draw& draw, int32_t first) {
  const uint32_t* seed = draw.seed;
  const uint32_t keys[3] = {seed[0], seed[1], seed[0] ^ seed[1] ^ 0x1BD11BDA};
  Words x0, x1;
  for (size_t j = 0; j < kLanes; ++j) {
    x0.of[j] = static_cast<uint32_t>(draw.position);
    x1.of[j] = static_cast<uint32_t>(first) + static_cast<uint32_t>(j);
  }
  Inject(x0, x1, keys[0], keys[1]);
  for (uint32_t block = 0; block < 5; ++block) {
    if (block % 2 == 0) {
      Round<13>(x0, x1);
      Round<15>(x0, x1);
      Round<26>(x0, x1);
      Round<6>(x0, x1);
    } else {
      Round<17>(x0, x1);
      Round<29>(x0, x1);
      Round<16>(x0, x1);
      Round<24>(x0, x1);
    }
    Inject(x0, x1, keys[(block + 1) % 3], keys[(block + 2) % 3] + block + 1);
  }
  return x0;
}

// Standard Gumbel noise of a token.
float Noise(uint32_t word) {
  return static_cast<float>(-Log(-Log(((word >> 9) + 0.5) * 0x1p-23)));
}

// More than the noise of a word: -log(-log(u)) is below -log(1 - u), and 1 - u is at least a
// power of two that the word's leading ones tell.
float NoiseAtMost(uint32_t word) {
  int ones = 0;
  while (ones < 24 && (word & (0x80000000u >> ones))) ++ones;
  return 0.694f * static_cast<float>(ones + 1);
}

// Four floats: the vectors that every machine has.
typedef float Four __attribute__((vector_size(16)));

inline Four Load(const float* from) {
  Four four;
  std::memcpy(&four, from, sizeof four);
  return four;
}

// The highest of the logits and the first place that has it; NaN if there is one.
struct Peak {
  float value = -std::numeric_limits<float>::infinity();
  int32_t id = 0;

  Peak(const float* logits, size_t vocabulary) {
    constexpr size_t kBlock = 64 * kLanes;
    size_t at = 0;
    for (size_t begin = 0; begin < vocabulary; begin += kBlock) {
      const size_t end = std::min(vocabulary, begin + kBlock);
      const float most = Most(logits + begin, end - begin);
      if (most != most) {
        value = most;
        return;
      }
      if (most > value) {
        value = most;
        at = begin;
      }
    }
    while (at + 1 < vocabulary && logits[at] != value) ++at;
    id = static_cast<int32_t>(at);
  }

  static float Most(const float* logits, size_t count) {
    float most = logits[0];
    Four a = Four{} + most, b = a, sum{};
    size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const Four x = Load(logits + i), y = Load(logits + i + 4);
      a = x > a ? x : a;
      b = y > b ? y : b;
      sum += (x - x) + (y - y);  // Not zero where one is infinite or NaN.
    }
    bool finite = true;
    for (size_t j = 0; j < 4; ++j) {
      most = std::max({most, a[j], b[j]});
      finite &= sum[j] == 0;
    }
    for (; i < count; ++i) most = logits[i] > most ? logits[i] : most;
    // Infinities below are fine; a NaN is not, and comparisons lose it.
    for (i = finite ? count / kLanes * kLanes : 0; i < count; ++i) {
      if (logits[i] != logits[i]) return logits[i];
    }
    return most;
  }
};

// The best noisy score so far, of equal ones the lowest id.
class Best {
 public:
  Best(const Draw& draw, float peak)
      : draw_(draw),
        peak_scaled_(peak / draw.temperature),
        least_(draw.min_p > 0 ? static_cast<float>(Log(draw.min_p))
                              : -std::numeric_limits<float>::infinity()) {}

  void Try(float logit, int32_t id) { Try(logit, id, Threefry(draw_, id).of[0]); }

  // With the token's word of noise.
  void Try(float logit, int32_t id, uint32_t word) {
    const float scaled = logit / draw_.temperature;
    if (!(scaled - peak_scaled_ >= least_)) return;
    if (id_ >= 0 && scaled + NoiseAtMost(word) < Slack()) return;
    const float score = scaled + Noise(word);
    if (id_ < 0 || score > score_ || (score == score_ && id < id_)) {
      score_ = score;
      id_ = id;
    }
  }

  // Logits below this can't win any more.
  float Least() const {
    const float least = (Slack() - kMostNoise) * draw_.temperature;
    return least - 1e-5f * std::fabs(least);
  }

  int32_t id() const { return id_; }

 private:
  // The score, less what rounding may have taken from another's.
  float Slack() const { return score_ - 1e-5f * std::fabs(score_) - 1e-5f; }

  const Draw& draw_;
  const float peak_scaled_;
  const float least_;
  float score_ = -std::numeric_limits<float>::infinity();
  int32_t id_ = -1;
};

struct Candidate {
  float logit;
  int32_t id;
};

bool Before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

uint32_t Mass(float logit, const Draw& draw, float peak_scaled) {
  const float apart = logit / draw.temperature - peak_scaled;
  return apart < kNoMass ? 0 : static_cast<uint32_t>(Exp(apart) * 0x1p30);
}

// Candidates in order, the cut of top_k made; the others are those that have a mass at all.
std::vector<Candidate> Candidates(const float* logits, size_t vocabulary, const Draw& draw,
                                  float peak) {
  std::vector<Candidate> found;
  const bool counts = draw.top_k > 0;
  const size_t most = counts ? static_cast<size_t>(draw.top_k) : vocabulary;
  float least = -std::numeric_limits<float>::infinity();
  if (!counts) {
    least = (kNoMass - 1) * draw.temperature + peak;
    least -= 1e-5f * std::fabs(least) + 1e-5f * std::fabs(peak);
  }
  // A heap with the last candidate on top, while it is short enough to be quick.
  const bool heap = counts && most <= 1024;
  for (size_t i = 0; i < vocabulary; ++i) {
    if (logits[i] < least) continue;
    const Candidate one{logits[i], static_cast<int32_t>(i)};
    if (heap && found.size() == most) {
      if (!Before(one, found.front())) continue;
      std::pop_heap(found.begin(), found.end(), Before);
      found.back() = one;
      std::push_heap(found.begin(), found.end(), Before);
      least = found.front().logit;
    } else {
      found.push_back(one);
      if (heap) std::push_heap(found.begin(), found.end(), Before);
    }
  }
  if (counts && found.size() > most) {
    std::nth_element(found.begin(), found.begin() + most, found.end(), Before);
    found.resize(most);
  }
  return found;
}

float Rounded(uint64_t mass) { return static_cast<float>(mass); }

// How many of the candidates, put in order as far as need be, the cut of top_p keeps.
size_t Reaching(std::vector<Candidate>& found, const Draw& draw, float peak_scaled) {
  uint64_t total = 0;
  for (const Candidate& one : found) total += Mass(one.logit, draw, peak_scaled);
  const float goal = draw.top_p * Rounded(total);
  uint64_t before = 0;
  size_t reached = 0, ordered = 0;
  while (reached < found.size() && Rounded(before) < goal) {
    if (reached == ordered) {
      const auto begin = found.begin() + reached;
      ordered = std::min(ordered ? 4 * ordered : kFew, found.size());
      std::nth_element(begin, found.begin() + (ordered - 1), found.end(), Before);
      std::sort(begin, found.begin() + ordered, Before);
    }
    before += Mass(found[reached].logit, draw, peak_scaled);
    ++reached;
  }
  return reached;
}

}  // namespace

int32_t DrawToken(const float* logits, size_t vocabulary, const Draw& draw) {
  const Peak found_peak(logits, vocabulary);
  const float peak = found_peak.value;
  if (!std::isfinite(peak)) return kNoToken;
  const int32_t likeliest = found_peak.id;
  if (draw.temperature <= 0) return likeliest;
  Best best(draw, peak);
  const bool cuts_p = draw.top_p > 0 && draw.top_p < 1;
  const bool cuts_k = draw.top_k > 0 && static_cast<size_t>(draw.top_k) < vocabulary;
  if (!cuts_p && !cuts_k) {
    best.Try(peak, likeliest);
    float least = best.Least();
    for (size_t i = 0; i < vocabulary; i += kLanes) {
      const size_t count = std::min(kLanes, vocabulary - i);
      bool any = false;
      for (size_t j = 0; j < count; ++j) any |= logits[i + j] >= least;
      if (!any) continue;
      const Words words = Threefry(draw, static_cast<int32_t>(i));
      for (size_t j = 0; j < count; ++j) {
        if (logits[i + j] < least) continue;
        best.Try(logits[i + j], static_cast<int32_t>(i + j), words.of[j]);
      }
      least = best.Least();
    }
  } else {
    std::vector<Candidate> found = Candidates(logits, vocabulary, draw, peak);
    const size_t kept =
        cuts_p ? Reaching(found, draw, peak / draw.temperature) : found.size();
    for (size_t i = 0; i < kept; ++i) best.Try(found[i].logit, found[i].id);
  }
  return best.id() < 0 ? likeliest : best.id();
}

void TokenLogprobs(const float* logits, size_t vocabulary, int32_t token, size_t most,
                   const Logprobs& to) {
  std::fill(to.top_ids, to.top_ids + most, 0);
  std::fill(to.top, to.top + most, std::numeric_limits<float>::quiet_NaN());
  *to.logprob = std::numeric_limits<float>::quiet_NaN();
  *to.rank = 0;
  const float peak = Peak(logits, vocabulary).value;
  if (!std::isfinite(peak)) return;
  double sums[kLanes] = {};
  int32_t ranks[kLanes] = {};
  const float own = logits[token];
  for (size_t i = 0; i < vocabulary; i += kLanes) {
    const size_t count = std::min(kLanes, vocabulary - i);
    for (size_t j = 0; j < count; ++j) {
      sums[j] += Exp(std::max(static_cast<double>(logits[i + j]) - peak, -700.0));
      ranks[j] += logits[i + j] >= own;
    }
  }
  double sum = 0;
  for (size_t j = 0; j < kLanes; ++j) {
    sum += sums[j];
    *to.rank += ranks[j];
  }
  const double norm = peak + Log(sum);
  *to.logprob = static_cast<float>(own - norm);
  const Draw ordered{1, static_cast<int32_t>(most), 1, 0, {0, 0}, 0};
  std::vector<Candidate> found = Candidates(logits, vocabulary, ordered, peak);
  std::sort(found.begin(), found.end(), Before);
  for (size_t i = 0; i < found.size(); ++i) {
    to.top_ids[i] = found[i].id;
    to.top[i] = static_cast<float>(found[i].logit - norm);
  }
}

uint32_t Digest(const float* logits, size_t vocabulary) {
  uint32_t sums[kLanes] = {};
  const size_t whole = vocabulary / kLanes * kLanes;
  for (size_t i = 0; i < vocabulary; ++i) {
    uint32_t bits;
    std::memcpy(&bits, logits + i, sizeof bits);
    sums[i < whole ? i % kLanes : 0] += bits * static_cast<uint32_t>(2 * i + 1);
  }
  uint32_t sum = 0;
  for (const uint32_t each : sums) sum += each;
  return sum;
}

}  // namespace tensorfold
