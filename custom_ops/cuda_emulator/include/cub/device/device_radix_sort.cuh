// In the place of cub's, as a stable sort.
#ifndef LARGEOUT_CUDA_EMULATOR_INCLUDE_CUB_DEVICE_DEVICE_RADIX_SORT_CUH_
#define LARGEOUT_CUDA_EMULATOR_INCLUDE_CUB_DEVICE_DEVICE_RADIX_SORT_CUH_

#include <algorithm>
#include <limits>
#include <numeric>
#include <type_traits>

#include "cuda_emulator/cub/memory.h"

namespace cub {

struct DeviceRadixSort {
  // By the bits [begin_bit, end_bit) of integer keys; in and out do not overlap.
  template <typename Key, typename Value, typename N>
  static cudaError_t SortPairs(void* temp, size_t& temp_bytes, const Key* keys_in, Key* keys_out,
                               const Value* values_in, Value* values_out, N n, int begin_bit = 0,
                               int end_bit = sizeof(Key) * 8, cudaStream_t = nullptr) {
    const cudaError_t error = largeout::emulation::CubTemp(
        temp, &temp_bytes, static_cast<size_t>(n) * (sizeof(Key) + sizeof(Value)) + 4096);
    if (temp == nullptr || error != cudaSuccess || n == 0) return error;
    if (!Bits<Key>(begin_bit, end_bit) || keys_in == keys_out || values_in == values_out)
      return cudaErrorInvalidValue;
    const std::vector<Key> keys = largeout::emulation::FromDevice(keys_in, n);
    const std::vector<Value> values = largeout::emulation::FromDevice(values_in, n);
    const std::vector<int64_t> order = Order(keys, begin_bit, end_bit);
    const cudaError_t copied = largeout::emulation::ToDevice(Ordered(keys, order), keys_out);
    return copied != cudaSuccess ? copied : largeout::emulation::ToDevice(Ordered(values, order), values_out);
  }

  template <typename Key, typename N>
  static cudaError_t SortKeys(void* temp, size_t& temp_bytes, const Key* keys_in, Key* keys_out, N n,
                              int begin_bit = 0, int end_bit = sizeof(Key) * 8, cudaStream_t = nullptr) {
    const cudaError_t error =
        largeout::emulation::CubTemp(temp, &temp_bytes, static_cast<size_t>(n) * sizeof(Key) + 4096);
    if (temp == nullptr || error != cudaSuccess || n == 0) return error;
    if (!Bits<Key>(begin_bit, end_bit) || keys_in == keys_out) return cudaErrorInvalidValue;
    const std::vector<Key> keys = largeout::emulation::FromDevice(keys_in, n);
    return largeout::emulation::ToDevice(Ordered(keys, Order(keys, begin_bit, end_bit)), keys_out);
  }

 private:
  template <typename Key>
  static bool Bits(int begin, int end) {
    return begin >= 0 && end <= static_cast<int>(sizeof(Key) * 8);
  }

  template <typename Key>
  static std::vector<int64_t> Order(const std::vector<Key>& keys, int begin_bit, int end_bit) {
    using Bits = std::make_unsigned_t<Key>;
    const auto digits = [&](int64_t i) {
      Bits bits = static_cast<Bits>(keys[i]);
      if (std::is_signed<Key>::value) bits ^= Bits{1} << (sizeof(Key) * 8 - 1);
      bits = static_cast<Bits>(bits >> begin_bit);
      const int count = end_bit - begin_bit;
      return count < static_cast<int>(sizeof(Key) * 8) ? static_cast<Bits>(bits & ((Bits{1} << count) - 1))
                                                       : bits;
    };
    std::vector<int64_t> order(keys.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return digits(a) < digits(b); });
    return order;
  }

  template <typename X>
  static std::vector<X> Ordered(const std::vector<X>& values, const std::vector<int64_t>& order) {
    std::vector<X> ordered(values.size());
    for (size_t i = 0; i < values.size(); ++i) ordered[i] = values[order[i]];
    return ordered;
  }
};

}  // namespace cub

#endif  // LARGEOUT_CUDA_EMULATOR_INCLUDE_CUB_DEVICE_DEVICE_RADIX_SORT_CUH_
