# SPDX-License-Identifier: MIT
"""`attnscope doctor`: its verdict, a kernel that is wrong, a chosen instruction set, every metric."""

import json
import re
from pathlib import Path

import pytest

from attnscope.cli import doctor
from attnscope.cli.supported_versions import (
    SUPPORTED_VERSIONS,
    describe_partly_tried,
    describe_unsupported,
)
from attnscope.metrics.measured import check_closed_form


def test_doctor_passes_here_and_fails_when_a_kernel_is_wrong(call, monkeypatch):
    code, out, _ = call("doctor")
    assert code == 0
    assert "BAD" not in out
    assert "instruction set" in out

    def disturb(quantity):
        computed, expected = check_closed_form(quantity)
        return computed, expected + 1e-9 * (quantity.name == "fiedler_value_normalized")

    monkeypatch.setattr(doctor, "check_closed_form", disturb)
    code, out, _ = call("doctor", "--json")
    checks = {check["name"]: check["ok"] for check in json.loads(out)["checks"]}
    assert code == 1
    assert not checks.pop("fiedler_value")
    assert all(checks.values())
    assert json.loads(out)["verdict"].startswith("1 fault: fiedler_value\n")
    code, out, _ = call("doctor")
    assert code == 1
    assert re.search(r"^BAD +fiedler_value .*expected", out, re.MULTILINE)
    *_, count, remedy = out.strip().splitlines()
    assert count == "1 fault: fiedler_value"
    assert "do not use the numbers of what is BAD" in remedy
    assert "pip install --force-reinstall" in remedy


def test_a_chosen_instruction_set_is_a_note_and_one_nobody_chose_a_fault(call, monkeypatch):
    from attnscope import _isa

    monkeypatch.setattr(_isa, "live", lambda: "x86_64_v2")
    monkeypatch.setattr(_isa, "runnable", lambda: ["x86_64_v3", "x86_64_v2"])
    monkeypatch.setenv("ATTNSCOPE_ISA", "x86-64-v2")
    code, out, _ = call("doctor")
    assert code == 0
    assert re.search(
        r"^note  instruction set +x86_64_v2, chosen by ATTNSCOPE_ISA; x86_64_v3 would run too$", out, re.M
    )
    assert out.strip().splitlines()[-1] == "0 faults: this installation is sound"
    code, out, _ = call("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert checks["instruction set"]["ok"]
    assert checks["instruction set"]["note"]
    assert [name for name, check in checks.items() if check["note"]] == ["instruction set"]
    monkeypatch.delenv("ATTNSCOPE_ISA")
    code, out, _ = call("doctor")
    assert code == 1
    assert re.search(r"^BAD +instruction set +x86_64_v2 is live, x86_64_v3 would run$", out, re.M)
    assert out.strip().splitlines()[-2:] == ["1 fault: instruction set", "start a new Python process"]


def test_ten_lines_say_what_a_bug_report_needs(call):
    lines = doctor.show_config().splitlines()
    assert [line.partition("  ")[0] for line in lines] == [
        *("attnscope", "core", "system", "processor", "python"),
        *("torch", "transformers", "threads", "devices", "missing"),
    ]
    assert re.search(r"^attnscope +\d\S+ \(Release by (GNU|Clang|AppleClang) \d", lines[0])
    assert re.search(r"^core +instruction set (\w+) \(installed: [^)]*\b\1\b[^)]*\), /.*_core_\1\.", lines[1])
    assert re.search(r"^system +\w+ \S+, \S.* \(.+\)$", lines[2])
    assert re.search(
        r"^python +3\.\d+\.\d+ \(supported: 3\.10 to 3\.13\) with numpy \d\S+ \(.*scipy \d", lines[4]
    )


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        ((), "nothing: all libraries of attnscope[models,studies,sklearn] are installed"),
        (("sklearn",), "sklearn: pip install 'attnscope[sklearn]'"),
        (("pyarrow", "pandas"), "pandas, pyarrow: pip install 'attnscope[models,studies]'"),
    ],
)
def test_a_line_names_the_libraries_that_are_missing(monkeypatch, absent, words):
    find = doctor.PathFinder.find_spec
    monkeypatch.setattr(
        doctor.PathFinder, "find_spec", lambda name, *rest: None if name in absent else find(name, *rest)
    )
    assert doctor.facts()["missing"] == words


def test_a_library_outside_of_the_table_is_named_in_its_line(monkeypatch):
    monkeypatch.setitem(SUPPORTED_VERSIONS, "transformers", ("1.0", "1.1"))
    line = doctor.facts()["transformers"]
    assert re.match(r"\d\S+ \(newer than 1\.1, the newest that is supported\) with safetensors", line)


@pytest.mark.parametrize(
    ("system", "words"),
    [
        (("Linux", "glibc", "x86_64"), ""),
        (("Linux", "glibc", "aarch64"), "Linux on aarch64: tests of the kernels"),
        (("Linux", "musl", "x86_64"), "Linux on x86_64: wheels for musl were not run"),
        (("Linux", "", "aarch64"), "Linux on aarch64: wheels for musl were not run"),
        (("Darwin", "", "arm64"), "Darwin on arm64: the kernels were parsed for it, and not run"),
        (("Linux", "glibc", "riscv64"), "Linux on riscv64: nothing was run there"),
        (("Windows", "", "AMD64"), "Windows on AMD64: nothing was run there"),
    ],
)
def test_a_system_where_the_tests_were_not_run_is_a_note_and_no_fault(call, monkeypatch, system, words):
    assert describe_partly_tried(*system).startswith(words)
    assert bool(describe_partly_tried(*system)) == bool(words)
    monkeypatch.setattr(doctor, "_system", lambda: system)
    check = doctor._system_supported()
    assert check.ok
    assert check.note == bool(words)
    assert words in doctor.facts()["system"]


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("torch", "2.6.0", ""),
        ("torch", "2.15.1+cu130", ""),
        ("torch", "2.16.0", "torch 2.16.0 is newer than 2.15, the newest that is supported"),
        ("transformers", "4.56.1", "transformers 4.56.1 is older than 4.56.2, the oldest that is supported"),
        ("transformers", "5.24.3", ""),
        ("Python", "3.14.0rc1", "Python 3.14.0rc1 is newer than 3.13, the newest that is supported"),
        ("NumPy", "2.10.0", "NumPy 2.10.0 is newer than 2.4, the newest that is supported"),
    ],
)
def test_a_version_outside_of_the_table_is_named(name, version, words):
    assert describe_unsupported(name, version) == words


def test_a_version_outside_of_the_table_is_a_note_and_no_fault(call, monkeypatch):
    monkeypatch.setitem(doctor.SUPPORTED_VERSIONS, "torch", ("3.0", "3.1"))
    code, out, _ = call("doctor")
    assert code == 0
    assert re.search(
        r"^note  versions +torch \S+ is older than 3\.0, the oldest that is supported$", out, re.M
    )


def test_the_table_on_the_page_has_the_versions_that_are_supported():
    text = (Path(__file__).parents[3] / "python/docs/pages/install.md").read_text("utf-8")
    for name, (oldest, newest) in SUPPORTED_VERSIONS.items():
        rows = [line for line in text.splitlines() if line.startswith(f"| {name} ")]
        versions = [line.split()[2] for line in rows]
        assert versions[0].startswith(oldest), name
        assert versions[-1].startswith(newest), name


def test_the_doctor_knows_an_answer_for_every_metric():
    from attnscope.cli.doctor import examine, first_lines

    assert set(first_lines()) <= {check.name for check in examine()}
