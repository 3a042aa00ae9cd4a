// Tests of HashingCpu: published values, and the same bits for 1, 2 and 4 threads and for every level.
#ifndef LARGEOUT_HASHING_HASHING_CASES_H_
#define LARGEOUT_HASHING_HASHING_CASES_H_

#include <string>
#include <vector>

#include "common/test/levels.h"
#include "common/test/test_call.h"
#include "hashing/hashing.h"

namespace largeout {

inline void ViewStdStrings(const void* data, int64_t begin, int64_t n, Bytes* out) {
  const auto* strings = static_cast<const std::string*>(data) + begin;
  for (int64_t i = 0; i < n; ++i) out[i] = {strings[i].data(), static_cast<int64_t>(strings[i].size())};
}

inline CategoryColumn Column(const std::vector<std::string>& values) {
  return {CategoryKind::kStrings, values.data(), ViewStdStrings};
}
inline CategoryColumn Column(const std::vector<int32_t>& values) {
  return {CategoryKind::kInt32, values.data(), nullptr};
}
inline CategoryColumn Column(const std::vector<int64_t>& values) {
  return {CategoryKind::kInt64, values.data(), nullptr};
}
inline CategoryColumn Column(const std::vector<uint64_t>& values) {
  return {CategoryKind::kUint64, values.data(), nullptr};
}

template <typename Device>
std::vector<uint64_t> Hashes(const CategoryColumn& column, int64_t n, uint64_t seed, int threads = 1) {
  TestCall<typename Device::Call> call(threads);
  std::vector<uint64_t> hashes = Unwritten<uint64_t>(n);
  CHECK_TRUE(Device(call.get()).Hash(column, n, seed, hashes.data()) == 0);
  return hashes;
}

template <typename Device>
std::vector<int64_t> Ids(const std::vector<CategoryColumn>& columns, int64_t n,
                         const std::vector<uint64_t>& seeds, int64_t num_bins, int64_t first,
                         int threads = 1) {
  TestCall<typename Device::Call> call(threads);
  const int64_t k = static_cast<int64_t>(seeds.size());
  std::vector<int64_t> ids = Unwritten<int64_t>(n * k);
  const CategoryRules rules = {seeds.data(), k, num_bins, first};
  CHECK_TRUE(Device(call.get())
                 .Categories(columns.data(), static_cast<int64_t>(columns.size()), n, rules, ids.data()) ==
             0);
  return ids;
}

inline std::vector<std::string> RandomStrings(int64_t n, int64_t longest, Random* random) {
  std::vector<std::string> strings(n);
  for (std::string& s : strings) {
    s.resize(random->Below(longest + 1));
    for (char& c : s) c = static_cast<char>(random->Below(256));
  }
  return strings;
}

template <typename Int>
std::vector<std::string> Decimal(const std::vector<Int>& values) {
  std::vector<std::string> digits;
  for (const Int value : values) digits.push_back(std::to_string(value));
  return digits;
}

// Of the specification of xxHash and its reference program.
template <typename Device>
void PublishedValues() {
  const std::vector<std::string> values = {"", "a", "abc", "Nobody inspects the spammish repetition"};
  ForEachLevel<Device>([&] {
    const std::vector<uint64_t> want = {0xef46db3751d8e999ull, 0xd24ec4f1a98c6e5bull, 0x44bc2cf5ad770999ull,
                                        0xfbcea83c8a378bf1ull};
    CHECK_TRUE(Hashes<Device>(Column(values), 4, 0) == want);
  });
}

// Every length, in groups of eight and by itself, at every level: one value after the other gives the same.
template <typename Device>
void EveryLength() {
  Random random(1);
  for (const int64_t longest : {0, 3, 8, 17, 31, 32, 100, 300}) {
    const std::vector<std::string> values = RandomStrings(1003, longest, &random);
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      SetIsa(Isa::kGeneric);
      std::vector<uint64_t> want;
      for (const std::string& value : values) {
        const std::vector<std::string> one = {value};
        want.push_back(Hashes<Device>(Column(one), 1, seed)[0]);
      }
      ForEachLevel<Device>([&] {
        for (const int threads : {1, 2, 4}) {
          CHECK_TRUE(Hashes<Device>(Column(values), 1003, seed, threads) == want);
        }
      });
    }
  }
}

