# Decides whether CUDA kernels are built: sets LARGEOUT_WITH_CUDA, and then CUDAToolkit_INCLUDE_DIRS,
# CUDAToolkit_VERSION and the target CUDA::cudart_static.

# find_package(CUDAToolkit) wants libcudart.so. NVIDIA's Python packages (nvidia-cuda-nvcc and its kin) have only the static
# library, which is the one that is used here. Sets `found`.
function(largeout_cuda_runtime found)
  get_filename_component(root ${CMAKE_CUDA_COMPILER} REALPATH)
  get_filename_component(root ${root}/../.. ABSOLUTE)
  find_path(LARGEOUT_CUDA_INCLUDE cuda_runtime.h
            HINTS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${root}/include ${root}/targets/x86_64-linux/include)
  find_library(LARGEOUT_CUDART cudart_static
               HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} ${root}/lib64 ${root}/lib ${root}/targets/x86_64-linux/lib)
  if(NOT LARGEOUT_CUDA_INCLUDE OR NOT LARGEOUT_CUDART)
    set(${found} OFF PARENT_SCOPE)
    return()
  endif()
  find_package(Threads REQUIRED)
  add_library(CUDA::cudart_static STATIC IMPORTED GLOBAL)
  set_target_properties(CUDA::cudart_static PROPERTIES IMPORTED_LOCATION ${LARGEOUT_CUDART}
                        INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};rt"
                        INTERFACE_INCLUDE_DIRECTORIES ${LARGEOUT_CUDA_INCLUDE})
  set(CUDAToolkit_INCLUDE_DIRS ${LARGEOUT_CUDA_INCLUDE} PARENT_SCOPE)
  set(CUDAToolkit_VERSION ${CMAKE_CUDA_COMPILER_VERSION} PARENT_SCOPE)
  set(${found} ON PARENT_SCOPE)
endfunction()

set(LARGEOUT_WITH_CUDA OFF)
if(LARGEOUT_CUDA)
  include(CheckLanguage)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${LARGEOUT_CUDA_ARCHITECTURES})
  endif()
  check_language(CUDA)
  set(largeout_nvcc "${CMAKE_CUDA_COMPILER}")
  if(largeout_nvcc AND LARGEOUT_CUDA STREQUAL "AUTO" AND CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)90")
    # An nvcc that does not know an architecture ends the configuration, as soon as the language is enabled.
    execute_process(COMMAND ${largeout_nvcc} --version OUTPUT_VARIABLE largeout_nvcc_version ERROR_QUIET)
    if(largeout_nvcc_version MATCHES "release ([0-9]+\\.[0-9]+)" AND CMAKE_MATCH_1 VERSION_LESS 11.8)
      message(WARNING "largeout: ${largeout_nvcc} is of CUDA ${CMAKE_MATCH_1}, and sm_90 wants 11.8 or newer: "
              "the CUDA kernels are left out")
      set(largeout_nvcc "")
    endif()
  endif()
  if(largeout_nvcc)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 17)
    largeout_cuda_runtime(LARGEOUT_WITH_CUDA)
    if(NOT LARGEOUT_WITH_CUDA AND LARGEOUT_CUDA STREQUAL "AUTO")
      message(WARNING "largeout: no cuda_runtime.h or libcudart_static.a beside ${largeout_nvcc}: "
              "the CUDA kernels are left out")
    elseif(NOT LARGEOUT_WITH_CUDA)
      message(FATAL_ERROR "LARGEOUT_CUDA=${LARGEOUT_CUDA}: no cuda_runtime.h or libcudart_static.a beside ${largeout_nvcc}")
    endif()
  elseif(NOT LARGEOUT_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "LARGEOUT_CUDA=${LARGEOUT_CUDA}, and no working nvcc was found on the PATH")
  elseif(NOT CMAKE_CUDA_COMPILER)
    find_program(largeout_broken_nvcc nvcc)
    if(largeout_broken_nvcc)
      message(WARNING "largeout: ${largeout_broken_nvcc} does not work with ${CMAKE_CXX_COMPILER} (CMakeFiles/CMakeError.log "
              "says why): the CUDA kernels are left out")
    endif()
  endif()
endif()
message(STATUS "largeout: CUDA kernels: ${LARGEOUT_WITH_CUDA}")
