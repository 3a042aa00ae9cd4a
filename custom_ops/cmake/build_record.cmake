# Writes what a build says of itself: HEADER for C++, RECORD for Python. FAMILIES is joined by ",".
#
# The digest of the *sources* is that of all files that the library is built from: two libraries with the same one have the same
# ops and kernels, and processes of one cluster compare it. The digest of the *registrations* is that of the files with a
# REGISTER_OP: what Python relies on. keras_largeout/ops/_library.py computes it in the same way, for the sources beside it.
string(REPLACE "," ";" families "${FAMILIES}")
set(digests "${FAMILIES}")
set(registrations "")
foreach(family IN LISTS families)
  file(GLOB sources LIST_DIRECTORIES false RELATIVE ${ROOT} ${ROOT}/${family}/*.h ${ROOT}/${family}/*.cc ${ROOT}/${family}/cuda/*
    ${ROOT}/${family}/cuda/*/* ${ROOT}/${family}/op/*)
  list(SORT sources)
  foreach(source IN LISTS sources)
    file(SHA256 ${ROOT}/${source} digest)
    string(APPEND digests "\n${source} ${digest}")
    file(STRINGS ${ROOT}/${source} registers REGEX "^REGISTER_OP\\(")
    if(registers)
      list(APPEND registrations "${source} ${digest}")
    endif()
  endforeach()
endforeach()
string(SHA256 digest "${digests}")
string(SUBSTRING ${digest} 0 16 digest)
list(SORT registrations)
list(JOIN registrations "\n" registrations)
string(SHA256 registrations "${registrations}")
string(SUBSTRING ${registrations} 0 16 registrations)
file(STRINGS ${VERSION_FILE} version REGEX "^__version__ = ")
string(REGEX REPLACE "^__version__ = \"(.*)\".*" "\\1" version "${version}")

file(WRITE ${HEADER} "#define LARGEOUT_SOURCES_DIGEST \"${digest}\"\n")
file(WRITE ${RECORD} "# Written by the build.
VERSION = \"${version}\"
TENSORFLOW = \"${TENSORFLOW}\"
CUDA = \"${CUDA}\"
REGISTRATIONS = \"${registrations}\"
")
