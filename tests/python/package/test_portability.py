# SPDX-License-Identifier: MIT
"""Systems without `/proc`, `resource` or glibc's malloc, and processors of other instructions."""

import re
import struct
import sys
from pathlib import Path

import pytest

from attnscope import _isa, _memory, _system
from attnscope.engine import provenance
from attnscope.results import folder_lock
from support.compare_numbers import compare

ROOT = Path(__file__).parents[3]
CORE = sorted(path for path in (ROOT / "cpp").rglob("*") if path.suffix in {".h", ".cpp"})
PYTHON = sorted((ROOT / "python" / "attnscope").rglob("*.py"))


# --- C++: the code of other processors


def branches(text):
    """Return (condition, lines, has another branch) of every `#if`, with the lines of its branches inside."""
    stack, blocks = [], []
    for line in text.splitlines():
        directive = line.strip()
        if directive.startswith("#if"):
            stack.append([directive, [], False])
            continue
        if directive.startswith(("#else", "#elif")):
            stack[-1][2] = True
        elif directive.startswith("#endif"):
            blocks.append(tuple(stack.pop()))
        for block in stack:
            block[1].append(line)
    return blocks


INTRINSIC = re.compile(r"\b_mm\d*_\w+\(|\bv(?:ld1|st1|add|mul|fma)q?_\w+\(|__builtin_(?:ia32|cpu|neon)\w*")


def unguarded(text):
    """Return the intrinsics of a text that stand in no `#if`."""
    guarded = {line for _, lines, _ in branches(text) for line in lines}
    return [line.strip() for line in text.splitlines() if INTRINSIC.search(line) and line not in guarded]


def test_every_intrinsic_is_inside_a_condition():
    assert unguarded("int f() {\n  return _mm_movemask_pd(x);\n}") == ["return _mm_movemask_pd(x);"]
    assert {path.name: lines for path in CORE if (lines := unguarded(path.read_text("utf-8")))} == {}


#: Conditions with intrinsics and no `#else`, and the loop behind them that does the same.
LOOP_AFTERWARDS = {
    (
        "linalg/score_tiles.h",
        "#if defined(__AVX512F__) && ATTNSCOPE_PACK_WIDTH == 8",
    ): "for (; k < count; ++k) to[k]",
    ("homology/edge_order.cpp", "#if defined(ATTNSCOPE_AVX512_PACKS)"): "for (; k < count; ++k) {",
    ("homology/bit_row.h", "#ifdef __AVX512F__"): "for (std::size_t k = 0; k < count<kWords>(words); ++k) {",
    # the template behind it is for every type and for processors without such registers
    ("simd/number_lanes.h", "#if defined(__AVX__)"): "void transpose_rows(Row (&rows)[kTile]) {",
    # called only where `takes_pairs` says so, whose `#else` is false
    ("linalg/tile_products.h", "#if defined(ATTNSCOPE_AVX512_PACKS) && !defined(__clang__)"): "",
}


def test_every_intrinsic_has_a_portable_form():
    seen = set()
    for path in CORE:
        text = path.read_text("utf-8")
        for condition, lines, _ in branches(text):
            body = "\n".join(lines)
            if not INTRINSIC.search(body) or re.search(r"^ *#else", body, re.M):
                continue
            if any(outer != condition and set(lines) < set(rest) for outer, rest, _ in branches(text)):
                continue
            place = str(path.relative_to(ROOT / "cpp")), condition
            assert place in LOOP_AFTERWARDS, place
            assert LOOP_AFTERWARDS[place] in text
            seen.add(place)
    assert seen == set(LOOP_AFTERWARDS)


def test_the_core_asks_neither_proc_nor_one_c_library():
    words = re.compile(r"/proc|/sys/|mallopt|malloc_trim|__GLIBC__|<linux/|<sys/|omp\.h")
    # huge pages are Linux's: the header is included, and its function called, under that condition alone
    assert [path.name for path in CORE if words.search(path.read_text("utf-8"))] == ["module.cpp"]
    linux = [
        lines
        for condition, lines, _ in branches((ROOT / "cpp/bindings/module.cpp").read_text("utf-8"))
        if condition.startswith("#if defined(__linux__)")
    ]
    assert sum(len(re.findall(r"<sys/mman|madvise", "\n".join(lines))) for lines in linux) == 2


# --- Python


