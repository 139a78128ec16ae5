// Draws a token from each row of logits; docs/exactness.md has the rule.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold {

// Drawn where a row's logits hold a NaN or an infinity above.
constexpr int32_t kNoToken = -1;

// How one row is drawn. `seed` is the low word, then the high one.
struct Draw {
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p;
  uint32_t seed[2];
  int32_t position;
};

// The token of logits [vocabulary]. Exponentials and logarithms are taken in double by the
// functions of sample.cc, so that no library's own enter; divisions and the noisy score are float.
int32_t DrawToken(const float* logits, size_t vocabulary, const Draw& draw);

// A token under the distribution of a row's logits, and the `most` likeliest ones, likeliest first,
// lower ids first among equals. NaN and zeros where the logits hold a NaN or an infinity above.
struct Logprobs {
  float* logprob;
  int32_t* rank;  // tokens at least as likely, itself included
  int32_t* top_ids;
  float* top;
};

void TokenLogprobs(const float* logits, size_t vocabulary, int32_t token, size_t most,
                   const Logprobs& to);

// The sum of each logit's bits times twice its place plus one, modulo 2^32.
uint32_t Digest(const float* logits, size_t vocabulary);

}  // namespace tensorfold
