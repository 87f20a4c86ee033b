#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mutation testing of the core: one wrong line at a time, and GoogleTest must turn red.

    python tests/mutants/kernels.py [--each N] [--seed S] [--least SHARE] [STEM ...]

The wrong lines are made from `PATTERNS`, of the kind that a hand makes: another comparison, a sign, a bound
that is off by one, a negation that is lost. Of every file below `cpp` (all of them, or those of the stems)
N places are drawn with the seed. Kernels and tests are built once in `build/mutants`; of a mutant only the
broken file is compiled and linked with the other files' objects, so it costs seconds. A header is seen
through one source that includes it.

Every survivor is printed: some no test can see, because the line means the same (a bound past the last entry,
a threshold of rounding that is met exactly). Exit status 1 when the share of the killed is below --least.
"""

import argparse
import json
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "cpp"
LANE_TESTS = ROOT / "tests" / "cpp" / "lanes"
BUILD = ROOT / "build" / "mutants"

#: What stands in a line of code, and what is put in its place.
PATTERNS = [
    (r" < (?=[\w(])", " <= "),
    (r" <= ", " < "),
    (r" > (?=[\w(])", " >= "),
    (r" >= ", " > "),
    (r" == ", " != "),
    (r" != ", " == "),
    (r" && ", " || "),
    (r" \|\| ", " && "),
    (r" \+ 1\b(?!\.)", ""),
    (r" - 1\b(?!\.)", ""),
    (r" \+= ", " -= "),
    (r" -= ", " += "),
    (r" \+ (?=[a-z(])", " - "),
    (r" - (?=[a-z(])", " + "),
    (r"std::min\(", "std::max("),
    (r"std::max\(", "std::min("),
    (r"\b0\.0\b", "1.0"),
    (r"(?<=\()!(?=\w)", ""),
    (r"\breturn true;", "return false;"),
    (r"\breturn false;", "return true;"),
    (r"\bcontinue;", "break;"),
]
#: Lines whose fault is another file's, the compiler's, or only a matter of speed.
LEFT_ALONE = re.compile(
    r"^\s*(//|#|template|static_assert|assert\(|using |namespace|ATTNSCOPE_)|\bfor \(;;|constexpr"
)


class Mutant(NamedTuple):
    """Line `number` of a file, as it is and as it becomes."""

    number: int
    old: str
    new: str


def mutants_of(text: str) -> Iterator[Mutant]:
    """Every wrong line that the patterns make of a source."""
    for number, line in enumerate(text.split("\n")):
        code = line.partition("//")[0]
        if LEFT_ALONE.search(code):
            continue
        for pattern, replacement in PATTERNS:
            for match in re.finditer(pattern, code):
                yield Mutant(number, line, code[: match.start()] + replacement + code[match.end() :])


def quietly(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(argument) for argument in arguments], capture_output=True, text=True, **options
    )


def built() -> dict[Path, dict[str, str]]:
    """Builds kernels and tests; how each source is compiled."""
    steps = [["cmake", "--build", BUILD, "--target", "kernel_tests"]]
    if not (BUILD / "build.ninja").exists():
        steps.insert(0, ["cmake", "--preset", "mutants"])
    for step in steps:
        if (done := quietly(*step, cwd=ROOT)).returncode:
            sys.exit(f"{' '.join(map(str, step))}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    return {Path(entry["file"]): entry for entry in entries}


def seen_through(file: Path) -> Path:
    """A source that is compiled with the file in it: itself, or the nearest that includes the header."""
    if file.suffix == ".cpp":
        return file
    sources = [*sorted(LANE_TESTS.glob("*.cpp")), *sorted(SOURCES.rglob("*.cpp"))]
    headers, known_headers = [file], {file}
    while headers:
        line = f'#include "{headers.pop(0).relative_to(SOURCES)}"'
        for source in sources:
            if line in source.read_text() and not source.is_relative_to(SOURCES / "bindings"):
                return source
        above = {header for header in SOURCES.rglob("*.h") if line in header.read_text()} - known_headers
        headers += sorted(above)
        known_headers |= above
    raise LookupError(f"no source includes {file.relative_to(SOURCES)}")


def objects_of_tests() -> Iterator[Path]:
    """Objects of the kernels and their tests, without the allocation test, which replaces malloc."""
    tests = "tests/cpp/CMakeFiles"
    for folder in ("cpp", f"{tests}/attnscope_tests.dir", f"{tests}/kernels_test_*.dir"):
        yield from BUILD.glob(f"{folder}/**/*.cpp.o")


def verdict(file: Path, mutant: Mutant, entry: dict[str, str]) -> str:
    """Return killed, survived, or no code: it does not compile."""
    lines = file.read_text().split("\n")
    lines[mutant.number] = mutant.new
    with tempfile.TemporaryDirectory() as folder:
        # A copy of the broken file under its own name, which is found before the real one.
        copy = Path(folder) / file.relative_to(SOURCES)
        copy.parent.mkdir(parents=True)
        copy.write_text("\n".join(lines))
        flags = [word for word in shlex.split(entry["command"]) if word not in ("-O3", "-Werror")]
        if file == Path(entry["file"]):
            flags[flags.index(entry["file"])] = str(copy)
        flags.insert(2 if Path(flags[0]).name == "ccache" else 1, f"-I{folder}")
        at = flags.index("-o") + 1
        replaced, flags[at] = Path(entry["directory"]) / flags[at], f"{folder}/broken.o"
        if quietly(*flags, "-O1", "-w", cwd=entry["directory"]).returncode:
            return "no code"
        others = [path for path in sorted(objects_of_tests()) if path != replaced]
        program = f"{folder}/program"
        linked = quietly(
            "c++", f"{folder}/broken.o", *others, "-lgtest", "-lgtest_main", "-pthread", "-o", program
        )
        if linked.returncode:
            if file.suffix == ".h" and "undefined reference" in linked.stderr:
                return "no code"  # a signature that no other file knows
            sys.exit(linked.stderr[-2000:])
        try:
            ran = quietly(program, "--gtest_brief=1", "--gtest_fail_fast", timeout=300)
        except subprocess.TimeoutExpired:
            return "killed"
    return "killed" if ran.returncode else "survived"


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutation testing of the core.")
    parser.add_argument("stems", nargs="*", metavar="STEM")
    parser.add_argument("--each", type=int, default=8, help="places a file; 0: all of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=float, default=0.95, help="share of mutants that must be killed")
    arguments = parser.parse_args()
    folders = [
        path for path in sorted(SOURCES.iterdir()) if path.is_dir() and path.name not in ("bindings", "cmake")
    ]
    files = [
        file for folder in folders for file in sorted(folder.rglob("*")) if file.suffix in (".cpp", ".h")
    ]
    if unknown := set(arguments.stems) - {file.stem for file in files}:
        sys.exit(f"no file below cpp is called {sorted(unknown)[0]!r}")
    entries = built()
    counts: Counter[str] = Counter()
    began = time.monotonic()
    for file in files:
        if arguments.stems and file.stem not in arguments.stems:
            continue
        result = list(mutants_of(file.read_text()))
        name = file.relative_to(SOURCES)
        if arguments.each and len(result) > arguments.each:
            result = random.Random(f"{arguments.seed} {name}").sample(result, arguments.each)
        for mutant in sorted(result):
            answer = verdict(file, mutant, entries[seen_through(file)])
            counts[answer] += 1
            print(f"{answer:8} {name}:{mutant.number + 1}: {mutant.new.strip()}", flush=True)
    summary = ", ".join(f"{count} {answer}" for answer, count in sorted(counts.items()))
    share = counts["killed"] / max(counts["killed"] + counts["survived"], 1)
    print(f"{summary}; {share:.1%} killed, at least {arguments.least:.0%}; {time.monotonic() - began:.0f} s")
    return int(share < arguments.least)


if __name__ == "__main__":
    sys.exit(main())
