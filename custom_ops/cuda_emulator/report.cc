#include "cuda_emulator/report.h"

#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <set>
#include <utility>

#include "common/test/check.h"
#include "cuda_emulator/block.h"
#include "cuda_emulator/emulation.h"

namespace largeout {
namespace emulation {
namespace {

std::vector<std::string>* collected = nullptr;

std::set<std::pair<std::string, const void*>>& Told() {
  static std::set<std::pair<std::string, const void*>> told;
  return told;
}

// "void largeout::(anonymous namespace)::Name<float>(...) at x.cu:3" as "Name<float> at x.cu:3".
std::string Short(std::string line) {
  for (const char* what : {"void ", "(anonymous namespace)::", "largeout::", "emulation::"}) {
    for (size_t at; (at = line.find(what)) != std::string::npos;) line.erase(at, std::string(what).size());
  }
  const size_t begin = line.find('(', line.compare(0, 12, " (inlined by") == 0 ? 12 : 0),
               end = line.rfind(" at ");
  if (begin != std::string::npos && end != std::string::npos && begin < end) line.erase(begin, end - begin);
  return line;
}

}  // namespace

Collected::Collected() {
  collected = new std::vector<std::string>;
  Told().clear();
}
Collected::~Collected() {
  delete collected;
  collected = nullptr;
}
const std::vector<std::string>& Collected::reports() const { return *collected; }
bool Collected::Has(const std::vector<std::string>& words) const {
  for (const std::string& report : *collected) {
    bool all = true;
    for (const std::string& word : words) all = all && report.find(word) != std::string::npos;
    if (all) return true;
  }
  return false;
}

std::string Format(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

std::string Symbol(const void* code) {
  Dl_info info;
  char path[1024];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0 || dladdr(code, &info) == 0) return Format("%p", code);
  path[length] = 0;
  uintptr_t address = reinterpret_cast<uintptr_t>(code);
  const auto* header = static_cast<const Elf64_Ehdr*>(info.dli_fbase);
  if (header->e_type == ET_DYN) address -= reinterpret_cast<uintptr_t>(info.dli_fbase);
  const std::string command =
      Format("addr2line -Cfsip -e '%s' %#zx 2>/dev/null", path, static_cast<size_t>(address));
  std::string text;
  if (std::FILE* pipe = popen(command.c_str(), "r")) {
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text.push_back(static_cast<char>(c));
    pclose(pipe);
  }
  std::string lines;
  int count = 0;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos && count < 4;
       begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    if (line.find("launch.cuh:") != std::string::npos) continue;
    lines += (lines.empty() ? "" : "\n  ") + Short(line);
    ++count;
  }
  return lines.empty() ? Format("%p", code) : lines;
}

void Report(const std::string& what, const void* code) {
  const bool inside = inside_kernel;
  inside_kernel = false;
  const std::string kind = what.substr(0, what.find(':'));
  if (collected == nullptr) ++Failures();
  if (code != nullptr && !Told().emplace(kind, code).second) {
    inside_kernel = inside;
    return;
  }
  std::string text = what + "\n  in " + WhoRuns();
  if (code != nullptr) text += "\n  " + Symbol(code);
  if (collected != nullptr) {
    collected->push_back(text);
  } else {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
  inside_kernel = inside;
}

void ReportAndStop(const std::string& what, const void* code) {
  Report(what, code);
  StopLaunch();
}

}  // namespace emulation
}  // namespace largeout
