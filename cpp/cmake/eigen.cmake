# SPDX-License-Identifier: MIT
find_package(Eigen3 3.4 QUIET NO_MODULE)
if(NOT TARGET Eigen3::Eigen)
  message(STATUS "attnscope: Eigen 3.4 not installed, fetching the pinned release")
  include(FetchContent)
  FetchContent_Declare(eigen
    URL https://gitlab.com/libeigen/eigen/-/archive/3.4.0/eigen-3.4.0.tar.gz
    URL_HASH SHA256=8586084f71f9bde545ee7fa6d00288b264a2b7ac3607b974e54d13e7162c1c72
    SOURCE_SUBDIR headers-only)
  FetchContent_MakeAvailable(eigen)
  add_library(attnscope_eigen INTERFACE)
  target_include_directories(attnscope_eigen SYSTEM INTERFACE ${eigen_SOURCE_DIR})
  add_library(Eigen3::Eigen ALIAS attnscope_eigen)
endif()
