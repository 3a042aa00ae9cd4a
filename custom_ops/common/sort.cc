#include "common/sort.h"

#include <algorithm>

namespace largeout {
namespace {

struct Keyed {
  uint64_t key;
  int32_t position;
};

}  // namespace

template <typename Id>
void GroupIds(const Id* ids, int64_t n, Groups* groups) {
  constexpr int kBits = 11;
  constexpr uint64_t kMask = (1u << kBits) - 1;
  std::vector<Keyed> a, b;
  a.reserve(n);
  uint64_t used = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] < 0) continue;
    a.push_back({static_cast<uint64_t>(ids[i]), static_cast<int32_t>(i)});
    used |= static_cast<uint64_t>(ids[i]);
  }
  b.resize(a.size());
  std::vector<int64_t> count(kMask + 1);
  for (int shift = 0; shift < 64 && (used >> shift) != 0; shift += kBits) {
    if (((used >> shift) & kMask) == 0) continue;
    std::fill(count.begin(), count.end(), 0);
    for (const Keyed& x : a) ++count[(x.key >> shift) & kMask];
    int64_t sum = 0;
    for (int64_t& c : count) {
      const int64_t here = c;
      c = sum;
      sum += here;
    }
    for (const Keyed& x : a) b[count[(x.key >> shift) & kMask]++] = x;
    a.swap(b);
  }
  groups->unique.clear();
  groups->starts.clear();
  groups->order.resize(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    groups->order[i] = a[i].position;
    if (i == 0 || a[i].key != a[i - 1].key) {
      groups->unique.push_back(static_cast<int64_t>(a[i].key));
      groups->starts.push_back(static_cast<int64_t>(i));
    }
  }
  groups->starts.push_back(static_cast<int64_t>(a.size()));
}

template <typename Id>
bool StrictlyIncreasing(const Id* ids, int64_t n) {
  Id last = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] <= last) return false;
    last = ids[i];
  }
  return true;
}

template void GroupIds<int32_t>(const int32_t*, int64_t, Groups*);
template void GroupIds<int64_t>(const int64_t*, int64_t, Groups*);
template bool StrictlyIncreasing<int32_t>(const int32_t*, int64_t);
template bool StrictlyIncreasing<int64_t>(const int64_t*, int64_t);

}  // namespace largeout
