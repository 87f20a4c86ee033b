# SPDX-License-Identifier: MIT
"""The training of the demo's language model, with Pythia-style early checkpoints.

Nothing can be downloaded on many machines, so the demo makes its model: three layers suffice to see sinks
form within minutes. Steps are dense at first, where sinks emerge, and a finished training is found again by
the digest of its recipe and its texts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from attnscope._evaluation import evaluating
from attnscope._progress import progress_bar
from attnscope.arguments.scalars import at_least, flag
from attnscope.demo.texts import (
    VOCABULARY_SIZE,
    WINDOW,
    byte_tokenizer,
    documentation,
    inputs_by_group,
    training_batch,
)
from attnscope.errors import ConfigError, DocumentError
from attnscope.models.checkpoints import step_of
from attnscope.models.loading import without_progress_bars
from attnscope.results.files import atomic_file, atomic_folder, remove, write_bytes
from attnscope.results.folder_lock import FolderLock
from attnscope.untrusted.documents import read_json

_OPTIMIZER = "optimizer.pt"
_LOSSES_SEED = 10_000


@dataclass(frozen=True)
class Recipe:
    """All settings that determine the training; two trainings of one recipe on one machine are bit-equal."""

    steps: int = 256
    layers: int = 3
    heads: int = 4
    width: int = 128
    inner_width: int = 344
    batch: int = 32
    learning_rate: float = 2e-3
    seed: int = 0

    def build(self) -> Any:
        """Return the untrained model."""
        return build_model(self)


#: The beginning of the demo's training: half a minute, up to copying and the first sinks.
SHORT = Recipe(steps=128)


def checkpoint_steps(last: int) -> list[int]:
    """Return the steps that are kept: 0, 1, 2, 4, ..., 512, then every 128th, and the last.

    >>> checkpoint_steps(700)
    [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 640, 700]
    """
    early = [0, *(2**k for k in range(10))]
    return [step for step in early if step < last] + [*range(640, last, 128)] + [last]


def build_model(recipe: Recipe) -> Any:
    """Return an untrained `LlamaForCausalLM` (RoPE, RMSNorm, SwiGLU) of the recipe's size, from its seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**config_values(recipe))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return LlamaForCausalLM(config).train()


