# SPDX-License-Identifier: MIT
# Builds kernels, GoogleTests and fuzz targets for AArch64 Linux on another processor, and runs them in an
# emulator: Debian's g++-aarch64-linux-gnu and qemu-user. Eigen and pocketfft are headers, the same for every
# processor; GoogleTest is compiled from its sources (/usr/src/googletest).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)

set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)

find_program(ATTNSCOPE_QEMU NAMES qemu-aarch64 qemu-aarch64-static)
if(ATTNSCOPE_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${ATTNSCOPE_QEMU} -L /usr/aarch64-linux-gnu)
endif()