template <typename Device>
void IntegersAreTheirDigits() {
  const std::vector<int64_t> wide = {0, 7, -7, 10, 123456789012345, INT64_MIN, INT64_MAX, -1, 99};
  const std::vector<int32_t> narrow = {0, 7, -7, INT32_MIN, INT32_MAX};
  const std::vector<uint64_t> unsigned_ones = {0, 7, ~uint64_t{0}, uint64_t{1} << 63};
  ForEachLevel<Device>([&] {
    CHECK_TRUE(Hashes<Device>(Column(wide), 9, 3) == Hashes<Device>(Column(Decimal(wide)), 9, 3));
    CHECK_TRUE(Hashes<Device>(Column(narrow), 5, 3) == Hashes<Device>(Column(Decimal(narrow)), 5, 3));
    CHECK_TRUE(Hashes<Device>(Column(unsigned_ones), 4, 3) ==
               Hashes<Device>(Column(Decimal(unsigned_ones)), 4, 3));
  });
}

// The remainder is that of a division, for bins of every size.
template <typename Device>
void IdsAreRemainders() {
  Random random(2);
  const std::vector<std::string> values = RandomStrings(517, 40, &random);
  const std::vector<uint64_t> seeds = {0, 1, ~uint64_t{0}};
  for (const int64_t num_bins :
       {int64_t{2}, int64_t{3}, int64_t{1000}, int64_t{1} << 20, (int64_t{1} << 32) + 1, INT64_MAX / 3}) {
    for (const int64_t first : {0, 1}) {
      ForEachLevel<Device>([&] {
        for (const int threads : {1, 4}) {
          const std::vector<int64_t> ids =
              Ids<Device>({Column(values)}, 517, seeds, num_bins, first, threads);
          for (int64_t j = 0; j < 3; ++j) {
            const std::vector<uint64_t> hashes = Hashes<Device>(Column(values), 517, seeds[j]);
            for (int64_t i = 0; i < 517; ++i) {
              const uint64_t rest = hashes[i] % static_cast<uint64_t>(num_bins - first);
              CHECK_TRUE(ids[3 * i + j] == j * num_bins + first + static_cast<int64_t>(rest));
            }
          }
        }
      });
    }
  }
}

template <typename Device>
void CrossesAreHashedFromTheirParts() {
  Random random(3);
  const std::vector<std::string> a = RandomStrings(300, 40, &random);
  std::vector<int64_t> b;
  for (int i = 0; i < 300; ++i) b.push_back(random.Below(1000));
  ForEachLevel<Device>([&] {
    const std::vector<uint64_t> of_a = Hashes<Device>(Column(a), 300, 0),
                                of_b = Hashes<Device>(Column(b), 300, 0);
    std::vector<std::string> joined(300);
    for (int i = 0; i < 300; ++i) {
      for (const uint64_t hash : {of_a[i], of_b[i]}) {
        for (int byte = 0; byte < 8; ++byte) joined[i] += static_cast<char>(hash >> (8 * byte));
      }
    }
    for (const int threads : {1, 4}) {
      CHECK_TRUE(Ids<Device>({Column(a), Column(b)}, 300, {5, 6}, 1000, 1, threads) ==
                 Ids<Device>({Column(joined)}, 300, {5, 6}, 1000, 1));
    }
  });
}

template <typename Device>
void NothingAtAll() {
  const std::vector<std::string> none;
  CHECK_TRUE(Hashes<Device>(Column(none), 0, 0).empty());
  CHECK_TRUE(Ids<Device>({Column(none), Column(none)}, 0, {0}, 2, 0).empty());
}

#define LARGEOUT_HASHING_CASES(Device)                  \
  LARGEOUT_CASE(PublishedValues, Device)                \
  LARGEOUT_CASE(EveryLength, Device)                    \
  LARGEOUT_CASE(IntegersAreTheirDigits, Device)         \
  LARGEOUT_CASE(IdsAreRemainders, Device)               \
  LARGEOUT_CASE(CrossesAreHashedFromTheirParts, Device) \
  LARGEOUT_CASE(NothingAtAll, Device)

}  // namespace largeout

#endif  // LARGEOUT_HASHING_HASHING_CASES_H_
