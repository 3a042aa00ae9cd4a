# Fails when an object of one instruction-set level defines a weak symbol outside largeout::LEVEL: the linker keeps one
# copy of such a symbol for all levels, and plain x86-64 machines would then run AVX code.
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} -C --defined-only ${object} OUTPUT_VARIABLE symbols RESULT_VARIABLE rc)
  if(NOT rc EQUAL 0)
    message(FATAL_ERROR "nm failed on ${object}")
  endif()
  string(REGEX MATCHALL "[^\n]* [VWu] [^\n]*" weak "${symbols}")
  foreach(symbol IN LISTS weak)
    if(NOT symbol MATCHES "largeout::${LEVEL}::")
      message(FATAL_ERROR "${object} defines the shared symbol '${symbol}' outside largeout::${LEVEL}")
    endif()
  endforeach()
endforeach()
