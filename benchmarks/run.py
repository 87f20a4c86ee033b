# SPDX-License-Identifier: MIT
"""Runs every benchmark, each in a process of its own, and ends with what fell short.

Kernels run with the best instruction set of the processor and, where that is AVX-512, with AVX2 once more, to
which their peers are held then too. Metrics of every type and stride run with two threads of every contender
as well, where there are two processors. A row that is slower than its best peer, and one that was not
measured because others kept the machine busy, is an error: the exit code is 1.

python benchmarks/run.py [NAME …] [OPTION …]

Options go to every benchmark: --quick, --seconds S, --only TEXT, --threads N, --json FILE, --busy. Those that
time a study from start to end (attention_likelihood, study, sweep) take --quick and --json alone.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from harness import SLOWER_THAN_A_PEER

FOLDER = Path(__file__).resolve().parent
# What a script's lines may begin with that are kept for the end.
HEADINGS = ("below target", "slower than a peer", "not measured", "failed")
AVX512, AVX2 = "x86_64_v4", "x86_64_v3"
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
#: Settings by which peers take no wider vectors than AVX2 either: torch, MKL, oneDNN, OpenBLAS.
PEERS_WITH_AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}
OF_THREADS = {"threads"}  # these ask for more than one
#: What runs with two threads of ours and of the peers too, and the folder of those rows.
OF_TWO_THREADS, TWO_THREADS = "types_and_strides", "two_threads"
# Models and whole analyses, which a quick run is too short for.
LONG = {"attention_likelihood", "commits", "sensitivity", "study", "sweep", "whole"}
# These time a study from start to end, once, and take no other options than these.
STUDIES = {"attention_likelihood", "study", "sweep"}
OPTIONS_OF_STUDIES = ("--quick", "--json")
#: Those of several kernels, or of two of our own ways: they run with the best instruction set alone.
WHOLES = tuple(
    sorted(
        {*LONG, "analysis_ways", "calls", "measure", "second_moments", "start", "threads", "weight_deltas"}
    )
)


def names() -> list[str]:
    """Every benchmark: a kernel each, then those of several."""
    folders = ("clouds", "kernels", "lazy", "peers")
    stems = {path.stem for folder in folders for path in (FOLDER / folder).glob("*.py")}
    kernels = {stem for stem in stems if not stem.startswith("plot_")} - set(WHOLES)
    return [*sorted(kernels), *WHOLES]


def instruction_sets(name: str) -> list[str]:
    """Return the instruction sets with which a benchmark runs, the best of the processor first."""
    from attnscope import _isa

    best, *others = _isa.runnable()
    is_kernel = name not in WHOLES
    return [best, *(isa for isa in others if is_kernel and isa == AVX2 and best == AVX512)]


def options_for(name: str, options: argparse.Namespace) -> list[str]:
    """Return the options of a run that go to one benchmark."""
    values = {f"--{option}": value for option, value in vars(options).items() if option != "names"}
    if name in STUDIES:
        values = {option: values[option] for option in OPTIONS_OF_STUDIES}
    words = ([option] if value is True else [option, str(value)] for option, value in values.items() if value)
    return [word for pair in words for word in pair]


class Summary:
    """The last lines of the scripts of a run, each with the script's name."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {heading: [] for heading in HEADINGS}
        self.seconds: dict[str, float] = {}

    def run(self, name: str, isa: str, passed: list[str], folder: str = "") -> None:
        """Run a script, print what it prints and keep what fell short. Rows go to a folder of results."""
        label = f"{name} ({isa}{', two threads' if folder == TWO_THREADS else ''})"
        print(f"\n=== {label}", flush=True)
        # BLAS threads of NumPy and SciPy spin while they wait, on the clock of whoever runs next.
        quiet = {} if name in OF_THREADS else dict.fromkeys(THREAD_VARIABLES, "1")
        others = ["--json", str(FOLDER / "results" / folder / f"{name}.json")] if folder else []
        narrow = PEERS_WITH_AVX2 if isa == AVX2 else {}
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, str(next(FOLDER.rglob(f"{name}.py"))), *others, *passed],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(FOLDER), "ATTNSCOPE_ISA": isa, **quiet, **narrow},
        )
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            heading, _, rest = line.partition(": ")
            # a row that is refused is named when it is its turn, too
            if heading in HEADINGS and f"{label}: {rest.strip()}" not in self.lines[heading]:
                self.lines[heading].append(f"{label}: {rest.strip()}")
        if process.wait() not in (0, SLOWER_THAN_A_PEER):
            self.lines["failed"].append(label)
        self.seconds[label] = time.monotonic() - began
        print(f"--- {label}: {self.seconds[label]:.0f} s", flush=True)

    def print(self) -> None:
        """Print the time of each script and what fell short."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"\n{sum(self.seconds.values()):.0f} s ({used.ru_utime + used.ru_stime:.0f} s of processor time)"
        )
        for label, seconds in sorted(self.seconds.items(), key=lambda item: -item[1]):
            print(f"  {seconds:6.0f} s {label}")
        for heading, lines in self.lines.items():
            print(f"{heading}: {len(lines)}")
            for line in lines:
                print(f"  {line}")

    @property
    def is_error(self) -> bool:
        return any(self.lines[heading] for heading in HEADINGS if heading != "below target")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; all when none is given"
    )
    parser.add_argument("--quick", action="store_true", help="the kernels alone, fewer sizes")
    parser.add_argument("--seconds", type=float, metavar="S", help="of every contender in a row")
    parser.add_argument("--only", metavar="TEXT", help="rows whose name holds this")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of every contender")
    parser.add_argument("--json", metavar="FILE", help="where the rows go")
    parser.add_argument("--busy", action="store_true", help="whatever else the machine does")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(names()))
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]!r}; there are {', '.join(names())}")
    summary = Summary()
    for name in options.names or [name for name in names() if not (options.quick and name in LONG)]:
        sets = instruction_sets(name)
        passed = options_for(name, options)
        for isa in sets[:1] if options.json else sets:
            summary.run(name, isa, passed, isa if isa == AVX2 else "")
        if name == OF_TWO_THREADS and not options.json and not options.threads and (os.cpu_count() or 1) > 1:
            summary.run(name, sets[0], [*passed, "--threads", "2"], TWO_THREADS)
    summary.print()
    return 1 if summary.is_error else 0


if __name__ == "__main__":
    sys.exit(main())
