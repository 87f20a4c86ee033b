# SPDX-License-Identifier: MIT
"""The whole sink study, both protocols with bars and all extras, of this commit and of another, in one run.

OTHER_TREE=FOLDER names a checkout of the other commit with its core beside its package. Each commit has a
process of its own, which has run the study once before it is timed; one random-weight control, as commits
take that have no setting for it. Processor time of one thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
DATA = FOLDER.parents[1] / "shared" / "data"
SAMPLES = 8
#: What the other commit takes of this one's time at least: 1 / 0.7.
TARGET = 1 / 0.7


def serve(tree: str) -> None:
    """Runs the study whenever a line comes in, and answers with its time and one of its numbers."""
    if Path(tree) != FOLDER.parent:
        # an editable installation finds this checkout's package before any path
        editable = "ScikitBuildRedirectingFinder"
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != editable]
        sys.path.insert(0, f"{tree}/python")
    import torch

    import attnscope as asc

    assert Path(asc.__file__).is_relative_to(tree), asc.__file__
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    texts = {"path": str(DATA / "text" / "wiki_dataset_sink.csv"), "column": "text", "samples": SAMPLES}
    options: dict[str, Any] = {"extra": "all", "controls": 1}

    def timed(folder: str) -> float:
        study = asc.Study(
            study="attention_sinks",
            models=str(DATA / "stories260K" / "hf"),
            texts=texts,
            name="run",
            max_tokens=128,
            block=SAMPLES,
            protocols="both",
            bars=True,
            output=folder,
            options=options,
        )
        began = time.process_time()
        asc.run(study, progress=False, say=lambda text: None)
        return time.process_time() - began

    for _ in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            try:
                seconds = timed(folder)
            except ValueError:
                if not options.pop("controls", None):
                    raise
                seconds = timed(folder)
            heads = asc.load(f"{folder}/run").table("heads")
            exact = heads[(heads["protocol"] == "exact") & (heads["head"] >= 0)]
            print(json.dumps([seconds, exact["participation_ratio"].mean()]), flush=True)


class Commit:
    """The process of one commit."""

    spent = 0.0

    def __init__(self, tree: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, __file__, tree], stdin=pipe, stdout=pipe, text=True)

    def __call__(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        seconds, number = json.loads(self._process.stdout.readline())
        Commit.spent += seconds
        return float(number)


def agree(peer: str, ours: float, theirs: float) -> None:
    assert abs(ours - theirs) < 1e-9 * abs(theirs), (peer, ours, theirs)


def main() -> None:
    from harness import Benchmark

    benchmark = Benchmark("commits", __doc__ or "", peers_compete=False, clock=lambda: Commit.spent)
    other = os.environ.get("OTHER_TREE")
    if not other or not DATA.is_dir():
        print(f"OTHER_TREE={other}, inputs in {DATA}: nothing to measure")
        return
    ours, theirs = Commit(str(FOLDER.parent)), Commit(other)
    benchmark.compare(
        "the sink study, both protocols, bars, all extras",
        SAMPLES,
        ours,
        {"other commit": theirs},
        agree=agree,
        target=TARGET,
    )
    benchmark.finish()


if __name__ == "__main__":
    if len(sys.argv) == 2 and Path(sys.argv[1]).is_dir():
        serve(sys.argv[1])
    else:
        main()
