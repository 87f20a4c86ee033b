# SPDX-License-Identifier: MIT
"""Runs every benchmark, each in a process of its own, and ends with the targets that were missed.

python benchmarks/run.py [NAME …] [OPTION …]

Options go to every benchmark: --quick, --seconds S, --only TEXT, --threads N, --json FILE.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
OF_THREADS = {"threads"}  # these ask for more than one
# Models and whole analyses, which a quick run is too short for.
LONG = {"attention_likelihood", "commits", "sensitivity", "study", "sweep", "whole"}
WHOLES = (*sorted({*LONG, "calls", "measure", "second_moments", "start", "threads", "weight_deltas"}),)


def names() -> list[str]:
    """Every benchmark: a kernel each, then those of several."""
    folders = ("clouds", "kernels", "lazy", "peers")
    return [*sorted(path.stem for folder in folders for path in (FOLDER / folder).glob("*.py")), *WHOLES]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; all when none is given"
    )
    options, passed = parser.parse_known_args()
    unknown = sorted(set(options.names) - set(names()))
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]!r}; there are {', '.join(names())}")
    quick = "--quick" in passed
    # BLAS threads of NumPy and SciPy spin while they wait, on the clock of whoever runs next.
    quiet = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    failed, missed, started = [], [], time.monotonic()
    for name in options.names or [name for name in names() if not (quick and name in LONG)]:
        print(f"\n=== {name}", flush=True)
        start_time = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, str(next(FOLDER.rglob(f"{name}.py"))), *passed],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(FOLDER), **({} if name in OF_THREADS else quiet)},
        )
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("below target: "):
                missed.append(f"{name}: {line.removeprefix('below target: ').strip()}")
        if process.wait() != 0:
            failed.append(name)
        print(f"--- {name}: {time.monotonic() - start_time:.0f} s", flush=True)
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
