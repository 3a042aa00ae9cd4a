// Files as memory.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/mapped_file.h"
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

}  // namespace largeout
