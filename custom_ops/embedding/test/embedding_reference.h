// The formulas of embedding.h in float64, with random batches to try them on.
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_REFERENCE_H_
#define LARGEOUT_EMBEDDING_EMBEDDING_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "common/bfloat16.h"
#include "common/test/check.h"
#include "embedding/embedding.h"

namespace largeout {

template <typename T>
std::vector<T> RandomValues(int64_t n, Random* random) {
  std::vector<T> values(n);
  for (T& v : values) FromFloat(random->Normalish(), &v);
  return values;
}

// A batch that owns its arrays. Ids are in [-2, rows + 2), half of them below 3 so that some rows are hot.
template <typename Id>
struct Batch {
  std::vector<Id> ids;
  std::vector<int64_t> splits;
  std::vector<float> weights;
  int64_t num_bags = 0, bag_size = 0;

  // bag_size < 0: ragged, with empty bags and one long one.
  Batch(int64_t bags, int64_t size, int64_t rows, bool weighted, Random* random) : num_bags(bags), bag_size(size) {
    int64_t n = bags * size;
    if (size < 0) {
      splits.push_back(0);
      for (int64_t b = 0; b < bags; ++b) splits.push_back(splits.back() + (b == 3 ? 300 : random->Below(5)));
      n = splits.back();
    }
    for (int64_t i = 0; i < n; ++i) {
      ids.push_back(static_cast<Id>(random->Below(2) == 0 ? random->Below(3) : random->Below(rows + 4) - 2));
      if (weighted) weights.push_back(static_cast<float>(random->Unit() + 0.25));
    }
  }
  // Dense bags of these ids.
  Batch(std::vector<Id> ids, int64_t size, std::vector<float> weights = {})
      : ids(std::move(ids)), weights(std::move(weights)), bag_size(size) {
    num_bags = this->size() / size;
  }
  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  Bags<Id> bags() const {
    return {ids.data(), size(), splits.empty() ? nullptr : splits.data(), bag_size, num_bags,
            weights.empty() ? nullptr : weights.data()};
  }
};

struct EmbeddingTruth {
  std::vector<double> out, out_bounds;            // [num_bags, dim]
  std::map<int64_t, std::vector<double>> rows;    // the table's gradient
  std::map<int64_t, std::vector<double>> bounds;  // bounds: the sum of the terms' absolute values, the scale of the error
  std::vector<double> weights;                    // [num_ids]
};

template <typename T, typename Id>
EmbeddingTruth Truth(const std::vector<T>& table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner,
                     const std::vector<T>& grad) {
  EmbeddingTruth truth;
  truth.out.assign(bags.num_bags * dim, 0.0);
  truth.out_bounds = truth.out;
  truth.weights.assign(bags.num_ids, 0.0);
  for (int64_t b = 0; b < bags.num_bags; ++b) {
    double* out = truth.out.data() + b * dim;
    std::vector<int64_t> valid;
    double sum = 0, squares = 0;
    for (int64_t p = bags.begin(b); p < bags.begin(b + 1); ++p) {
      if (bags.ids[p] < 0 || bags.ids[p] >= rows) continue;
      valid.push_back(p);
      const double w = bags.weights ? bags.weights[p] : 1.0;
      sum += w, squares += w * w;
    }
    const double d = combiner == Combiner::kSum ? 1.0 : (combiner == Combiner::kMean ? sum : std::sqrt(squares));
    if (valid.empty() || d == 0) continue;
    for (int64_t p : valid) {
      const double w = bags.weights ? bags.weights[p] : 1.0;
      std::vector<double>&row = truth.rows[bags.ids[p]], &bound = truth.bounds[bags.ids[p]];
      row.resize(dim), bound.resize(dim);
      for (int64_t c = 0; c < dim; ++c) {
        const double term = w / d * ToFloat(grad[b * dim + c]);
        const double part = w / d * ToFloat(table[bags.ids[p] * dim + c]);
        out[c] += part, truth.out_bounds[b * dim + c] += std::fabs(part);
        row[c] += term, bound[c] += std::fabs(term);
      }
    }
    for (int64_t p : valid) {
      const double w = bags.weights ? bags.weights[p] : 1.0;
      const double pull = combiner == Combiner::kSum ? 0.0 : (combiner == Combiner::kMean ? 1.0 : w / d);
      for (int64_t c = 0; c < dim; ++c) {
        truth.weights[p] += ToFloat(grad[b * dim + c]) * (ToFloat(table[bags.ids[p] * dim + c]) - pull * out[c]) / d;
      }
    }
  }
  return truth;
}

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_REFERENCE_H_
