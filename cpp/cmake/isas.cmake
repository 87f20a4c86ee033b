# SPDX-License-Identifier: MIT
# The core is compiled once per instruction set into modules of their own; Python loads the best one
# this processor runs (attnscope/_isa.py). Separate modules, not functions picked inside one, because
# the linker would merge Eigen's and std's inline functions across instruction sets.
#
# `wide` is eight lanes without AVX-512: the way that every kernel takes on a processor with it, in the
# instructions that this one has. It is for the tests, which ask for it by name, and never a module of the core.
set(_cpuinfo "")
if(EXISTS /proc/cpuinfo AND NOT CMAKE_CROSSCOMPILING)
  file(STRINGS /proc/cpuinfo _cpuinfo REGEX "^flags" LIMIT_COUNT 1)
endif()

# attnscope_isa_runs(<isa> <variable>): whether the processor that builds runs it; where that is unknown, yes
function(attnscope_isa_runs isa variable)
  set(needed "")
  if(isa MATCHES "^x86-64-v4")
    set(needed avx512f avx512dq avx512bw avx512vl)
  elseif(isa MATCHES "^x86-64-v3")
    set(needed avx2 fma bmi2)
  endif()
  set(${variable} TRUE PARENT_SCOPE)
  foreach(flag IN LISTS needed)
    if(_cpuinfo AND NOT " ${_cpuinfo} " MATCHES " ${flag} ")
      set(${variable} FALSE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" _processor)
if(APPLE AND CMAKE_OSX_ARCHITECTURES)
  # A Mac builds for the other processor too, whatever runs the compiler.
  string(TOLOWER "${CMAKE_OSX_ARCHITECTURES}" _processor)
endif()
if(_processor MATCHES "x86_64|amd64")
  set(_every x86-64-v2 x86-64-v3 x86-64-v4)
  set(_native x86-64-v2)
  set(_wide x86-64-v2-wide)
  foreach(isa x86-64-v3 x86-64-v4)
    attnscope_isa_runs(${isa} _runs)
    if(_cpuinfo AND _runs)
      set(_native ${isa})
      set(_wide x86-64-v3-wide)
    endif()
  endforeach()
elseif(_processor MATCHES "^(aarch64|arm64)$")
  # Every 64-bit Arm processor has NEON: registers of two float64 lanes, and products fused with a sum.
  set(_every armv8-a)
  set(_native armv8-a)
  set(_wide armv8-a-wide)
else()
  set(_every portable)
  set(_native portable)
  set(_wide portable-wide)
endif()
set(attnscope_isas "${ATTNSCOPE_ISAS}")
if("${attnscope_isas}" STREQUAL "")
  set(attnscope_isas ${_every})
endif()
list(TRANSFORM attnscope_isas REPLACE "^all$" "${_every}")
list(TRANSFORM attnscope_isas REPLACE "^native$" "${_native}")
list(TRANSFORM attnscope_isas REPLACE "^wide$" "${_wide}")
list(REMOVE_DUPLICATES attnscope_isas)
message(STATUS "attnscope: building for ${attnscope_isas}")

# attnscope_isa(<isa> <suffix-variable> <flags-variable>): file suffix and compiler flags of one set
function(attnscope_isa isa suffix flags)
  string(REPLACE "-" "_" _suffix ${isa})
  set(${suffix} ${_suffix} PARENT_SCOPE)
  set(_flags "")
  string(REGEX REPLACE "-wide$" "" _instructions ${isa})
  if(NOT _instructions STREQUAL "portable")
    list(APPEND _flags -march=${_instructions})
  endif()
  if(_instructions STREQUAL "x86-64-v4")
    # GCC halves the vector width on v4 by default, to spare older Intel cores their clock drop.
    list(APPEND _flags -mprefer-vector-width=512)
  endif()
  # Vectors that no register holds are passed in another way with AVX-512 than without, and nothing is linked
  # with a build for another instruction set.
  list(APPEND _flags -Wno-psabi)
  if(isa MATCHES "-wide$")
    list(APPEND _flags -DATTNSCOPE_PACK_WIDTH=8)
  endif()
  set(${flags} ${_flags} PARENT_SCOPE)
endfunction()
