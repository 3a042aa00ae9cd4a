# The library of TensorFlow ops: every op/*_op.cc, linked with the kernels, against the TensorFlow of ${Python_EXECUTABLE}.
if(LARGEOUT_TF)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= ${Python_EXECUTABLE} -c
            "import tensorflow as tf; s=tf.sysconfig; print(tf.__version__); print(' '.join(s.get_compile_flags())); print(' '.join(s.get_link_flags()))"
    OUTPUT_VARIABLE tf_facts ERROR_VARIABLE tf_errors RESULT_VARIABLE tf_result OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT tf_result EQUAL 0)
    message(FATAL_ERROR "TensorFlow could not be imported by ${Python_EXECUTABLE}; -DLARGEOUT_TF=OFF builds the kernels alone.\n${tf_errors}")
  endif()
  string(REPLACE "\n" ";" tf_facts "${tf_facts}")
  list(GET tf_facts -3 LARGEOUT_TF_VERSION)
  list(GET tf_facts -2 tf_cflags)
  list(GET tf_facts -1 tf_lflags)
  separate_arguments(LARGEOUT_TF_CFLAGS UNIX_COMMAND "${tf_cflags}")
  separate_arguments(LARGEOUT_TF_LFLAGS UNIX_COMMAND "${tf_lflags}")
  # TensorFlow's headers are not ours to warn about.
  string(REGEX REPLACE "(^|;)-I" "\\1-isystem;" LARGEOUT_TF_CFLAGS "${LARGEOUT_TF_CFLAGS}")
  message(STATUS "largeout: TensorFlow ${LARGEOUT_TF_VERSION}")

  # An object library: linked to the kernels, the precompiled header, the longest step of the build, would wait for all of them.
  add_library(largeout_glue OBJECT)
  target_precompile_headers(largeout_glue PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/common/op/tf_op.h)
  # EIGEN_USE_THREADS must be defined before any TensorFlow header.
  target_compile_definitions(largeout_glue PRIVATE EIGEN_USE_THREADS LARGEOUT_TF_VERSION="${LARGEOUT_TF_VERSION}")
  target_compile_options(largeout_glue PRIVATE ${LARGEOUT_TF_CFLAGS} -Wno-deprecated-declarations)
  target_include_directories(largeout_glue PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/generated)
  set_target_properties(largeout_glue PROPERTIES CXX_VISIBILITY_PRESET default UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(LARGEOUT_SANITIZE)
    # TensorFlow itself has no sanitizers: with them Abseil's containers would be laid out otherwise.
    target_compile_definitions(largeout_glue PRIVATE NDEBUG_SANITIZER)
  endif()
  if(LARGEOUT_WITH_CUDA)
    target_compile_definitions(largeout_glue PRIVATE LARGEOUT_CUDA=1 EIGEN_USE_GPU GOOGLE_CUDA=1
                               LARGEOUT_CUDA_VERSION="${CUDAToolkit_VERSION}")
    target_include_directories(largeout_glue SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  endif()
endif()

# Adds the glue of a family as one translation unit, and one for GPUs, which repeats names and macros: loading the
# precompiled header takes longer than compiling a small file.
function(largeout_glue_sources family)
  file(GLOB ops CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${family}/op/*_op.cc)
  set(gpu_ops ${ops})
  list(FILTER gpu_ops INCLUDE REGEX "_gpu_op\\.cc$")
  list(FILTER ops EXCLUDE REGEX "_gpu_op\\.cc$")
  set_source_files_properties(${ops} PROPERTIES UNITY_GROUP ${family})
  target_sources(largeout_glue PRIVATE ${ops})
  if(gpu_ops AND LARGEOUT_WITH_CUDA)
    set_source_files_properties(${gpu_ops} PROPERTIES UNITY_GROUP ${family}_gpu)
    target_sources(largeout_glue PRIVATE ${gpu_ops})
  endif()
endfunction()

# The library and its record, the Python package `keras_largeout_ops`, are written into one folder of the build: that folder
# on the Python path will do, and `cmake --install` copies it.
function(largeout_tensorflow_library)
  set(families common ${LARGEOUT_FAMILIES})
  set(sources "")
  foreach(family IN LISTS families)
    file(GLOB more CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${family}/*.h ${CMAKE_CURRENT_SOURCE_DIR}/${family}/*.cc
         ${CMAKE_CURRENT_SOURCE_DIR}/${family}/cuda/* ${CMAKE_CURRENT_SOURCE_DIR}/${family}/op/*)
    list(APPEND sources ${more})
  endforeach()
  string(REPLACE ";" "," families "${families}")
  set(package ${CMAKE_CURRENT_BINARY_DIR}/python/keras_largeout_ops)
  set(digest ${CMAKE_CURRENT_BINARY_DIR}/generated/sources_digest.h)
  set(version_file ${CMAKE_CURRENT_SOURCE_DIR}/../keras_largeout/_version.py)
  add_custom_command(
    OUTPUT ${digest} ${package}/_build_info.py
    COMMAND ${CMAKE_COMMAND} -DHEADER=${digest} -DRECORD=${package}/_build_info.py -DROOT=${CMAKE_CURRENT_SOURCE_DIR}
            -DFAMILIES=${families} -DVERSION_FILE=${version_file} -DTENSORFLOW=${LARGEOUT_TF_VERSION}
            -DCUDA=$<$<BOOL:${LARGEOUT_WITH_CUDA}>:${CUDAToolkit_VERSION}>
            -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/build_record.cmake
    DEPENDS ${sources} ${version_file} ${CMAKE_CURRENT_SOURCE_DIR}/cmake/build_record.cmake
    VERBATIM)
  target_sources(largeout_glue PRIVATE ${digest})
  add_library(largeout_ops MODULE $<TARGET_OBJECTS:largeout_glue>)
  set_target_properties(largeout_ops PROPERTIES PREFIX "_" OUTPUT_NAME largeout_ops LIBRARY_OUTPUT_DIRECTORY ${package}
                        LINKER_LANGUAGE CXX)
  target_link_libraries(largeout_ops PRIVATE ${LARGEOUT_KERNELS} ${LARGEOUT_TF_LFLAGS})
  if(LARGEOUT_WITH_CUDA)
    target_link_libraries(largeout_ops PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS} rt pthread)
  endif()
  file(WRITE ${package}/__init__.py "\"\"\"The compiled ops of keras_largeout, which loads them: keras_largeout/ops/_library.py.\"\"\"\n")
  install(TARGETS largeout_ops LIBRARY DESTINATION keras_largeout_ops COMPONENT python)
  install(FILES ${package}/__init__.py ${package}/_build_info.py DESTINATION keras_largeout_ops COMPONENT python)
endfunction()
