# CMAKE_CUDA_ARCHITECTURES from -DJAXGEMM_ARCHS=... or the environment variable JAXGEMM_ARCHS, separated by semicolons,
# commas or spaces. The default: code for Ampere and Ada, code for Hopper, and PTX that later GPUs compile when they load
# it. A developer with one GPU builds faster with e.g. JAXGEMM_ARCHS=90a-real.
set(default_archs 80-real 90a-real 90-virtual)

set(archs ${JAXGEMM_ARCHS})
if(NOT DEFINED JAXGEMM_ARCHS)
  set(archs "$ENV{JAXGEMM_ARCHS}")
endif()
string(REGEX REPLACE "[;, ]+" ";" archs "${archs}")
list(REMOVE_ITEM archs "")
if(NOT archs)
  set(archs ${default_archs})
endif()
list(REMOVE_DUPLICATES archs)

foreach(arch IN LISTS archs)
  if(NOT arch MATCHES "^([1-9][0-9]+)[af]?(-real|-virtual)?$" OR CMAKE_MATCH_1 LESS 80)
    message(
      FATAL_ERROR
        "JAXGEMM_ARCHS: '${arch}' is not an architecture that jaxgemm can be built for. Give compute capabilities from "
        "80 on, with an optional suffix a or f and an optional -real (machine code only) or -virtual (PTX only): "
        "80-real;90a-real;90-virtual is the default.")
  endif()
endforeach()

set(CMAKE_CUDA_ARCHITECTURES ${archs})
message(STATUS "CUDA architectures: ${archs}")
