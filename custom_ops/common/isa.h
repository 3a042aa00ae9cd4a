// Instruction-set levels of the hot loops, chosen at run time.
//
// A file x_simd.cc is compiled once per level with LARGEOUT_ISA set to the level's name, and defines one table of
// function pointers in namespace largeout::LARGEOUT_ISA. The family's x.cc picks a table:
//
//   const EmbeddingKernels& kernels = LARGEOUT_SELECT(kEmbeddingKernels);   // declared by LARGEOUT_DECLARE_LEVELS
//
// In x_simd.cc: no std:: templates, no inline function outside namespace largeout::LARGEOUT_ISA (or static). A weak symbol
// shared between levels would run AVX-512 code on a machine without it; a CTest looks for such symbols.
#ifndef LARGEOUT_COMMON_ISA_H_
#define LARGEOUT_COMMON_ISA_H_

namespace largeout {

// kV4Bfloat16: v4 with products of bfloat16 (AVX512-BF16). Its tables are those of v4; loops that have such
// products look for the level themselves.
enum class Isa { kGeneric = 0, kV3 = 1, kV4 = 2, kV4Bfloat16 = 3 };

// The best level of this processor, or the one given to SetIsa. Thread-safe. For measuring, the environment
// variable LARGEOUT_ISA lowers it: generic, v3, v4.
Isa CurrentIsa();
// The best level that this processor runs and that was built.
Isa BestIsa();
const char* IsaName(Isa isa);
// For tests and benches: use `isa`, lowered to BestIsa() where the machine has less. Returns the level in use.
Isa SetIsa(Isa isa);

#ifdef LARGEOUT_X86_LEVELS
#define LARGEOUT_DECLARE_LEVELS(Type, name) \
  namespace generic {                       \
  extern const Type name;                   \
  }                                         \
  namespace v3 {                            \
  extern const Type name;                   \
  }                                         \
  namespace v4 {                            \
  extern const Type name;                   \
  }
#define LARGEOUT_SELECT(name)                                                     \
  (::largeout::CurrentIsa() >= ::largeout::Isa::kV4                               \
       ? ::largeout::v4::name                                                     \
       : (::largeout::CurrentIsa() == ::largeout::Isa::kV3 ? ::largeout::v3::name \
                                                           : ::largeout::generic::name))
#else
#define LARGEOUT_DECLARE_LEVELS(Type, name) \
  namespace generic {                       \
  extern const Type name;                   \
  }
#define LARGEOUT_SELECT(name) (::largeout::generic::name)
#endif

}  // namespace largeout

#endif  // LARGEOUT_COMMON_ISA_H_