def test_only_named_modules_ask_what_only_some_systems_tell():
    words = re.compile(
        r"""["'(]/proc|"statm"|\bimport resource|\bmallopt|malloc_trim|sched_getaffinity|import fcntl"""
    )
    places = {path.name for path in PYTHON if words.search(path.read_text("utf-8"))}
    # the last two read a file of Linux, and go on without it
    assert places == {"_system.py", "_memory.py", "provenance.py", "folder_lock.py"}


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A system without `/proc`, whose C library has no glibc functions."""
    monkeypatch.setattr(_system, "PROC", tmp_path / "none")
    monkeypatch.setattr(_system.ctypes, "CDLL", lambda name: object())


def test_memory_is_asked_by_posix_where_there_is_no_proc(elsewhere):
    total = _system.os.sysconf("SC_PHYS_PAGES") * _system.page_bytes()
    assert 0 < _memory.free_bytes() <= total
    assert 2**24 < _system.resident_bytes() == _system.peak_resident_bytes() < total
    assert _system.requested_bytes() == _system.resident_bytes()


def test_a_mac_tells_the_free_memory_of_the_machine_and_bytes_of_the_process(elsewhere, monkeypatch):
    kibibytes = _system.peak_resident_bytes() // 1024
    answers = {"SC_PHYS_PAGES": 2**20, "SC_PAGE_SIZE": 16384}

    def sysconf(name):
        if name not in answers:
            raise ValueError("unrecognized configuration name")
        return answers[name]

    monkeypatch.setattr(_system.os, "sysconf", sysconf)
    monkeypatch.setattr(_system.sys, "platform", "darwin")
    assert _system.machine_free_bytes() == 2**34
    # macOS counts ru_maxrss in bytes: the number here is of kibibytes
    assert kibibytes <= _system.peak_resident_bytes() < 2 * kibibytes


def test_a_system_that_tells_nothing_warns_nobody(elsewhere, monkeypatch):
    monkeypatch.setattr(_system, "resource", None)
    monkeypatch.delattr(_system.os, "sysconf")
    assert _memory.free_bytes() == sys.maxsize
    assert _system.resident_bytes() == _system.peak_resident_bytes() == 0
    assert _system.page_bytes() == 4096
    _memory._warn_beyond(2.0**60, "no warning")


def test_a_c_library_without_glibcs_functions_is_left_alone(elsewhere, monkeypatch):
    assert _memory.give_back_large_blocks() is False
    _memory.FreePages().give_back()
    monkeypatch.setattr(_system.ctypes, "CDLL", lambda name: ctypes_without_process())
    assert _system.c_function("malloc_trim") is None


def ctypes_without_process():
    raise TypeError("a name is needed")


def test_a_processor_and_a_start_without_proc_have_other_names(monkeypatch):
    def no_file(self, *_):
        raise FileNotFoundError(self)

    assert provenance.cpu_name()
    monkeypatch.setattr(Path, "is_file", lambda self: False)
    monkeypatch.setattr(Path, "read_text", no_file)
    monkeypatch.setattr(provenance.platform, "processor", lambda: "arm")
    assert provenance.cpu_name() == "arm"
    monkeypatch.setattr(provenance.platform, "processor", lambda: "")
    assert provenance.cpu_name() == provenance.platform.machine() != ""
    # two starts of such a machine cannot be told apart
    assert folder_lock._boot() == ""


def test_processors_are_counted_without_affinity(monkeypatch):
    usable = _system.processor_count()
    monkeypatch.delattr(_system.os, "sched_getaffinity")
    assert _system.processor_count() == _system.os.cpu_count() >= usable


def test_attnscope_is_imported_and_measures_without_resource(fresh):
    script = (
        "import sys; sys.modules['resource'] = None\n"
        "import torch, attnscope as asc\n"
        "from attnscope import _system; assert _system.resource is None\n"
        "print(float(asc.fiedler_value(torch.full((4, 4), 0.25))))"
    )
    done = fresh(script)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(1.0)


# --- instruction sets


def test_a_core_for_arm_comes_before_a_portable_one(monkeypatch):
    monkeypatch.setattr(_isa.importlib.util, "find_spec", lambda name: name if "x86" not in name else None)
    monkeypatch.setattr(_isa, "_capability", lambda: "DEFAULT")
    assert _isa.runnable() == ["armv8_a", "portable"]


def test_every_instruction_set_of_the_build_is_known_to_python():
    text = (ROOT / "cpp/cmake/isas.cmake").read_text("utf-8")
    named = {isa for line in re.findall(r"set\(_every (.*)\)", text) for isa in line.split()}
    assert {isa.replace("-", "_") for isa in named} == set(_isa._RUNS_ON)


# --- numbers of two processors


def test_numbers_of_two_processors_are_compared():
    def bits(value):
        return struct.unpack("<Q", struct.pack("<d", value))[0]

    expected = {"float64 full 9 0": bits(1.0), "float64 full 9 1": 7, "float32 full 9 0": bits(0.5)}
    assert compare(expected, expected) == (
        "3 numbers, 3 to the bit, 0 beyond the bound, the others within 0 of it",
        [],
    )
    near = {**expected, "float64 full 9 0": bits(1.0 + 5e-10), "float32 full 9 0": bits(0.5 + 1e-6)}
    sentence, wrong = compare(expected, near)
    assert sentence.startswith("3 numbers, 1 to the bit, 0 beyond the bound, the others within 0.")
    assert wrong == []
    for place, value in [
        ("float64 full 9 0", bits(1.0 + 1e-8)),
        ("float64 full 9 1", 8),
        ("float64 full 9 1", (1 << 64) - 7),
        ("float32 full 9 0", bits(0.5001)),
        ("float32 full 9 0", bits(float("nan"))),
    ]:
        _, wrong = compare(expected, {**expected, place: value})
        assert [line.partition(":")[0] for line in wrong] == [place]
    assert compare(expected, {})[0] == "other places"
