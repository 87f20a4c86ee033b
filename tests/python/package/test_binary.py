# SPDX-License-Identifier: MIT
"""The built core as a file: hardened against overwritten memory, and what is compiled into it is licensed."""

import struct
from pathlib import Path

import pytest

from attnscope import _core

MODULES = sorted(Path(_core.__file__).parent.glob("_core_*.so"))
ROOT = Path(__file__).parents[3]
PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 2, 0x6474E551, 0x6474E552
DT_RPATH, DT_TEXTREL, DT_RUNPATH, DT_FLAGS, DT_FLAGS_1 = 15, 22, 29, 30, 0x6FFFFFFB
DF_BIND_NOW, DF_1_NOW, PF_X = 0x8, 0x1, 0x1


class Elf:
    """The program headers and the dynamic section of a 64-bit little-endian ELF file."""

    def __init__(self, data):
        assert data[:6] == b"\x7fELF\x02\x01"
        self.data = data
        start, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
        #: (type, flags, offset, address, bytes in the file)
        self.segments = [struct.unpack_from("<IIQQ8xQ", data, start + size * index) for index in range(count)]
        [(_, _, offset, _, length)] = [part for part in self.segments if part[0] == PT_DYNAMIC]
        entries = [struct.unpack_from("<qQ", data, offset + at) for at in range(0, length, 16)]
        self.dynamic = {tag & 0xFFFFFFFFFFFFFFFF: value for tag, value in entries if tag}

    def flags(self, kind):
        return [flags for segment_kind, flags, *_ in self.segments if segment_kind == kind]


@pytest.fixture(params=MODULES, ids=lambda path: path.name.split(".")[0])
def elf(request):
    return Elf(request.param.read_bytes())


def test_there_is_a_module():
    assert MODULES


def test_addresses_of_functions_cannot_be_written(elf):
    assert elf.flags(PT_GNU_RELRO), "no RELRO segment"
    now = elf.dynamic.get(DT_FLAGS, 0) & DF_BIND_NOW or elf.dynamic.get(DT_FLAGS_1, 0) & DF_1_NOW
    assert now, "functions are bound when they are first called, so their table stays writable"


def test_the_stack_is_guarded_and_holds_no_code(elf):
    [flags] = elf.flags(PT_GNU_STACK)
    assert not flags & PF_X
    assert b"\0__stack_chk_fail\0" in elf.data


def test_no_path_of_the_build_machine_and_no_writable_code(elf):
    assert not {DT_RPATH, DT_RUNPATH, DT_TEXTREL} & set(elf.dynamic)


@pytest.mark.parametrize("library", ["Eigen", "pocketfft", "pybind11"])
def test_every_library_that_is_compiled_in_is_licensed(library):
    assert library in (ROOT / "LICENSE").read_text("utf-8")


def test_no_other_library_is_compiled_in():
    sources = [*ROOT.glob("cpp/**/*.h"), *ROOT.glob("cpp/**/*.cpp")]
    headers = {
        line.split("<")[1].split(">")[0]
        for path in sources
        for line in path.read_text("utf-8").splitlines()
        if line.startswith("#include <") and ("/" in line or ".h" in line)
    }
    allowed = (
        "Eigen/",
        "pybind11/",
        "pocketfft_hdronly.h",
        "pthread.h",
        "sys/mman.h",
        "immintrin.h",
        "arm_neon.h",
    )
    assert {name for name in headers if not name.startswith(allowed)} == set()
