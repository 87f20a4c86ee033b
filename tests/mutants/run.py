#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Do the kernel tests bite? Breaks one line of one kernel at a time and expects GoogleTest to turn red.

    python tests/mutants/run.py BUILD [STEM ...]

BUILD is a CMake folder with the tests built. Only the broken file is compiled, and linked in front of the
kernels' library, so a mutant costs seconds. Exit status 1 when one lives that mutants.py does not argue for,
or when a line that it wants to break is not there any more.
"""

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "cpp" / "kernels"


def first_library(build: Path) -> Path:
    """The kernels of the lowest instruction set, which every processor runs."""
    return min(build.glob("cpp/kernels/libattnscope_kernels_*.a"))


def commands(build: Path) -> dict[str, dict[str, str]]:
    """How the build compiles each file into that library, by path."""
    folder = first_library(build).stem.removeprefix("lib") + ".dir"
    entries = json.loads((build / "compile_commands.json").read_text())
    return {entry["file"]: entry for entry in entries if folder in entry["command"]}


def judge(mutant: Mutant, build: Path, known: dict[str, dict[str, str]]) -> str:
    """killed, lives, or stale: the line is gone or stands there more than once."""
    source = KERNELS / mutant.file
    text = source.read_text()
    if text.count(mutant.old) != 1:
        return "stale"
    # A base header's mutant is seen through the kernel that includes it; only sources are broken here.
    entry = known[str(source)]
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / source.name
        broken.write_text(text.replace(mutant.old, mutant.new))
        arguments = [word for word in shlex.split(entry["command"]) if word not in ("-O3", "-Werror")]
        arguments[arguments.index(str(source))] = str(broken)
        arguments[arguments.index("-o") + 1] = f"{folder}/broken.o"
        subprocess.run([*arguments, "-O1", "-w"], cwd=entry["directory"], check=True, capture_output=True)
        tests = [str(path) for path in sorted(build.glob("tests/cpp/**/*_test.cpp.o"))]
        library = str(first_library(build))
        program = f"{folder}/program"
        linked = [
            "c++",
            f"{folder}/broken.o",
            *tests,
            library,
            "-lgtest",
            "-lgtest_main",
            "-pthread",
            "-o",
            program,
        ]
        subprocess.run(linked, check=True, capture_output=True)
        try:
            ran = subprocess.run(
                [program, "--gtest_brief=1", "--gtest_fail_fast"],
                capture_output=True,
                timeout=300,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "killed"
    return "killed" if ran.returncode != 0 else "lives"


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    wanted = sys.argv[2:]
    known = commands(build)
    bad = 0
    counts: dict[str, int] = {}
    for mutant in MUTANTS:
        if wanted and Path(mutant.file).stem not in wanted:
            continue
        verdict = judge(mutant, build, known)
        if verdict == "lives" and mutant.equivalent:
            verdict = "argued"
        counts[verdict] = counts.get(verdict, 0) + 1
        bad += verdict in ("lives", "stale")
        print(f"{verdict:7} {mutant.file}: {mutant.old.strip()!r} -> {mutant.new.strip()!r}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
