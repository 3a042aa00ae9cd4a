// The reports of the emulation.
#ifndef LARGEOUT_CUDA_EMULATOR_REPORT_H_
#define LARGEOUT_CUDA_EMULATOR_REPORT_H_

#include <string>

namespace largeout {
namespace emulation {

// A failure of the test, or one of Collected. `what` is told once for a place: the kernel, block and thread
// that run are named, and the line of `code`, an address in this program (null: none).
void Report(const std::string& what, const void* code);

// The same, and the launch ends here: what came next would not be as on a card. Inside a kernel it does not
// return.
void ReportAndStop(const std::string& what, const void* code);

// "function at file:line", and the functions that it was inlined into.
std::string Symbol(const void* code);

std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace emulation
}  // namespace largeout

#endif  // LARGEOUT_CUDA_EMULATOR_REPORT_H_
