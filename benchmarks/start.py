# SPDX-License-Identifier: MIT
"""What it takes to begin, each in a process of its own: the import, and the command's help."""

from __future__ import annotations

import os
import subprocess
import sys

from harness import Benchmark


def children() -> float:
    """Processor time of the processes that this one has waited for."""
    used = os.times()
    return used.children_user + used.children_system


def run(*arguments: str) -> int:
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True).returncode


def agree(peer: str, ours: int, theirs: int) -> None:
    assert ours == theirs == 0, peer


def main() -> None:
    benchmark = Benchmark("start", __doc__ or "", peers_compete=False, clock=children)
    peers = {"import torch": lambda: run("-c", "import torch")}
    benchmark.compare(
        "import torch, attnscope",
        1,
        lambda: run("-c", "import torch, attnscope"),
        peers,
        agree=agree,
        target=0.95,
    )
    benchmark.compare(
        "attnscope --help", 1, lambda: run("-m", "attnscope", "--help"), peers, agree=agree, target=4
    )
    benchmark.finish()


if __name__ == "__main__":
    main()
