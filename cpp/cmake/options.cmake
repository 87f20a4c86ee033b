# SPDX-License-Identifier: MIT
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Never -ffast-math: NaN and infinity are inputs with a defined answer here.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")

# Kernels and bindings read arguments of unknown origin: a process whose stack was overrun ends instead of
# returning into the middle of somewhere, and functions of the C library check the bounds that are known. The
# sanitizers look at every access, and refuse to be mixed with the second.
if(NOT ATTNSCOPE_SANITIZE)
  add_compile_options(-fstack-protector-strong)
  string(APPEND CMAKE_CXX_FLAGS_RELEASE " -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2")
endif()

# Assertions stay in, and lines are named in reports.
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer")
if(ATTNSCOPE_SANITIZE)
  add_compile_options(-fsanitize=${ATTNSCOPE_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ATTNSCOPE_SANITIZE})
  if(ATTNSCOPE_FUZZ AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    add_compile_options(-fsanitize=fuzzer-no-link)
  endif()
endif()

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(ATTNSCOPE_CCACHE ccache)
  if(ATTNSCOPE_CCACHE)
    # Without these it would pass by every file that is compiled with precompiled headers.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${ATTNSCOPE_CCACHE})
  endif()
endif()

add_library(attnscope_warnings INTERFACE)
target_compile_options(attnscope_warnings INTERFACE -Wall -Wextra -Wconversion -Wno-sign-conversion
  $<$<BOOL:${ATTNSCOPE_WERROR}>:-Werror>)
# GCC before 13 takes the registers that its own AVX-512 header leaves open on purpose for a mistake.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(attnscope_warnings INTERFACE -Wno-maybe-uninitialized -Wno-uninitialized)
endif()
