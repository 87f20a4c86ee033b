# SPDX-License-Identifier: MIT
"""A demo model for whoever needs one at once: the finished demo's, or a short training kept in the cache."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

from attnscope.demo.texts import documentation
from attnscope.demo.training import Recipe, checkpoint_steps, train

SHORT = Recipe(steps=128)
"""The beginning of the demo's training: half a minute, up to copying and the first sinks."""


def demo_checkpoints(
    runs: str | os.PathLike[str] = "runs", *, recipe: Recipe = SHORT, progress: bool | None = None
) -> Path:
    """The folder of checkpoints of a demo model that is trained when there is none yet.

    Looked for is the finished `demo` run in the working directory and above it. Without one the recipe is
    trained once into `attnscope/` in the user's cache (`XDG_CACHE_HOME`, else `~/.cache`) and found there
    from then on; two processes that ask at the same time train it once.

    Args:
        runs: the folder that holds run folders; a relative one is sought in every parent directory too.
        recipe: what to train when no demo run is there.
        progress: a progress bar always, never, or (None) when standard error is a terminal.

    Returns:
        A folder with `step{N}` in it, each a Hugging Face model folder.
    """
    for home in (Path.cwd(), *Path.cwd().parents):
        found = home / runs / "demo"
        if _finished(found):
            return found / "checkpoints"

    from filelock import FileLock

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnscope"
    cache.mkdir(parents=True, exist_ok=True)
    # A changed recipe, and documentation of another Python, is another training.
    identity = json.dumps([asdict(recipe), *documentation()]).encode()
    folder = cache / f"demo-{hashlib.sha256(identity).hexdigest()[:12]}"
    with FileLock(f"{folder}.lock"):
        return train(folder, recipe, progress=progress)


def _finished(run: Path) -> bool:
    """Whether a demo run has all the checkpoints of its recipe."""
    recipe = run / "recipe.json"
    if not recipe.is_file():
        return False
    steps = int(json.loads(recipe.read_text(encoding="utf-8"))["steps"])
    return all((run / "checkpoints" / f"step{step}").is_dir() for step in checkpoint_steps(steps))
