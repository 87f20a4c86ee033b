# SPDX-License-Identifier: MIT
"""A demo model for whoever needs one at once: the finished demo's, or a short training kept in the cache."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

from attnscope.demo.texts import documentation
from attnscope.demo.tokenizer import byte_tokenizer
from attnscope.demo.training import Recipe, checkpoint_steps, train
from attnscope.engine.store import atomic_folder
from attnscope.models.loading import without_progress_bars

SHORT = Recipe(steps=128)
"""The beginning of the demo's training: half a minute, up to copying and the first sinks."""


def demo_checkpoints(
    runs: str | os.PathLike[str] = "runs", *, recipe: Recipe = SHORT, progress: bool = True
) -> Path:
    """The folder of checkpoints of a demo model that is trained when there is none yet.

    Looked for is the finished `demo` run in the working directory and above it. Without one the recipe is
    trained once into `attnscope/` in the user's cache (`XDG_CACHE_HOME`, else `~/.cache`) and found there
    from then on; two processes that ask at the same time train it once.

    Args:
        runs: the folder that holds run folders; a relative one is sought in every parent directory too.
        progress: a bar on a terminal or in a notebook, a line every ten seconds elsewhere.

    Returns:
        A folder with `step{N}` in it, each a Hugging Face model folder.
    """
    for home in (Path.cwd(), *Path.cwd().parents):
        found = home / runs / "demo"
        if _finished(found):
            return found / "checkpoints"

    # A changed recipe, and documentation of another Python, is another training.
    identity = json.dumps([asdict(recipe), *documentation()]).encode()
    folder = _cache() / f"demo-{hashlib.sha256(identity).hexdigest()[:12]}"
    with FileLock(f"{folder}.lock"):
        return train(folder, recipe, progress=progress)


def demo_arm(name: str, *, steps: int = 16, seed: int = 0, runs: str | os.PathLike[str] = "runs") -> Path:
    """The demo's model tuned by one objective from its last checkpoint, trained once, kept in the cache."""
    from attnscope.demo.objectives import Arm

    start = last_checkpoint(demo_checkpoints(runs))
    identity = json.dumps([name, steps, seed, str(start.resolve())]).encode()
    folder = _cache() / f"{name}-{hashlib.sha256(identity).hexdigest()[:12]}"
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            model = Arm(name, start, seed).train(steps)
            with atomic_folder(folder) as temporary, without_progress_bars():
                model.save_pretrained(temporary)
                byte_tokenizer().save_pretrained(temporary)
    return folder


def last_checkpoint(checkpoints: Path) -> Path:
    """The folder of the last step."""
    return max(checkpoints.glob("step*"), key=lambda folder: int(folder.name.removeprefix("step")))


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnscope"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _finished(run: Path) -> bool:
    """Whether a demo run has all the checkpoints of its recipe."""
    recipe = run / "recipe.json"
    if not recipe.is_file():
        return False
    steps = int(json.loads(recipe.read_text(encoding="utf-8"))["steps"])
    return all((run / "checkpoints" / f"step{step}").is_dir() for step in checkpoint_steps(steps))
