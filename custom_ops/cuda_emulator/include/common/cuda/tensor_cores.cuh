// In the place of common/cuda/tensor_cores.cuh.
#include "cuda_emulator/warp/tensor_cores.h"
