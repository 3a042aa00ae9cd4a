# largeout_family(NAME): everything in custom_ops/NAME, by its folder and the ending of its files.
#
#   *.cc               contracts' CPU side, compiled once for plain x86-64     -> library NAME_kernels
#   *_simd.cc          hot loops, compiled once per instruction-set level      -> the same library
#   cuda/*.cu          CUDA kernels (LARGEOUT_WITH_CUDA)                       -> the same library
#   cuda/*.cc          what needs a GPU but no nvcc (LARGEOUT_WITH_CUDA)       -> the same library
#   op/*_op.cc         TensorFlow glue (*_gpu_op.cc: LARGEOUT_WITH_CUDA)       -> the objects largeout_glue
#   test/*_test.cc     a CTest each;  *_test.cu a CTest each that skips (77) without a GPU; their mains: common/test/*_main.*
#   the same .cu files as C++, for tests without a GPU: cmake/largeout_emulation.cmake
#   test/*_bench.cc    a program each; *_bench.cu likewise
set(LARGEOUT_KERNELS "" CACHE INTERNAL "")

set(LARGEOUT_ISA_LEVELS generic)
set(LARGEOUT_ISA_FLAGS_generic "")
# What threads share does not depend on the level, and ThreadSanitizer takes minutes for one.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT LARGEOUT_SANITIZE MATCHES "thread")
  list(APPEND LARGEOUT_ISA_LEVELS v3 v4)
  set(LARGEOUT_ISA_FLAGS_v3 -march=x86-64-v3)
  # Zen and recent Intel cores run 512-bit vectors at full clock; GCC's default for v4 would be 256.
  set(LARGEOUT_ISA_FLAGS_v4 -march=x86-64-v4 -mprefer-vector-width=512)
  add_compile_definitions(LARGEOUT_X86_LEVELS=1)
endif()

function(largeout_program name)
  add_executable(${name} ${ARGN})
  foreach(kernels IN LISTS LARGEOUT_KERNELS)
    target_link_libraries(${name} PRIVATE ${kernels})
  endforeach()
  find_package(Threads REQUIRED)
  target_link_libraries(${name} PRIVATE Threads::Threads)
  if(LARGEOUT_WITH_CUDA)
    target_link_libraries(${name} PRIVATE CUDA::cudart_static)
  endif()
endfunction()

# A library: a test with a main of its own keeps it.
if(LARGEOUT_TESTS)
  add_library(largeout_test_main STATIC common/test/test_main.cc)
  if(LARGEOUT_WITH_CUDA)
    add_library(largeout_cuda_test_main STATIC common/test/cuda_test_main.cu)
  endif()
endif()

function(largeout_family family)
  set(folder ${CMAKE_CURRENT_SOURCE_DIR}/${family})
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cc)
  file(GLOB simd CONFIGURE_DEPENDS ${folder}/*_simd.cc)
  file(GLOB tests CONFIGURE_DEPENDS ${folder}/test/*_test.cc)
  file(GLOB benches CONFIGURE_DEPENDS ${folder}/test/*_bench.cc)
  list(REMOVE_ITEM sources ${simd} "")
  if(LARGEOUT_WITH_CUDA)
    file(GLOB cuda CONFIGURE_DEPENDS ${folder}/cuda/*.cu ${folder}/cuda/*.cc)
    file(GLOB cuda_programs CONFIGURE_DEPENDS ${folder}/test/*_test.cu ${folder}/test/*_bench.cu)
    list(APPEND sources ${cuda})
  endif()

  set(objects "")
  foreach(level IN LISTS LARGEOUT_ISA_LEVELS)
    if(simd)
      add_library(${family}_${level} OBJECT ${simd})
      target_compile_definitions(${family}_${level} PRIVATE LARGEOUT_ISA=${level})
      target_compile_options(${family}_${level} PRIVATE ${LARGEOUT_ISA_FLAGS_${level}} -ffp-contract=off -fno-exceptions
                             -fno-rtti -Wno-psabi)
      if(LARGEOUT_SANITIZE)
        # What these would find in vector loops the others find too, and they are half of the time of compiling.
        target_compile_options(${family}_${level} PRIVATE -fno-sanitize=null,object-size,alignment,pointer-overflow)
      endif()
      list(APPEND objects $<TARGET_OBJECTS:${family}_${level}>)
      if(LARGEOUT_TESTS AND NOT LARGEOUT_SANITIZE AND level MATCHES "v3|v4")
        # A weak symbol outside the level's own namespace could be chosen by the linker for every level.
        add_test(NAME ${family}_${level}_symbols
                 COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DLEVEL=${level} "-DOBJECTS=$<TARGET_OBJECTS:${family}_${level}>"
                 -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/check_isa_symbols.cmake)
      endif()
    endif()
  endforeach()
  add_library(${family}_kernels STATIC ${sources} ${objects})
  if(LARGEOUT_WITH_CUDA)
    target_compile_definitions(${family}_kernels PRIVATE LARGEOUT_CUDA=1)
  endif()
  # A family may call any family named before it (common comes first).
  set(LARGEOUT_KERNELS ${family}_kernels ${LARGEOUT_KERNELS} CACHE INTERNAL "")
  if(LARGEOUT_TF)
    largeout_glue_sources(${family})
  endif()

  if(LARGEOUT_TESTS)
    foreach(test IN LISTS tests)
      get_filename_component(name ${test} NAME_WE)
      largeout_program(${name} ${test})
      target_link_libraries(${name} PRIVATE largeout_test_main)
      add_test(NAME ${name} COMMAND ${name})
    endforeach()
    if(LARGEOUT_SANITIZE)
      set(benches "")  # times would say nothing
    endif()
    foreach(bench IN LISTS benches)
      get_filename_component(name ${bench} NAME_WE)
      largeout_program(${name} ${bench})
    endforeach()
    if(LARGEOUT_WITH_CUDA)
      foreach(program IN LISTS cuda_programs)
        get_filename_component(name ${program} NAME_WE)
        largeout_program(${name}_cuda ${program})
        if(name MATCHES "_test$")
          target_link_libraries(${name}_cuda PRIVATE largeout_cuda_test_main)
          add_test(NAME ${name}_cuda COMMAND ${name}_cuda)
          set_tests_properties(${name}_cuda PROPERTIES SKIP_RETURN_CODE 77)
        endif()
      endforeach()
    endif()
  endif()
endfunction()
