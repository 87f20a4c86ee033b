# SPDX-License-Identifier: MIT
"""Runs every benchmark, each in a process of its own, and ends with the targets that were missed.

python benchmarks/run.py [--quick] [--seconds S] [NAME …]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What the benchmarks share, and what only draws.
OF_THREADS = {"threads"}  # these ask for more than one
WHOLES = {"study", "whole"}  # models and whole analyses, which a quick run is too short for
NOT_BENCHMARKS = {"harness", "maps", "run", "plot"}


def names() -> list[str]:
    """Every benchmark, in alphabetical order."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_BENCHMARKS)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; all when none is given"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer sizes, less time each; without whole studies unless named"
    )
    parser.add_argument("--seconds", type=float, help="per comparison")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(names()))
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]!r}; there are {', '.join(names())}")
    passed = (["--quick"] if options.quick else []) + (
        [] if options.seconds is None else [f"--seconds={options.seconds}"]
    )
    # BLAS threads of NumPy and SciPy spin while they wait, on the clock of whoever runs next.
    quiet = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    failed, missed, started = [], [], time.monotonic()
    for name in options.names or [name for name in names() if not (options.quick and name in WHOLES)]:
        print(f"\n=== {name}", flush=True)
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, str(HERE / f"{name}.py"), *passed],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **({} if name in OF_THREADS else quiet)},
        )
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("below target: "):
                missed.append(f"{name}: {line.removeprefix('below target: ').strip()}")
        if process.wait() != 0:
            failed.append(name)
        print(f"--- {name}: {time.monotonic() - begun:.0f} s", flush=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = f"{time.monotonic() - started:.0f} s ({used.ru_utime + used.ru_stime:.0f} s of processor time)"
    print(f"\n{spent}; targets missed: {len(missed)}")
    for line in missed:
        print(f"  {line}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
