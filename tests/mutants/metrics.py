#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Do the tests of the metrics in Python bite? mutmut breaks one expression at a time and expects a red test.

    python tests/mutants/metrics.py [MODULE ...]

MODULE is a stem such as statistics or frames; all of MODULES without one. Works on a copy in build/mutmut.
What lives is listed with its change, unless argued.py says why no test can see it. Exit status 1 when more
lives, or when an argument is of no living mutant. Needs `pip install mutmut`.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from argued import ARGUED

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutmut"
# Arithmetic in Python, and the quick tests of each.
MODULES = {
    "statistics": "statistics.py",
    "alignment": "metrics/alignment.py",
    "barcodes": "metrics/barcodes.py",
    "emergence": "metrics/emergence.py",
    "frames": "metrics/frames.py",
    "harmonics": "metrics/harmonics.py",
}
# Wording of errors and names that are only passed on to them.
LEFT_ALONE = [
    r"\braise \w+Error",
    r'^\s*f"',
    r'^\s*"[^"]*"\s*$',
    r"choice_argument|_checks\.(real|whole|flag|as_tensor|float_tensor|attention_argument|finished)",
    r"_check\(|check_draws\(|_check_confidence\(|table_argument\(|_pairs\(|_vector\(|_family\(|number\(",
]
# An editable install finds the package by a finder of its own, which would hand out the unbroken files.
# pandas, which the package imports when it is needed, is imported once and not in every mutant.
SITE = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if not type(one).__module__.startswith("_editable")]
import pandas
"""


def settings(stems: list[str]) -> str:
    lists = {
        "source_paths": ["src"],
        "only_mutate": [f"src/attnscope/{MODULES[stem]}" for stem in stems],
        "also_copy": ["src/attnscope"],
        "do_not_mutate_patterns": LEFT_ALONE,
        "pytest_add_cli_args": ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"],
        "pytest_add_cli_args_test_selection": [f"tests/python/test_{stem}.py" for stem in stems],
    }
    lines = [f"{name} = [{', '.join(map(literal, values))}]" for name, values in lists.items()]
    return "\n".join(
        [
            "[tool.mutmut]",
            *lines,
            'process_isolation = "forkserver"',
            "track_dependencies = false",
            "use_git_change_detection = false",
            "[tool.pytest.ini_options]",
            'markers = ["slow: slow"]',
        ]
    )


def literal(text: str) -> str:
    return "'" + text + "'"


def mutmut(*arguments: str, read: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments],
        cwd=WORK,
        env={**os.environ, "PYTHONPATH": str(WORK)},
        stdout=subprocess.PIPE if read else None,
        text=True,
        check=False,
    )


def copy_package() -> None:
    """The package and its compiled core, which an editable install keeps elsewhere."""
    package = WORK / "src" / "attnscope"
    shutil.copytree(ROOT / "python" / "attnscope", package)
    installed = importlib.util.find_spec("attnscope")
    for folder in (installed.submodule_search_locations or []) if installed else []:
        for file in [*Path(folder).glob("_core*.so"), *Path(folder).glob("_build.py")]:
            shutil.copy2(file, package)


def main() -> int:
    stems = sys.argv[1:] or list(MODULES)
    shutil.rmtree(WORK, ignore_errors=True)
    (WORK / "src").mkdir(parents=True)
    copy_package()
    shutil.copytree(ROOT / "tests", WORK / "tests", ignore=shutil.ignore_patterns("corpus", "cpp"))
    (WORK / "pyproject.toml").write_text(settings(stems))
    (WORK / "sitecustomize.py").write_text(SITE)
    if status := mutmut("run", read=False).returncode:
        return status
    listed = mutmut("results", "--all", "true").stdout
    verdicts = [line.strip().rpartition(": ") for line in listed.splitlines() if line.strip()]
    counts = Counter(verdict for *_, verdict in verdicts)
    unseen = {(stem, line) for stem in stems for line in ARGUED.get(stem, {})}
    for name, _, verdict in verdicts:
        if verdict == "killed":
            continue
        stem = name.split(".x")[0].rpartition(".")[2]
        shown = mutmut("show", name).stdout.splitlines()
        changed = [line for line in shown if line[:1] in ("+", "-") and line[1:2] == " "]
        instead = " ".join(line[1:].strip() for line in changed if line.startswith("+"))
        if verdict == "survived" and instead in ARGUED.get(stem, {}):
            counts["argued"] += 1
            unseen.discard((stem, instead))
        else:
            print(f"{verdict} {name}", *changed, sep="\n    ")
    counts["survived"] -= counts["argued"]
    for stem, line in sorted(unseen):
        print(f"argued, but of no mutant of {stem} that lives: {line}")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()) if count))
    return 1 if unseen or set(+counts) - {"killed", "timeout", "argued"} else 0


if __name__ == "__main__":
    sys.exit(main())
