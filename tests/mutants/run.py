#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Do the kernel tests bite? Breaks one line of one kernel at a time and expects GoogleTest to turn red.

    python tests/mutants/run.py [STEM ...]

Builds the kernels and their tests in build/mutants; of a mutant only the broken file is compiled, and linked
with the other files' objects, so it costs seconds. Exit status 1 when one lives that mutants.py does not
argue for, or when a line that it wants to break does not stand in its file once.
"""

import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutants import MUTANTS, THROUGH, Mutant

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "cpp"
BUILD = ROOT / "build" / "mutants"


def quietly(*arguments: object, **options: object) -> None:
    """Runs a command that must succeed, and shows what it said when it does not."""
    done = subprocess.run([str(one) for one in arguments], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, arguments))}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def build() -> dict[str, dict[str, str]]:
    """Builds kernels and tests; how each source is compiled, by its path below cpp or tests/cpp."""
    if not (BUILD / "build.ninja").exists():
        quietly("cmake", "--preset", "mutants", cwd=ROOT)
    quietly("cmake", "--build", BUILD, "--target", "kernel_tests")
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    return {
        str(Path(entry["file"]).relative_to(folder)): entry
        for folder in (SOURCES, ROOT / "tests" / "cpp")
        for entry in entries
        if Path(entry["file"]).is_relative_to(folder)
    }


def link(folder: str, broken: Path, replaced: Path) -> Path:
    program = Path(folder) / "program"
    objects = [*BUILD.glob("cpp/**/*.cpp.o"), *BUILD.glob("tests/cpp/**/*_test.cpp.o")]
    others = [path for path in sorted(objects) if path != replaced]
    quietly("c++", broken, *others, "-lgtest", "-lgtest_main", "-pthread", "-o", program)
    return program


def judge(file: str, mutant: Mutant, known: dict[str, dict[str, str]]) -> str:
    """killed, lives, argued, or stale: the line does not stand there once."""
    source = SOURCES / file
    text = source.read_text()
    if text.count(mutant.old) != 1:
        return "stale"
    entry = known[THROUGH.get(file, file)]
    with tempfile.TemporaryDirectory() as folder:
        # A copy of the broken file under its own name, which is found before the real one.
        copy = Path(folder) / file
        copy.parent.mkdir(parents=True)
        copy.write_text(text.replace(mutant.old, mutant.new))
        given = [word for word in shlex.split(entry["command"]) if word not in ("-O3", "-Werror")]
        if file not in THROUGH:
            given[given.index(entry["file"])] = str(copy)
        compiler = 1 if Path(given[0]).name == "ccache" else 0
        given.insert(compiler + 1, f"-I{folder}")
        at = given.index("-o") + 1
        replaced, given[at] = Path(entry["directory"]) / given[at], f"{folder}/broken.o"
        quietly(*given, "-O1", "-w", cwd=entry["directory"])
        program = link(folder, Path(folder) / "broken.o", replaced)
        try:
            ran = subprocess.run(
                [program, "--gtest_brief=1", "--gtest_fail_fast"], capture_output=True, timeout=300
            )
        except subprocess.TimeoutExpired:
            return "killed"
    if ran.returncode != 0:
        return "killed"
    return "argued" if mutant.argued else "lives"


def main() -> int:
    wanted = sys.argv[1:]
    if unknown := set(wanted) - {Path(file).stem for file in MUTANTS}:
        sys.exit(f"no file with mutants is called {sorted(unknown)[0]!r}; there are {', '.join(MUTANTS)}")
    known = build()
    counts: dict[str, int] = {}
    began = time.monotonic()
    for file, mutants in MUTANTS.items():
        if wanted and Path(file).stem not in wanted:
            continue
        for mutant in mutants:
            verdict = judge(file, mutant, known)
            counts[verdict] = counts.get(verdict, 0) + 1
            print(f"{verdict:7} {file}: {mutant.old.strip()!r} -> {mutant.new.strip()!r}", flush=True)
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    print(f"{told}; {time.monotonic() - began:.0f} s")
    return 1 if {"lives", "stale"} & counts.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
