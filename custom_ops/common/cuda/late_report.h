// Asynchronous error reporting from kernels. A kernel writes what it finds to host memory; the host reads that
// memory when it launches the next kernel. So an error is raised by a later call of the op, and no call waits for
// the stream.
//
//   LateReport report;                         // lives from call to call
//   LateFinding found;
//   if (report.Take(&found)) ...               // of an earlier call
//   LateFinding* slot;
//   LARGEOUT_RETURN_IF_ERROR(report.Open(&slot));
//   Launch(kernel, ..., slot, ...);            // a thread of it: Post(slot, finding), from late_report.cuh
#ifndef LARGEOUT_COMMON_LATE_REPORT_H_
#define LARGEOUT_COMMON_LATE_REPORT_H_

#include <cstdint>
#include <mutex>

namespace largeout {

// `value` at `position` breaks rule number `rule` of the caller's, whose limit is `limit`.
struct LateFinding {
  int64_t rule = 0, position = 0, value = 0, limit = 0;
  int64_t posted = 0;  // written last: 1 while the host has not taken it
};

class LateReport {
 public:
  LateReport() = default;
  LateReport(const LateReport&) = delete;
  ~LateReport();

  // Returns where kernels post. The first call allocates it.
  int Open(LateFinding** slot);
  // Takes the finding that has arrived, if one has. Findings that kernels made before it was taken are lost.
  bool Take(LateFinding* found);

 private:
  std::mutex mutex_;
  LateFinding* slot_ = nullptr;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_LATE_REPORT_H_
