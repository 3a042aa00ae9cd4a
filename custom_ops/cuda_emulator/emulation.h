// CUDA kernels on a CPU, for tests: g++ compiles the .cu files with the headers of include/ in the place of
// CUDA's, and what runs them here is stricter than a card.
//
// The threads of a block are fibers of one OS thread, blocks run one after another, launches at once.
// Barriers, shuffles, votes and tensor core instructions wait for all threads that they name and report those
// that do not come. With LARGEOUT_EMULATION_SEED=n in the environment blocks, warps and lanes run in another
// order for every n.
//
// In the plain build each access of the .cu files to memory is looked at (accesses.cc): what is outside of
// every live allocation, what nobody has written, what is misaligned, and pairs of accesses that nothing
// orders. In a build with AddressSanitizer that looks instead, at bounds alone.
//
// What this cannot prove: the order of memory beyond barriers (fences, volatile), what the compiler for GPUs
// makes of undefined behaviour, PTX, limits of registers, speed, and whatever real concurrency brings about.
// A bound between two neighbours in static shared memory shows only where an array is indexed by its name
// (-fsanitize=bounds).
#ifndef LARGEOUT_CUDA_EMULATOR_EMULATION_H_
#define LARGEOUT_CUDA_EMULATOR_EMULATION_H_

#include <cstdint>
#include <string>
#include <vector>

namespace largeout {
namespace emulation {

// Collects the reports of a scope, each once for a line, in the place of failures of the test.
class Collected {
 public:
  Collected();
  ~Collected();
  Collected(const Collected&) = delete;
  const std::vector<std::string>& reports() const;
  // Whether a report has all of these words in it.
  bool Has(const std::vector<std::string>& words) const;
};

// Sets the order of blocks, warps and lanes from now on (0: ascending), and returns the former one.
unsigned SetOrder(unsigned seed);

// While one lives, grid-stride loops get as many blocks as on a GPU.
class WholeGrids {
 public:
  WholeGrids();
  ~WholeGrids();
  WholeGrids(const WholeGrids&) = delete;
};

// How many kernels have been launched. A scan of cub is one, and its sort none.
int64_t Launches();

// Whether cuBLASLt has no product for anything that it has not been asked before.
void RefuseProducts(bool refuse);
// How many it has made.
int64_t Products();

}  // namespace emulation
}  // namespace largeout

#endif  // LARGEOUT_CUDA_EMULATOR_EMULATION_H_
