# SPDX-License-Identifier: MIT
# _build.py is written by CMake.
VERSION: str
COMPILER: str
BUILD_TYPE: str
STUB: str
ISAS: list[str]
