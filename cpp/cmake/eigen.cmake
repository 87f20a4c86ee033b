# SPDX-License-Identifier: MIT
find_package(Eigen3 3.4 QUIET NO_MODULE)
if(NOT TARGET Eigen3::Eigen)
  message(STATUS "attnscope: Eigen 3.4 not installed, fetching the pinned release")
  include(FetchContent)
  FetchContent_Declare(eigen
    URL https://gitlab.com/libeigen/eigen/-/archive/3.4.0/eigen-3.4.0.tar.bz2
    URL_HASH SHA256=b4c198460eba6f28d34894e3a5710998818515104d6e74e5cc331ce31e46e626
    SOURCE_SUBDIR headers-only)
  FetchContent_MakeAvailable(eigen)
  add_library(attnscope_eigen INTERFACE)
  target_include_directories(attnscope_eigen SYSTEM INTERFACE ${eigen_SOURCE_DIR})
  add_library(Eigen3::Eigen ALIAS attnscope_eigen)
endif()
