// A test harness of one page, so that kernels are tested without any framework: CHECK_* count failures, TestMain reports.
#ifndef LARGEOUT_COMMON_CHECK_H_
#define LARGEOUT_COMMON_CHECK_H_

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace largeout {

inline int& Failures() {
  static int failures = 0;
  return failures;
}

inline std::vector<std::pair<std::string, std::function<void()>>>& Tests() {
  static std::vector<std::pair<std::string, std::function<void()>>> tests;
  return tests;
}

struct TestRegistrar {
  TestRegistrar(const char* name, std::function<void()> body) { Tests().emplace_back(name, std::move(body)); }
};

#define LARGEOUT_TEST(name)                                          \
  static void name();                                                \
  static ::largeout::TestRegistrar registrar_##name(#name, &name);   \
  static void name()

#define CHECK_TRUE(condition)                                                         \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);             \
      ++::largeout::Failures();                                                       \
    }                                                                                 \
  } while (0)

// |got - want| <= tolerance * (1 + |want|); NaN never passes.
#define CHECK_CLOSE(got, want, tolerance)                                                                  \
  do {                                                                                                     \
    const double got_ = (got), want_ = (want);                                                             \
    if (!(std::fabs(got_ - want_) <= (tolerance) * (1.0 + std::fabs(want_)))) {                            \
      std::printf("%s:%d: %s = %.9g, expected %.9g\n", __FILE__, __LINE__, #got, got_, want_);             \
      ++::largeout::Failures();                                                                            \
    }                                                                                                      \
  } while (0)

inline int TestMain() {
  for (auto& [name, body] : Tests()) {
    const int before = Failures();
    body();
    std::printf("%s %s\n", Failures() == before ? "ok    " : "FAILED", name.c_str());
  }
  return Failures() == 0 ? 0 : 1;
}

// SplitMix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  double Unit() { return static_cast<double>(Next() >> 11) * (1.0 / 9007199254740992.0); }
  float Normalish() { return static_cast<float>(Unit() + Unit() + Unit() + Unit() - 2.0); }

 private:
  uint64_t state_;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CHECK_H_
