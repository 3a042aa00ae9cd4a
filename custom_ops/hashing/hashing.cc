#include "hashing/hashing.h"

#include <algorithm>
#include <vector>

#include "hashing/hashing_kernels.h"

namespace largeout {
namespace {

// Values whose places are looked up at a time: these, and the digits of integers, stay in the first-level
// cache.
constexpr int64_t kBlock = 256;
constexpr int64_t kMostDigits = 20;  // with the sign
constexpr int64_t kCyclesPerHash = 40;

// Writes the decimal digits of `value` so that they end at `end`. Returns where they begin.
char* Digits(uint64_t value, bool negative, char* end) {
  do {
    *--end = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  if (negative) *--end = '-';
  return end;
}

template <typename Int>
void ViewDigits(const Int* values, int64_t n, char* text, Bytes* out) {
  for (int64_t i = 0; i < n; ++i) {
    char* const end = text + (i + 1) * kMostDigits;
    const bool negative = values[i] < 0;
    const uint64_t bits = static_cast<uint64_t>(values[i]);
    const char* const begin = Digits(negative ? 0 - bits : bits, negative, end);
    out[i] = {begin, end - begin};
  }
}

// Where the bytes of values [begin, begin + n), n <= kBlock, are; those of integers in `text`.
void View(const CategoryColumn& column, int64_t begin, int64_t n, char* text, Bytes* out) {
  switch (column.kind) {
    case CategoryKind::kStrings:
      return column.view(column.data, begin, n, out);
    case CategoryKind::kInt32:
      return ViewDigits(static_cast<const int32_t*>(column.data) + begin, n, text, out);
    case CategoryKind::kInt64:
      return ViewDigits(static_cast<const int64_t*>(column.data) + begin, n, text, out);
    case CategoryKind::kUint64:
      return ViewDigits(static_cast<const uint64_t*>(column.data) + begin, n, text, out);
  }
}

// Calls body(first value, how many, memory for their digits) for blocks of [begin, end).
template <typename Body>
void ForBlocks(int64_t begin, int64_t end, const Body& body) {
  char text[kBlock * kMostDigits];
  for (; begin < end; begin += kBlock) body(begin, std::min(kBlock, end - begin), text);
}

}  // namespace

int HashingCpu::Hash(const CategoryColumn& column, int64_t n, uint64_t seed, uint64_t* hashes) {
  const HashingKernels& kernels = LARGEOUT_SELECT(kHashingKernels);
  call_.parallel->For(n, kCyclesPerHash, [&](int64_t begin, int64_t end) {
    ForBlocks(begin, end, [&](int64_t at, int64_t count, char* text) {
      Bytes values[kBlock];
      View(column, at, count, text, values);
      kernels.hash(values, count, seed, 1, hashes + at);
    });
  });
  return 0;
}

int HashingCpu::Categories(const CategoryColumn* columns, int64_t p, int64_t n, const CategoryRules& rules,
                           int64_t* ids) {
  const HashingKernels& kernels = LARGEOUT_SELECT(kHashingKernels);
  const uint64_t bins = static_cast<uint64_t>(rules.num_bins - rules.first);
  call_.parallel->For(n, (rules.k + (p > 1 ? p : 0)) * kCyclesPerHash, [&](int64_t begin, int64_t end) {
    std::vector<uint64_t> parts(p > 1 ? kBlock * p : 0);
    ForBlocks(begin, end, [&](int64_t at, int64_t count, char* text) {
      Bytes values[kBlock];
      if (p == 1) {
        View(columns[0], at, count, text, values);
      } else {
        for (int64_t q = 0; q < p; ++q) {
          View(columns[q], at, count, text, values);
          kernels.hash(values, count, 0, p, parts.data() + q);
        }
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        for (uint64_t& part : parts) part = __builtin_bswap64(part);
#endif
        for (int64_t i = 0; i < count; ++i) {
          values[i] = {reinterpret_cast<const char*>(parts.data() + i * p), 8 * p};
        }
      }
      for (int64_t j = 0; j < rules.k; ++j) {
        const Bins of_hash = {bins, ~uint64_t{0} / bins, j * rules.num_bins + rules.first};
        kernels.bin(values, count, rules.seeds[j], of_hash, rules.k, ids + at * rules.k + j);
      }
    });
  });
  return 0;
}

}  // namespace largeout
