# SPDX-License-Identifier: MIT
"""Times ours against its peers on the same maps in one process, answers compared first.

A benchmark makes a `Benchmark`, adds one `compare` per input and ends with `finish`, which prints and writes
JSON. Contenders take turns, round robin, so that a noisy minute falls on all of them; ratios are what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import attnscope as asc
from attnscope import _isa
from machine.limits import limit_in_words, share_in_core
from machine.load import load_of_others, wait_for_quiet
from machine.rates import bytes_per_second, multiply_adds_per_second

FOLDER = Path(__file__).resolve().parent
PEERS = ("torch", "numpy", "scipy", "gudhi", "ripser", "giotto-ph", "networkx")


def machine_facts() -> dict[str, Any]:
    """What a reader must know to judge the numbers."""
    model = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).is_file():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    versions = {}
    for name in PEERS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "attnscope": asc.__version__,
        "isa": _isa.live(),
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


#: Facts of a machine that rows of one file share: numbers of others cannot stand beside them.
SHARED_FACTS = ("cpu", "cpus", "isa", "threads", "python", "versions")
#: Processors that others may keep busy at the start of a row.
MOST_LOAD = 0.5
#: Seconds that the rows of a script wait for a quiet machine in all, before they are not measured.
PATIENCE = 120.0
#: How the name of a contender begins that is another way of our own, not a peer.
OURS = "ours"
#: How much longer a row is measured once more in which a peer was faster.
MORE_TIME = 4.0
#: What a script ends with where a row is slower than a peer, and where one was not measured.
SLOWER_THAN_A_PEER = 3

# Inputs that others stand for when time is short: an easy trained model, easy regimes.
NOT_QUICK = {"llama2xs", "local", "diffuse", "peaky"}


class Benchmark:
    """One concept's comparisons; reads --quick, --threads, --seconds, --json, --only and --busy.

    `peers_compete`: a row that is slower than its best peer is an error of the run. False where what stands
    beside ours is no peer, but for instance a forward pass. Another way of our own, whose name begins with
    "ours", is never one.
    """

    def __init__(
        self,
        concept: str,
        description: str,
        *,
        wall: bool = False,
        clock: Callable[[], float] | None = None,
        peers_compete: bool = True,
    ) -> None:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--quick", action="store_true", help="fewer sizes, less time each")
        parser.add_argument("--threads", type=int, default=1)
        parser.add_argument("--seconds", type=float, help="time per comparison (default 0.05, quick 0.02)")
        parser.add_argument("--json", type=Path, default=FOLDER / "results" / f"{concept}.json")
        parser.add_argument("--only", default="", help="run the comparisons whose name holds this text")
        parser.add_argument(
            "--busy", action="store_true", help="measure whatever else the machine does at the start of a row"
        )
        self.options = parser.parse_args()
        self.concept = concept
        self.peers_compete = peers_compete
        wall = wall or self.options.threads != 1
        # On a shared machine the wall time of a long call holds other people's work, that of a short one
        # does not: one thread is timed by its own processor time, more than one by the wall clock.
        self.clock = clock or (time.perf_counter if wall else time.process_time)
        self.quick: bool = self.options.quick
        self.seconds: float = self.options.seconds or (0.02 if self.quick else 0.05)
        torch.set_num_threads(self.options.threads)
        if installed("threadpoolctl"):
            # NumPy and SciPy bring a BLAS each, with as many threads as the machine has; only those that
            # are loaded can be limited.
            import scipy.linalg  # noqa: F401
            from threadpoolctl import threadpool_limits

            threadpool_limits(self.options.threads, user_api="blas")
        if self.options.only and self.options.json.exists():
            stored = json.loads(self.options.json.read_text(encoding="utf-8"))
            if others := self._other_conditions(stored):
                parser.error(
                    f"--only: {self.options.json} was measured under other conditions ({others}); "
                    "give another file with --json"
                )
        self.rows: list[dict[str, Any]] = []
        self.missed: list[str] = []
        self.slower: list[str] = []
        self.refused: list[str] = []
        self.patience = PATIENCE
        print(f"{description}\n{json.dumps(machine_facts())}", flush=True)

    def _load_at_start(self, name: str) -> float | None:
        """Return the load of others once they are quiet, None for a row that they do not let begin."""
        if self.options.busy:
            return load_of_others()
        began = time.monotonic()
        load = wait_for_quiet(MOST_LOAD, self.patience)
        if load <= MOST_LOAD:
            return load
        self.patience -= time.monotonic() - began
        self.refused.append(f"{name}: others keep {load:.2f} processors busy, at most {MOST_LOAD} may be")
        print(f"not measured: {self.refused[-1]}", flush=True)
        return None

    def wants(self, name: str) -> bool:
        """Whether ``--only`` and ``--quick`` leave this comparison in; ask before making its inputs."""
        if self.quick and not self.options.only and name.split()[0] in NOT_QUICK:
            return False
        return self.options.only in name

    def compare(
        self,
        name: str,
        maps: int,
        ours: Callable[[], Any],
        peers: Mapping[str, Callable[[], Any]],
        *,
        agree: Callable[[str, Any, Any], None],
        peer_maps: Mapping[str, int] | None = None,
        target: float | None = None,
        limit: float | None = None,
        against: str | None = None,
        facts: Mapping[str, Any] | None = None,
        reads: int | None = None,
        multiply_adds: float | None = None,
        peers_compete: bool | None = None,
    ) -> None:
        """Runs ours and every peer in turn and records milliseconds per map and the ratio to the best peer.

        Args:
            name: of the comparison, e.g. "stories260K n=128".
            maps: how many maps one call of `ours` does.
            ours: called without arguments.
            peers: name -> call. A peer that is not installed is left out by the caller and named in `facts`.
            agree: raises when the answers differ: (peer, our answer, peer's answer). Runs before any timing.
            peer_maps: maps per call of slow peers that get fewer, the first of ours.
            target: wanted ratio, to the peer `against` or else to the best peer.
            limit: the ratio that the machine allows, as far as it is known.
            against: the peer that target and limit refer to.
            facts: stored with the row, e.g. bars per map.
            reads: bytes of the inputs of one call of `ours`, for the share of the rate of reading.
            multiply_adds: that one call of `ours` cannot do without, for the share of the machine's rate.
            peers_compete: of this row, where it is not that of the benchmark.

        Where a peer was faster, all are timed once more and longer, and the times of both rounds count.
        """
        if not self.wants(name):
            return
        load = self._load_at_start(name)
        if load is None:
            return
        answer = ours()
        for peer, call in peers.items():
            agree(peer, answer, call())
        calls = {"attnscope": ours, **peers}
        maps_of = {"attnscope": maps} | {peer: (peer_maps or {}).get(peer, maps) for peer in peers}
        competes = self.peers_compete if peers_compete is None else peers_compete
        judged = [peer for peer in peers if competes and not peer.startswith(OURS)]
        times = self._times(calls, maps_of, judged)
        best = {key: 1e3 * min(values) / maps_of[key] for key, values in times.items()}
        median = {key: 1e3 * statistics.median(values) / maps_of[key] for key, values in times.items()}
        ratios = {peer: best[peer] / best["attnscope"] for peer in peers}
        row: dict[str, Any] = {
            "name": name,
            "maps": maps,
            "load": round(load, 2),
            "best_ms": best,
            "median_ms": median,
            "runs": {key: len(values) for key, values in times.items()},
            "ratio": ratios,
            "ratio_of_medians": {peer: median[peer] / median["attnscope"] for peer in peers},
            "target": target,
            "limit": limit,
            "against": against,
            "judged": judged,
            **self._shares(1e-3 * best["attnscope"] * maps, reads, multiply_adds),
            **dict(facts or {}),
        }
        is_slower = any(ratios[peer] < 1.0 for peer in judged)
        if is_slower or self._misses(row):
            in_core = share_in_core(ours, self.clock)
            row["limited_by"] = limit_in_words(in_core, row["of_reading"], row["of_multiply_adds"])
        if is_slower:
            peer = min(judged, key=lambda key: ratios[key])
            self.slower.append(f"{name}: {ratios[peer]:.2f}x of {peer}, {row['limited_by']}")
        self.rows.append(row)
        print(self._line(row), flush=True)

    def _times(
        self, calls: Mapping[str, Callable[[], Any]], maps_of: Mapping[str, int], judged: Sequence[str]
    ) -> dict[str, list[float]]:
        """Return the times of all contenders, of more calls where a judged peer was faster in the first."""
        times = round_robin(calls, self.seconds, self.clock)
        ours = min(times["attnscope"]) / maps_of["attnscope"]
        if any(min(times[peer]) / maps_of[peer] < ours for peer in judged):
            # The best time of few calls may be one that was disturbed: more calls of every contender decide.
            again = round_robin(calls, MORE_TIME * self.seconds, self.clock)
            times = {key: values + again[key] for key, values in times.items()}
        return times

    def _shares(self, seconds: float, reads: int | None, multiply_adds: float | None) -> dict[str, Any]:
        """Return which shares of the machine's rates a call of so many seconds reaches."""
        threads = self.options.threads
        reading = None if reads is None else reads / seconds / bytes_per_second(reads, threads)
        rate = multiply_adds_per_second(threads)
        multiplying = None if multiply_adds is None else multiply_adds / seconds / rate
        return {"of_reading": reading, "of_multiply_adds": multiplying}

    @staticmethod
    def _judged_ratio(row: dict[str, Any]) -> float | None:
        """Return the ratio that a row's target refers to; None without a target or a peer."""
        if row["target"] is None or not row["ratio"]:
            return None
        against = row["against"]
        return float(row["ratio"][against] if against else min(row["ratio"].values()))

    def _misses(self, row: dict[str, Any]) -> bool:
        ratio = self._judged_ratio(row)
        return ratio is not None and ratio < row["target"]

    def _other_conditions(self, stored: dict[str, Any]) -> str:
        """Return what a stored file was measured under that this run is not, "" where nothing differs."""
        current = {**machine_facts(), "quick": self.quick}
        previous = {**stored["machine"], "quick": stored["quick"]}
        differing = [name for name in (*SHARED_FACTS, "quick") if current.get(name) != previous.get(name)]
        return "; ".join(f"{name} {previous.get(name)}, here {current.get(name)}" for name in differing)

    def _with_what_is_stored(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return rows and refusals, in a run of some rows among those of the stored file."""
        if not self.options.only or not self.options.json.exists():
            return self.rows, self.refused
        report = json.loads(self.options.json.read_text(encoding="utf-8"))
        measured = {row["name"]: row for row in self.rows}
        rows = [measured.pop(row["name"], row) for row in report["rows"]] + list(measured.values())
        others = [line for line in report["refused"] if self.options.only not in line.partition(":")[0]]
        return rows, others + self.refused

    def finish(self) -> None:
        """Write the JSON and list missed targets, rows slower than a peer and rows that were not measured.

        Of a run of some rows alone (--only) the others stay as they are stored.

        Ends the process with `SLOWER_THAN_A_PEER` where there is one of the last two.
        """
        self.options.json.parent.mkdir(parents=True, exist_ok=True)
        rows, refused = self._with_what_is_stored()
        report = {
            "concept": self.concept,
            "machine": machine_facts(),
            "quick": self.quick,
            "multiply_adds_per_second": multiply_adds_per_second(self.options.threads),
            "refused": refused,
            "rows": rows,
        }
        self.options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {self.options.json}")
        for heading, lines in (
            ("below target", self.missed),
            ("slower than a peer", self.slower),
            ("not measured", self.refused),
        ):
            for line in lines:
                print(f"{heading}: {line}")
        if self.slower or self.refused:
            sys.exit(SLOWER_THAN_A_PEER)

    def _line(self, row: dict[str, Any]) -> str:
        ours = row["best_ms"]["attnscope"]
        parts = [f"{row['name']:<28} {ours:9.4f} ms ({row['median_ms']['attnscope']:.4f})"]
        parts += [f"{peer} {row['best_ms'][peer]:.3f} ({ratio:.1f}x)" for peer, ratio in row["ratio"].items()]
        for key, words in (("of_reading", "read rate"), ("of_multiply_adds", "multiply-add rate")):
            if row[key] is not None:
                parts.append(f"{row[key]:.0%} of the {words}")
        ratio = self._judged_ratio(row)
        if ratio is not None:
            verdict = "below" if self._misses(row) else "reached"
            parts.append(f"target {row['target']:g}x {verdict}")
            if row["limit"] is not None:
                parts.append(f"limit ~{row['limit']:g}x")
            if self._misses(row):
                self.missed.append(f"{row['name']}: {ratio:.1f}x of {row['target']:g}x, {row['limited_by']}")
        parts.append(f"load {row['load']:g}")
        return " | ".join(parts)


def round_robin(
    contenders: Mapping[str, Callable[[], Any]],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    *,
    fewest: int = 3,
    most: int = 400,
) -> dict[str, list[float]]:
    """Times by `clock` of calls made in turn until `seconds` are spent and each has had `fewest` turns.

    A contender whose single call exceeds `seconds` gets one turn.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    started = time.perf_counter()
    while True:
        waiting = [name for name in contenders if not times[name] or times[name][0] <= seconds]
        if not waiting:
            break
        for name in waiting:
            begin = clock()
            contenders[name]()
            times[name].append(clock() - begin)
        turns = max(map(len, times.values()))
        if turns >= most or (turns >= fewest and time.perf_counter() - started > seconds):
            break
    return {name: plausible(values) for name, values in times.items()}


def plausible(times: list[float]) -> list[float]:
    """Return times without those below a fifth of the middle one, of which the clock has missed the most.

    >>> plausible([2.0, 0.0, 3.0])
    [2.0, 3.0]
    """
    return [value for value in times if value >= 0.2 * statistics.median(times)]


def installed(*packages: str) -> list[str]:
    """Those of `packages` that can be imported; the others are named on stderr."""
    import importlib.util

    present = [name for name in packages if importlib.util.find_spec(name) is not None]
    for name in sorted(set(packages) - set(present)):
        print(f"{name} is not installed: left out", file=sys.stderr)
    return present


def sizes(benchmark: Benchmark, full: Sequence[int], quick: Sequence[int]) -> Sequence[int]:
    """The sizes to run."""
    return quick if benchmark.quick else full
