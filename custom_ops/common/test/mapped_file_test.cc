// Files as memory.
#include "common/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "common/parallel.h"
#include "common/test/check.h"

namespace largeout {
namespace {

// A folder that is removed with the files `a` and `b` in it.
struct Folder {
  Folder() {
    char name[] = "/tmp/largeout-mapped-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() {
    unlink((path + "/a").c_str());
    unlink((path + "/b").c_str());
    rmdir(path.c_str());
  }
  std::string path;
};

}  // namespace

LARGEOUT_TEST(AFileIsSparseAndKeepsWhatIsWritten) {
  const Folder folder;
  const std::string path = folder.path + "/a";
  const size_t bytes = size_t{1} << 34;  // sanitizers leave room for no terabyte
  std::string error;
  char* data = static_cast<char*>(MapFile(path, bytes, false, &error));
  CHECK_TRUE(data != nullptr && data[0] == 0 && data[bytes - 1] == 0);
  if (data == nullptr) return;
  data[bytes / 2] = 7;
  // Another mapping, and a later one, see it.
  char* other = static_cast<char*>(MapFile(path, bytes, true, &error));
  CHECK_TRUE(other != nullptr && other[bytes / 2] == 7);
  UnmapFile(other, bytes);
  UnmapFile(data, bytes);
  data = static_cast<char*>(MapFile(path, bytes, false, &error));
  CHECK_TRUE(data != nullptr && data[bytes / 2] == 7 && data[bytes / 2 + 1] == 0);
  UnmapFile(data, bytes);
  struct stat found;
  CHECK_TRUE(stat(path.c_str(), &found) == 0 && found.st_blocks * 512 < (1 << 20));
}

LARGEOUT_TEST(ErrorsSayWhatIsWrong) {
  const Folder folder;
  std::string error;
  CHECK_TRUE(MapFile(folder.path + "/none/a", 10, false, &error) == nullptr);
  CHECK_TRUE(error.find("it cannot be opened: No such file") == 0);
  CHECK_TRUE(MapFile(folder.path + "/b", 10, true, &error) == nullptr);
  CHECK_TRUE(error.find("it cannot be opened: No such file") == 0);
  void* data = MapFile(folder.path + "/a", 10, false, &error);
  CHECK_TRUE(data != nullptr);
  UnmapFile(data, 10);
  CHECK_TRUE(MapFile(folder.path + "/a", 11, false, &error) == nullptr);
  CHECK_TRUE(error == "it must have 11 bytes, and has 10");
  CHECK_TRUE(MapFile(folder.path, 10, false, &error) == nullptr);  // a folder
}

LARGEOUT_TEST(RowsThatWereAskedForArrive) {
  const Folder folder;
  const std::string path = folder.path + "/a";
  constexpr int64_t kRowBytes = 772, kRows = 100000;
  constexpr size_t kBytes = kRowBytes * kRows;
  const int file = open(path.c_str(), O_RDWR | O_CREAT, 0600);
  const std::vector<char> bytes(kBytes, 3);
  CHECK_TRUE(write(file, bytes.data(), kBytes) == static_cast<ssize_t>(kBytes) && fsync(file) == 0);
  std::string error;
  char* data = static_cast<char*>(MapFile(path, kBytes, true, &error));
  CHECK_TRUE(data != nullptr && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
  ThreadParallel parallel(2);
  std::vector<int64_t> rows = {99999, 5, 6, 7, 7, 40000, 5};
  WillNeed(data, kRowBytes, rows.data(), static_cast<int64_t>(rows.size()), &parallel);
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (const int64_t row : rows) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(data + row * kRowBytes) / page * page;
    unsigned char there = 0;
    for (int wait = 0; wait < 2000 && (there & 1) == 0; ++wait) {
      CHECK_TRUE(mincore(reinterpret_cast<void*>(first), page, &there) == 0);
      usleep((there & 1) == 0 ? 5000 : 0);
    }
    CHECK_TRUE((there & 1) == 1);
  }
  CHECK_TRUE(data[99999 * kRowBytes] == 3);
  UnmapFile(data, kBytes);
  close(file);
}

LARGEOUT_TEST(AskingForOrdinaryMemoryChangesNothing) {
  std::vector<char> memory(100000, 5);
  const std::vector<int32_t> rows = {0, 99, 98, 50};
  SerialParallel parallel;
  WillNeed(memory.data(), 1000, rows.data(), 4, &parallel);
  WillNeed(memory.data(), 0, rows.data(), 4, &parallel);
  WillNeed(memory.data(), 1000, rows.data(), 0, &parallel);
  CHECK_TRUE(memory == std::vector<char>(100000, 5));
}

}  // namespace largeout
