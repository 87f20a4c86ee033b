# SPDX-License-Identifier: MIT
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
# pip installs it before a build; outside of pip the interpreter is asked where it lies.
execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
  OUTPUT_VARIABLE _pybind11 ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
find_package(pybind11 2.13 CONFIG REQUIRED HINTS ${_pybind11})
