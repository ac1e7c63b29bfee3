// Which tokens top_k and top_p keep, without sorting. The larger logit ranks first and of equals the lower index.
#pragma once
#include "kernels.h"
#include "sample_weights.h"

namespace octavo {
namespace {

constexpr int64_t kStretch = 32;  // logits looked at together

inline int64_t stretch_end(int64_t first, int64_t count) { return first + kStretch < count ? first + kStretch : count; }

// Tokens with a weight and a logit of at least `threshold`, by index.
inline int64_t gather_candidates(const float* logits, const float* weights, int64_t count, float threshold,
                                 int32_t* tokens) {
  int64_t found = 0;
  for (int64_t first = 0; first < count; first += kStretch) {
    int64_t end = stretch_end(first, count);
    if (largest_of(logits + first, end - first) < threshold) continue;
    for (int64_t i = first; i < end; ++i) {
      tokens[found] = int32_t(i);  // overwritten by the next unless it counts: cheaper than a branch
      found += int(logits[i] >= threshold) & int(weights[i] > 0);
    }
  }
  return found;
}

inline bool ranks_before(const float* logits, int32_t a, int32_t b) {
  return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

// Moves what ranks before some middling element of tokens[first, end) to the front; returns where that element now is.
inline int64_t partition_by_rank(const float* logits, int32_t* tokens, int64_t first, int64_t end) {
  int32_t low = tokens[first], middle = tokens[first + (end - first) / 2], high = tokens[end - 1];
  bool low_first = ranks_before(logits, low, middle), middle_first = ranks_before(logits, middle, high);
  int64_t pivot_at = first + (end - first) / 2;
  if (low_first != middle_first) pivot_at = ranks_before(logits, low, high) == low_first ? end - 1 : first;
  int32_t pivot = tokens[pivot_at];
  tokens[pivot_at] = tokens[end - 1];
  int64_t store = first;
  for (int64_t i = first; i < end - 1; ++i) {
    int32_t token = tokens[i];
    bool before = ranks_before(logits, token, pivot);
    tokens[i] = tokens[store];
    tokens[store] = token;
    store += before;
  }
  tokens[end - 1] = tokens[store];
  tokens[store] = pivot;
  return store;
}

// The logit of rank k (1 is the first) among tokens[0, count), which it reorders: the first k come first.
inline float logit_of_rank(const float* logits, int32_t* tokens, int64_t count, int64_t k) {
  int64_t first = 0, end = count;
  while (end - first > 1) {
    int64_t pivot = partition_by_rank(logits, tokens, first, end);
    if (pivot == k - 1) break;
    if (pivot > k - 1) {
      end = pivot;
    } else {
      first = pivot + 1;
    }
  }
  return logits[tokens[k - 1]];
}

// The last token by rank of the smallest leading set of tokens[0, count) that weighs at least `target`; reorders them.
inline int32_t last_within_mass(const float* logits, const float* weights, int32_t* tokens, int64_t count,
                                double target) {
  int64_t first = 0, end = count;
  double before = 0;  // weight of tokens[0, first)
  while (end - first > 1) {
    int64_t pivot = partition_by_rank(logits, tokens, first, end);
    double mass = before;
    for (int64_t i = first; i < pivot; ++i) mass += weights[tokens[i]];
    if (pivot > first && mass >= target) {
      end = pivot;
      continue;
    }
    mass += weights[tokens[pivot]];
    if (mass >= target || pivot + 1 == end) return tokens[pivot];
    before = mass;
    first = pivot + 1;
  }
  return tokens[first];
}

// A logit that at least k tokens reach: the k-th largest of the maxima of stretches of the row. `scratch` has room for
// the row, and for two at least.
inline float reached_by_k(const float* logits, int64_t count, int64_t k, int32_t* scratch) {
  int64_t stretches = (count + kStretch - 1) / kStretch;
  if (k > stretches) return -INFINITY;
  int32_t* order = scratch;
  float* maxima = reinterpret_cast<float*>(scratch + stretches);
  for (int64_t i = 0; i < stretches; ++i) {
    maxima[i] = largest_of(logits + i * kStretch, stretch_end(i * kStretch, count) - i * kStretch);
    order[i] = int32_t(i);
  }
  return logit_of_rank(maxima, order, stretches, k);
}

// Bins of the weights by how far below the largest their logit is, in steps of a sixteenth of the temperature. The last
// bin holds all that is farther.
constexpr int kMassBins = 1024;

inline int mass_bin(float logit, const WeightRule& rule) {
  float distance = (rule.largest - logit) * (16.0f / rule.temperature);
  return distance < float(kMassBins - 1) ? int(distance) : kMassBins - 1;
}

// Of weights of at least `lightest`.
inline void add_masses(const float* logits, const float* weights, int64_t count, const WeightRule& rule, float lightest,
                       double* masses) {
  for (int bin = 0; bin < kMassBins; ++bin) masses[bin] = 0;
  for (int64_t first = 0; first < count; first += kStretch) {
    int64_t end = stretch_end(first, count);
    if (largest_of(weights + first, end - first) < lightest) continue;
    for (int64_t i = first; i < end; ++i) {
      masses[mass_bin(logits[i], rule)] += weights[i] >= lightest ? weights[i] : 0.0f;
    }
  }
}

struct MassBin {
  int bin;
  double before;  // mass of the bins before it
};

// The bin in which the running sum reaches `target`, never an empty one. Bin 0 holds the largest logit.
inline MassBin bin_of_mass(const double* masses, double target) {
  MassBin found{0, 0};
  for (int bin = 0; bin < kMassBins; ++bin) {
    if (masses[bin] == 0) continue;
    if (bin != found.bin) found = {bin, found.before + masses[found.bin]};
    if (found.before + masses[bin] >= target) break;
  }
  return found;
}

inline double mass_of(const float* weights, const int32_t* tokens, int64_t count) {
  double mass = 0;
  for (int64_t i = 0; i < count; ++i) mass += weights[tokens[i]];
  return mass;
}

// How many of the likeliest tokens are looked at before all are: nearly all rows have most of their mass in fewer than the
// last, and many in fewer than the first.
constexpr int64_t kFewTokens[] = {64, 256, 1024};

// The last token by rank of the smallest leading set of the row that weighs `top_p` of `total`. `tokens` is scratch.
inline int32_t last_of_row_within_mass(const float* logits, const float* weights, int64_t count, const WeightRule& rule,
                                       double total, double top_p, int32_t* tokens) {
  for (int64_t few : kFewTokens) {
    float threshold = reached_by_k(logits, count, few, tokens);
    int64_t found = gather_candidates(logits, weights, count, threshold, tokens);
    if (mass_of(weights, tokens, found) >= total * top_p) {
      return last_within_mass(logits, weights, tokens, found, total * top_p);
    }
  }
  // All lighter tokens together weigh less than top_p may leave out.
  float lightest = float(0.5 * total * (1.0 - top_p) / double(count));
  if (!(lightest > 0)) lightest = 1e-45f;
  double masses[kMassBins];
  add_masses(logits, weights, count, rule, lightest, masses);
  MassBin place = bin_of_mass(masses, total * top_p);
  float lowest = rule.largest - float(place.bin + 2) * (rule.temperature / 16.0f);
  if (place.bin == kMassBins - 1) lowest = -INFINITY;
  int64_t found = gather_candidates(logits, weights, count, lowest, tokens), kept = 0;
  for (int64_t i = 0; i < found; ++i) {
    if (mass_bin(logits[tokens[i]], rule) == place.bin && weights[tokens[i]] >= lightest) tokens[kept++] = tokens[i];
  }
  return last_within_mass(logits, weights, tokens, kept, total * top_p - place.before);
}

// Tokens with the logit of `last` and a higher index go. Returns how many stay.
inline int64_t drop_later_ties(const float* logits, int32_t last, int32_t* tokens, int64_t count) {
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (logits[tokens[i]] > logits[last] || tokens[i] <= last) tokens[kept++] = tokens[i];
  }
  return kept;
}

inline int32_t draw_from(const float* weights, const int32_t* tokens, int64_t count, double target) {
  double before = 0;
  for (int64_t i = 0; i + 1 < count; ++i) {
    before += weights[tokens[i]];
    if (before > target) return tokens[i];
  }
  return tokens[count - 1];
}

inline int32_t draw_filtered(const float* logits, int64_t count, const oct_sampling& row, const WeightRule& rule,
                             double uniform, const SampleScratch& scratch) {
  float* weights = scratch.weights;
  int32_t* tokens = scratch.tokens;
  bool by_k = row.top_k > 0 && row.top_k < count, by_p = row.top_p < 1.0f;
  float threshold = -INFINITY;
  double total = weigh(logits, count, rule, weights, nullptr);
  int64_t found = 0;
  if (by_k) {
    threshold = reached_by_k(logits, count, row.top_k, tokens);
    found = gather_candidates(logits, weights, count, threshold, tokens);
    if (found > row.top_k) {
      threshold = logit_of_rank(logits, tokens, found, row.top_k);
      found = gather_candidates(logits, weights, count, threshold, tokens);  // ties with the k-th stay, as in vLLM
    }
  }
  int32_t last = -1;  // of the tokens with the lowest logit that is kept, those up to this one are
  if (by_p) {
    last = by_k ? last_within_mass(logits, weights, tokens, found, mass_of(weights, tokens, found) * row.top_p)
                : last_of_row_within_mass(logits, weights, count, rule, total, row.top_p, tokens);
    threshold = logits[last];
  }
  if (by_p || !by_k) found = gather_candidates(logits, weights, count, threshold, tokens);
  if (by_p) found = drop_later_ties(logits, last, tokens, found);
  return draw_from(weights, tokens, found, uniform * mass_of(weights, tokens, found));
}

}  // namespace
}  // namespace octavo
