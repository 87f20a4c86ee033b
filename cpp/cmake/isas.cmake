# SPDX-License-Identifier: MIT
# The core is compiled once per instruction set into modules of their own; Python loads the best one
# this processor runs (attnscope/_isa.py). Separate modules, not functions picked inside one, because
# the linker would merge Eigen's and std's inline functions across instruction sets.
set(attnscope_isas "${ATTNSCOPE_ISAS}")
string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" _processor)
if(_processor MATCHES "x86_64|amd64")
  if("${attnscope_isas}" STREQUAL "")
    set(attnscope_isas x86-64-v2 x86-64-v3 x86-64-v4)
  elseif("${attnscope_isas}" STREQUAL "native")
    set(attnscope_isas x86-64-v2)
    if(EXISTS /proc/cpuinfo)
      file(STRINGS /proc/cpuinfo _flags REGEX "^flags" LIMIT_COUNT 1)
      if(_flags MATCHES " avx2 " AND _flags MATCHES " fma " AND _flags MATCHES " bmi2 ")
        set(attnscope_isas x86-64-v3)
      endif()
      if(_flags MATCHES " avx512f " AND _flags MATCHES " avx512dq " AND _flags MATCHES " avx512bw "
         AND _flags MATCHES " avx512vl ")
        set(attnscope_isas x86-64-v4)
      endif()
    endif()
  endif()
elseif("${attnscope_isas}" MATCHES "^(native)?$")
  set(attnscope_isas portable)
endif()
message(STATUS "attnscope: building for ${attnscope_isas}")

# attnscope_isa(<isa> <suffix-variable> <flags-variable>): file suffix and compiler flags of one set
function(attnscope_isa isa suffix flags)
  string(REPLACE "-" "_" _suffix ${isa})
  set(${suffix} ${_suffix} PARENT_SCOPE)
  if(isa STREQUAL "portable")
    set(${flags} "" PARENT_SCOPE)
  elseif(isa STREQUAL "x86-64-v4")
    # GCC halves the vector width on v4 by default, to spare older Intel cores their clock drop.
    set(${flags} -march=${isa} -mprefer-vector-width=512 PARENT_SCOPE)
  else()
    set(${flags} -march=${isa} PARENT_SCOPE)
  endif()
endfunction()
