# SPDX-License-Identifier: MIT
# Links the torch that is installed beside this Python, by path: TorchConfig.cmake of a CUDA wheel asks
# for a CUDA toolkit, which a machine that only uses the wheel does not have. torch carries a copy of
# pybind11 and its headers use it, so that copy is the one copy used here.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(OpenMP REQUIRED COMPONENTS CXX)

execute_process(
  COMMAND ${Python_EXECUTABLE} -c
    "import torch; from torch.utils import cpp_extension as c; print(torch.__version__, int(torch._C._GLIBCXX_USE_CXX11_ABI), ';'.join(c.include_paths()), ';'.join(c.library_paths()), sep='|')"
  OUTPUT_VARIABLE _torch ERROR_VARIABLE _torch_error RESULT_VARIABLE _torch_status
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT _torch_status EQUAL 0)
  message(FATAL_ERROR
    "attnscope is built against the torch you use, and ${Python_EXECUTABLE} cannot import one.\n"
    "Install torch >= 2.6 first, then: pip install --no-build-isolation .\n${_torch_error}")
endif()
string(REGEX MATCH "^([^|]*)\\|([01])\\|([^|]*)\\|(.*)$" _ "${_torch}")
set(ATTNSCOPE_TORCH_VERSION ${CMAKE_MATCH_1})
set(_torch_abi ${CMAKE_MATCH_2})
set(_torch_include ${CMAKE_MATCH_3})
set(_torch_library ${CMAKE_MATCH_4})
if(ATTNSCOPE_TORCH_VERSION VERSION_LESS 2.6)
  message(FATAL_ERROR "attnscope needs torch >= 2.6, found ${ATTNSCOPE_TORCH_VERSION} for ${Python_EXECUTABLE}")
endif()
message(STATUS "attnscope: torch ${ATTNSCOPE_TORCH_VERSION}")

add_library(attnscope_torch INTERFACE)
target_include_directories(attnscope_torch SYSTEM INTERFACE ${_torch_include})
target_compile_definitions(attnscope_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${_torch_abi})
foreach(_name torch_python torch_cpu torch c10)
  find_library(ATTNSCOPE_LIB_${_name} ${_name} PATHS ${_torch_library} NO_DEFAULT_PATH REQUIRED)
  target_link_libraries(attnscope_torch INTERFACE ${ATTNSCOPE_LIB_${_name}})
endforeach()