def config_values(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's values of a Llama configuration."""
    if recipe.width % (2 * recipe.heads):
        raise ValueError(
            f"build_model: width must be a multiple of twice the heads, got {recipe.width} and {recipe.heads}"
        )
    return {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": recipe.width,
        "intermediate_size": recipe.inner_width,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "num_key_value_heads": recipe.heads,
        "max_position_embeddings": WINDOW + 2,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def evaluate_loss(model: Any, samples: int = 16) -> dict[str, float]:
    """Return the mean next-token loss on held-out text and on the second, copyable half of copying
    sequences.
    """
    tokenizer = byte_tokenizer()
    losses = {}
    for group, lines in inputs_by_group(samples, _LOSSES_SEED).items():
        ids = torch.tensor(tokenizer(lines)["input_ids"], device="cpu")
        with evaluating(model), torch.no_grad():
            logits = model(input_ids=ids).logits[:, :-1]
        per_token = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        # The second half's first byte is a guess too: that the string starts again shows only after it.
        scored = per_token[:, WINDOW // 2 + 1 :] if group == "copying" else per_token
        losses[group] = float(scored.mean())
    return losses


def train(
    directory: str | os.PathLike[str],
    recipe: Recipe | None = None,
    *,
    progress: bool = True,
    label: str = "training",
) -> Path:
    """Train the recipe and write `checkpoints/step{N}`; continue where an earlier call was stopped.

    Each checkpoint is a Hugging Face folder (safetensors, `tokenizer.json`) written under a temporary name
    and renamed. `recipe.json` and `training.jsonl` are next to them, a line of losses per checkpoint.

    Args:
        recipe: what to train; the default shows a sink emerging in a minute or two.
        progress: a bar on a terminal or in a notebook, a line every ten seconds elsewhere.

    Raises:
        FolderLocked: another process trains there, or measures what was trained.
    """
    progress = flag("train", "progress", progress)
    recipe = recipe or Recipe()
    for name in ("steps", "layers", "heads", "width", "inner_width", "batch"):
        at_least("train", name, getattr(recipe, name), 1)
    root = Path(directory)
    _claim(root, recipe)
    with FolderLock(root):
        return _train(root, recipe, progress, label)


def _train(root: Path, recipe: Recipe, progress: bool, label: str) -> Path:
    """Write the checkpoints that are missing in a folder that this process holds."""
    checkpoints = root / "checkpoints"
    stored_steps = checkpoint_steps(recipe.steps)
    if all((checkpoints / f"step{step}").is_dir() for step in stored_steps):
        (root / _OPTIMIZER).unlink(missing_ok=True)
        return checkpoints

    checkpoints.mkdir(exist_ok=True)
    model, start, state = _last_saved(root, recipe)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate)
    if state is not None:
        optimizer.load_state_dict(state)
    else:
        _save(root, model, optimizer, 0)

    with one_thread(), progress_bar(recipe.steps, label, start, show=progress) as bar:
        for step in range(start, recipe.steps):
            ids = training_batch(recipe.batch, recipe.seed, step)
            logits = model(input_ids=ids).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            descend(model, optimizer, loss)
            bar.update()
            if step + 1 in stored_steps:
                losses = _save(root, model, optimizer, step + 1)
                bar.set_postfix_str(", ".join(f"loss {group} {value:.2f}" for group, value in losses.items()))
    (root / _OPTIMIZER).unlink()
    return checkpoints


def descend(model: Any, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Take one optimiser step, its gradient no longer than 1."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def save_model(folder: Path, model: Any, tokenizer: Any, **files: Any) -> None:
    """Write a Hugging Face folder, with JSON files of these names in it, whole or not at all."""
    with atomic_folder(folder) as temporary, without_progress_bars():
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        for name, content in files.items():
            text = json.dumps(content, indent=2) + "\n"
            (temporary / f"{name}.json").write_text(text, encoding="utf-8")


def _claim(root: Path, recipe: Recipe) -> None:
    """Write the recipe, or check that the stored one is the same."""
    text = "".join(documentation())
    recipe_values = asdict(recipe) | {"documentation": hashlib.sha256(text.encode()).hexdigest()[:16]}
    if not has_recipe(root, recipe_values, f"train: {root} holds the checkpoints"):
        root.mkdir(parents=True, exist_ok=True)
        write_bytes(root / "recipe.json", (json.dumps(recipe_values, indent=2) + "\n").encode())


def has_recipe(folder: Path, recipe_values: dict[str, Any], holds: str) -> bool:
    """Return True if a folder has the recipe, False where it has none; ConfigError where it `holds`
    another's.
    """
    path = folder / "recipe.json"
    if not path.exists():
        return False
    try:
        stored_values = read_json(path)
        if not isinstance(stored_values, dict):
            raise DocumentError(f"expected keys and values, got {type(stored_values).__name__}")
    except DocumentError as error:
        raise ConfigError(f"{path} is damaged: {error}; take another directory or delete that one") from error
    if different := sorted(
        key for key in {*stored_values, *recipe_values} if stored_values.get(key) != recipe_values.get(key)
    ):
        shown = ", ".join(
            f"{key}: {stored_values.get(key)} there, {recipe_values.get(key)} wanted" for key in different
        )
        raise ConfigError(f"{holds} of another recipe ({shown}); take another directory or delete that one")
    return True


def _last_saved(root: Path, recipe: Recipe) -> tuple[Any, int, dict[str, Any] | None]:
    """Return the model, the steps it has taken and its optimizer's state; untrained when nothing can be
    resumed.
    """
    path = root / _OPTIMIZER
    if path.exists():
        saved = torch.load(path, weights_only=True)
        folder = root / "checkpoints" / f"step{saved['step']}"
        if folder.is_dir():
            with without_progress_bars():
                model = type(recipe.build()).from_pretrained(folder, dtype=torch.float32)
            return model.train(), int(saved["step"]), saved["optimizer"]
    (root / "training.jsonl").unlink(missing_ok=True)
    return recipe.build(), 0, None


@contextmanager
def one_thread() -> Iterator[None]:
    """Return torch one thread: several would spend their time waiting for each other on so small a model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _save(root: Path, model: Any, optimizer: torch.optim.Optimizer, step: int) -> dict[str, float]:
    """Write checkpoint `step` whole or not at all, then the optimizer's state that continues from it."""
    losses = evaluate_loss(model)
    lines = root / "training.jsonl"
    earlier = lines.read_text(encoding="utf-8").splitlines() if lines.exists() else []
    earlier = [line for line in earlier if json.loads(line)["step"] < step]
    record = {"step": step} | {f"loss_{group}": value for group, value in losses.items()}
    write_bytes(lines, ("\n".join([*earlier, json.dumps(record)]) + "\n").encode())

    folder = root / "checkpoints" / f"step{step}"
    remove(folder)
    save_model(folder, model, byte_tokenizer())
    with atomic_file(root / _OPTIMIZER) as file:
        torch.save({"step": step, "optimizer": optimizer.state_dict()}, file)
    return losses


def demo_checkpoints(
    runs: str | os.PathLike[str] = "runs", *, recipe: Recipe = SHORT, progress: bool = True
) -> Path:
    """Return the folder of checkpoints of a demo model that is trained when there is none yet.

    Looked for is the finished `demo` run in the working directory and above it. Without one the recipe is
    trained once into `attnscope/` in the user's cache (`XDG_CACHE_HOME`, else `~/.cache`) and found there
    from then on; two processes that ask at the same time train it once.

    Args:
        runs: the folder that holds run folders; a relative one is sought in every parent directory too.
        progress: a bar on a terminal or in a notebook, a line every ten seconds elsewhere.

    Returns:
        A folder with `step{N}` in it, each a Hugging Face model folder.
    """
    progress = flag("demo_checkpoints", "progress", progress)
    for home in (Path.cwd(), *Path.cwd().parents):
        if _finished(home / runs / "demo"):
            return home / runs / "demo" / "checkpoints"
    # A changed recipe, and documentation of another Python, is another training.
    with cached_folder("demo", asdict(recipe), *documentation()) as folder:
        return train(folder, recipe, progress=progress)


def last_checkpoint(checkpoints: Path) -> Path:
    """Return the folder of the last step."""
    return max(checkpoints.glob("step*"), key=lambda folder: step_of(folder.name))


@contextmanager
def cached_folder(name: str, *identity: Any) -> Iterator[Path]:
    """Return a folder of the user's cache for what has this identity; one process at a time is inside the
    block.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnscope"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{name}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]}"
    with FileLock(f"{folder}.lock"):
        yield folder


def _finished(run: Path) -> bool:
    """Return True if a demo run has all the checkpoints of its recipe."""
    recipe = run / "recipe.json"
    if not recipe.is_file():
        return False
    steps = int(json.loads(recipe.read_text(encoding="utf-8"))["steps"])
    return all((run / "checkpoints" / f"step{step}").is_dir() for step in checkpoint_steps(steps))
