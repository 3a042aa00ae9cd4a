# largeout_emulated_family(NAME): the CUDA kernels of custom_ops/NAME compiled by the C++ compiler, and their tests on a CPU
# (cuda_emulator/emulation.h), whether there is a GPU or not.
#
#   cuda/*.cu                          -> library NAME_emulated
#   test/*_test.cu, test/*_emulated.cu -> a CTest each, x_test_emulated and x_emulated; the latter run here alone
#   test/*_bench.cu of two families    -> a CTest each, x_bench_emulated: benchmarks/gpu/run.py runs it on tiny sizes
#   test/*_tuning.cuh                  -> included in place of cuda/*_tuning.cuh
set(LARGEOUT_EMULATED "" CACHE INTERNAL "")
set(LARGEOUT_EMULATES OFF)
option(LARGEOUT_EMULATE "The tests of the emulated kernels among the others" ON)
option(LARGEOUT_SANITIZE_EMULATED "Emulated kernels under the address sanitizer too" OFF)  # 5 minutes of CPU more
# ThreadSanitizer knows nothing of the races of a GPU, and does not follow fibers.
if(LARGEOUT_EMULATE AND LARGEOUT_TESTS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND
   (NOT LARGEOUT_SANITIZE OR (LARGEOUT_SANITIZE_EMULATED AND NOT LARGEOUT_SANITIZE MATCHES "thread")))
  set(LARGEOUT_EMULATES ON)
endif()

# The sources as C++: a .cc in the build folder that includes each, since a file has one language in CMake, and nvcc may be
# there too. -O1: half of the time of -O2 to compile, and a report names the line.
function(largeout_as_cpp target)
  foreach(source IN LISTS ARGN)
    file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${source})
    set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/emulation/${target}/${name}.cc)
    file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${source}\"\n")
    target_sources(${target} PRIVATE ${wrapper})
  endforeach()
  target_include_directories(${target} BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulator/include
                             ${CMAKE_CURRENT_BINARY_DIR}/emulation/include)
  target_compile_definitions(${target} PRIVATE LARGEOUT_CUDA_CODE=1 LARGEOUT_EMULATE_CUDA=1)
  target_compile_options(${target} PRIVATE -O1 -g1 -Wno-unknown-pragmas -Wno-psabi -Wno-subobject-linkage)
  if(NOT LARGEOUT_SANITIZE)
    # Calls of functions that accesses.cc has; the libraries of the sanitizers are not linked.
    target_compile_options(${target} PRIVATE -fsanitize=thread,alignment,bounds --param=tsan-instrument-func-entry-exit=0
                           --param=tsan-distinguish-volatile=1)
  endif()
endfunction()

if(LARGEOUT_EMULATES)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulator/*.cc
       ${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulator/*/*.cc)
  add_library(largeout_emulation STATIC ${sources})
  target_include_directories(largeout_emulation BEFORE PRIVATE
                             ${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulator/include)
  file(GLOB tunings CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}
       ${CMAKE_CURRENT_SOURCE_DIR}/*/test/*_tuning.cuh)
  foreach(tuning IN LISTS tunings)
    string(REPLACE "/test/" "/cuda/" name ${tuning})
    file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/emulation/include/${name}
         CONTENT "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${tuning}\"\n")
  endforeach()
endif()

function(largeout_emulated_family family)
  if(NOT LARGEOUT_EMULATES)
    return()
  endif()
  set(folder ${CMAKE_CURRENT_SOURCE_DIR}/${family})
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/cuda/*.cu)
  file(GLOB tests CONFIGURE_DEPENDS ${folder}/test/*_test.cu ${folder}/test/*_emulated.cu)
  set(benches "")
  if(family MATCHES "^(embedding|exchange)$")  # others take minutes here
    file(GLOB benches CONFIGURE_DEPENDS ${folder}/test/*_bench.cu)
  endif()
  if(sources)  # a family may stand on the kernels of others alone
    add_library(${family}_emulated STATIC)
    largeout_as_cpp(${family}_emulated ${sources})
    set(LARGEOUT_EMULATED ${family}_emulated ${LARGEOUT_EMULATED} CACHE INTERNAL "")
  endif()
  find_package(Threads REQUIRED)
  foreach(program IN LISTS tests benches)
    get_filename_component(name ${program} NAME_WE)
    string(REGEX REPLACE "_emulated$" "" name ${name})
    add_executable(${name}_emulated)
    # First, so that none of the kernels that nvcc compiled is looked for.
    target_link_libraries(${name}_emulated PRIVATE ${LARGEOUT_EMULATED} largeout_emulation ${LARGEOUT_KERNELS}
                          Threads::Threads ${CMAKE_DL_LIBS})
    if(program IN_LIST benches)
      largeout_as_cpp(${name}_emulated ${program})
      add_test(NAME ${name}_emulated
               COMMAND python3 -m benchmarks.gpu.run bench --emulated --quick --only ${family}
               --build ${CMAKE_CURRENT_BINARY_DIR} --out ${CMAKE_CURRENT_BINARY_DIR}/${name}_results
               WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/..)
    else()
      largeout_as_cpp(${name}_emulated ${program} ${CMAKE_CURRENT_SOURCE_DIR}/common/test/cuda_test_main.cu)
      add_test(NAME ${name}_emulated COMMAND ${name}_emulated)
    endif()
    if(LARGEOUT_SANITIZE)
      # A launch that is stopped leaves its stacks as they are, with what they own.
      set_tests_properties(${name}_emulated PROPERTIES ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
    endif()
  endforeach()
endfunction()
