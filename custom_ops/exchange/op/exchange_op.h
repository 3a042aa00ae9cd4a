// Checks of the kernels of PartitionIds on any device: attributes, shapes, offsets, and the words of their errors.
#ifndef LARGEOUT_EXCHANGE_EXCHANGE_OP_H_
#define LARGEOUT_EXCHANGE_EXCHANGE_OP_H_

#include <limits>
#include <numeric>
#include <string>

#include "embedding/op/embedding_op.h"
#include "exchange/exchange.h"
#include "exchange/op/exchange_shapes_op.h"

namespace largeout {

struct PartitionInputs {
  explicit PartitionInputs(tensorflow::OpKernelContext* context)
      : ids(context->input(0)),
        offsets(context->input(1)),
        position_of(context->input(2)),
        hot(context->input(3)) {}
  const tensorflow::Tensor &ids, &offsets, &position_of, &hot;
};

class PartitionAttributes {
 public:
  explicit PartitionAttributes(tensorflow::OpKernelConstruction* context) {
    std::string kind, out_of_range;
    int64_t devices;
    OP_REQUIRES_OK(context, context->GetAttr("kind", &kind));
    OP_REQUIRES_OK(context, context->GetAttr("out_of_range", &out_of_range));
    OP_REQUIRES_OK(context, context->GetAttr("rows", &view_.rows));
    OP_REQUIRES_OK(context, context->GetAttr("devices", &devices));
    OP_REQUIRES_OK(context, context->GetAttr("multiplier", &view_.multiplier));
    OP_REQUIRES_OK(context, context->GetAttr("addend", &view_.addend));
    OP_REQUIRES_OK(context, CheckDevices(devices));
    error_ = out_of_range == "error";
    view_.shards = devices;
    view_.kind = kind == "modulo"        ? PlacementKind::kModulo
                 : kind == "permutation" ? PlacementKind::kPermutation
                 : kind == "explicit"    ? PlacementKind::kExplicit
                                         : PlacementKind::kIdentity;
    if (view_.kind != PlacementKind::kPermutation) return;
    constexpr int64_t kMostRows = 3000000000;  // row * multiplier + addend must fit 63 bits
    OP_REQUIRES(context, view_.rows <= kMostRows,
                Invalid("`rows` must be at most ", kMostRows, " for a permutation. Received: ", view_.rows));
    OP_REQUIRES(context,
                view_.multiplier >= 1 && view_.multiplier <= view_.rows &&
                    std::gcd(view_.multiplier, view_.rows) == 1,
                Invalid("`multiplier` must lie in [1, rows = ", view_.rows,
                        "] and have no divisor in common with it. Received: ", view_.multiplier));
    OP_REQUIRES(context, view_.addend >= 0 && view_.addend < view_.rows,
                Invalid("`addend` must lie in [0, rows = ", view_.rows, "). Received: ", view_.addend));
  }

  // Whether ids out of range are an error; otherwise they are dropped.
  bool error() const { return error_; }
  int64_t rows() const { return view_.rows; }
  int64_t shards() const { return view_.shards; }

  // offsets are read on the host; the values of ids, position_of and hot are the caller's to check: they may
  // be on a device.
  absl::Status ToPlacement(const PartitionInputs& in, PlacementView* placement) const {
    *placement = view_;
    const auto vector = [](const tensorflow::Tensor& x, int64_t n) {
      return x.dims() == 1 && (n < 0 || x.dim_size(0) == n);
    };
    if (in.ids.NumElements() > std::numeric_limits<int32_t>::max()) {
      return Invalid("`ids` must have less than 2^31 elements. Received: shape ",
                     in.ids.shape().DebugString());
    }
    const int64_t shards = view_.shards;
    if (!vector(in.offsets, shards + 1)) {
      return Invalid("`offsets` must have shape [devices + 1] = [", shards + 1, "]. Received: shape ",
                     in.offsets.shape().DebugString());
    }
    const bool is_explicit = view_.kind == PlacementKind::kExplicit;
    if (!vector(in.position_of, is_explicit ? view_.rows : 0)) {
      return Invalid(
          "`position_of` must have shape [", is_explicit ? view_.rows : 0, "], ",
          is_explicit ? "one position for each of the `rows`" : "empty unless `kind` is \"explicit\"",
          ". Received: shape ", in.position_of.shape().DebugString());
    }
    if (!vector(in.hot, is_explicit ? 0 : -1)) {
      return Invalid("`hot` must be a vector, empty where `kind` is \"explicit\". Received: shape ",
                     in.hot.shape().DebugString());
    }
    placement->offsets = Data<int64_t>(in.offsets);
    placement->position_of = Data<int64_t>(in.position_of);
    placement->hot = Data<int64_t>(in.hot);
    placement->num_hot = in.hot.NumElements();
    return CheckOffsets(*placement);
  }

 private:
  template <typename... Parts>
  static absl::Status Invalid(Parts... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  }

  static absl::Status CheckOffsets(const PlacementView& p) {
    for (int64_t s = 0; s <= p.shards; ++s) {
      if (p.offsets[s] < (s == 0 ? 0 : p.offsets[s - 1])) {
        return Invalid("`offsets` must not be negative and never decrease. Received: offsets[", s,
                       "] = ", p.offsets[s]);
      }
    }
    if (p.kind == PlacementKind::kExplicit) return absl::OkStatus();
    // Every row replicated: positions are the rows, without a list of them.
    if (p.kind == PlacementKind::kIdentity && p.num_hot == 0 && p.offsets[0] == p.rows)
      return absl::OkStatus();
    if (p.offsets[0] != p.num_hot) {
      return Invalid("`offsets` must begin with the number of `hot` rows, ", p.num_hot,
                     ". Received: offsets[0] = ", p.offsets[0]);
    }
    if (p.kind != PlacementKind::kModulo) {
      const int64_t room = p.offsets[p.shards] - p.num_hot;
      if (room >= p.rows) return absl::OkStatus();
      return Invalid("`offsets` must have room for all rows, ", p.rows, ". Received: offsets of ", room,
                     " positions");
    }
    for (int64_t s = 0; s < p.shards; ++s) {
      const int64_t size = p.offsets[s + 1] - p.offsets[s],
                    least = p.rows / p.shards + (s < p.rows % p.shards);
      if (size < least) {
        return Invalid("`offsets` must have room for the rows of each shard, ", least, " in shard ", s,
                       ". Received: ", size, " positions there");
      }
    }
    return absl::OkStatus();
  }

  PlacementView view_ = {};
  bool error_ = true;
};

inline absl::Status BadPartition(const PartitionFault& fault, const tensorflow::TensorShape& ids,
                                 const PlacementView& placement) {
  if (fault.hot >= 0) {
    return absl::InvalidArgumentError(absl::StrCat("`hot` must be ascending and lie in [0, ", placement.rows,
                                                   "), the rows of the table. Received: hot[", fault.hot,
                                                   "] = ", fault.row));
  }
  if (fault.id >= 0) return BadId(ids, fault.id, fault.row, placement.rows);
  return absl::InvalidArgumentError(
      absl::StrCat("`position_of` must lie in [0, ", placement.offsets[placement.shards],
                   "), the end of `offsets`. Received: position_of[", fault.row, "] = ", fault.value));
}

}  // namespace largeout

#endif  // LARGEOUT_EXCHANGE_EXCHANGE_OP_H_
