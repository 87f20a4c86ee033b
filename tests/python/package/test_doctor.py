# SPDX-License-Identifier: MIT
"""`attnscope doctor`: its verdict, a kernel that is wrong, a chosen instruction set, every metric."""

import json
import re
from pathlib import Path

import pytest

from attnscope.cli import doctor
from attnscope.cli.supported_versions import TRIED_VERSIONS, describe_untried
from attnscope.metrics.measure import check_closed_form


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
        *("attnscope", "core", "instruction set", "system", "processor"),
        *("python", "torch", "transformers", "threads", "devices"),
    ]
    assert re.search(r"^python +3\.\d+\.\d+ with numpy \d\S+, scipy \d", lines[5])
    assert re.search(r"^system +\w+ \S+, \S", lines[3])
    assert re.search(r"^attnscope +\d\S+ \(Release by (GNU|Clang|AppleClang) \d", lines[0])


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("torch", "2.6.0", ""),
        ("torch", "2.15.1+cu130", ""),
        ("torch", "2.16.0", "torch 2.16.0 is newer than 2.15, the newest that was tried"),
        ("transformers", "4.56.1", "transformers 4.56.1 is older than 4.56.2, the oldest that was tried"),
        ("transformers", "5.24.3", ""),
        ("Python", "3.14.0rc1", "Python 3.14.0rc1 is newer than 3.13, the newest that was tried"),
        ("NumPy", "2.10.0", "NumPy 2.10.0 is newer than 2.4, the newest that was tried"),
    ],
)
def test_a_version_that_was_not_tried_is_named(name, version, words):
    assert describe_untried(name, version) == words


def test_a_version_that_was_not_tried_is_a_note_and_no_fault(call, monkeypatch):
    monkeypatch.setitem(doctor.TRIED_VERSIONS, "torch", ("3.0", "3.1"))
    code, out, _ = call("doctor")
    assert code == 0
    assert re.search(r"^note  versions +torch \S+ is older than 3\.0, the oldest that was tried$", out, re.M)


def test_the_table_on_the_page_has_the_versions_that_were_tried():
    text = (Path(__file__).parents[3] / "python/docs/pages/install.md").read_text("utf-8")
    for name, (oldest, newest) in TRIED_VERSIONS.items():
        rows = [line for line in text.splitlines() if line.startswith(f"| {name} ")]
        versions = [line.split()[2] for line in rows]
        assert versions[0].startswith(oldest), name
        assert versions[-1].startswith(newest), name


def test_the_doctor_knows_an_answer_for_every_metric():
    from attnscope.cli.doctor import examine, first_lines

    assert set(first_lines()) <= {check.name for check in examine()}
