# SPDX-License-Identifier: MIT
"""One checkpoint into memory: safetensors only, no foreign code unless asked, nothing left random.

A study over fifty checkpoints must not end at the fortieth: all ways in which loading fails become one
`LoadError` that names the checkpoint and what to do, and the run goes on with the next one.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnscope._evaluation import plain_defaults
from attnscope.errors import LoadError
from attnscope.models.checkpoints import Checkpoint, refuse_special_files
from attnscope.models.hub import hub_answers

#: Architectures that this package defines: model type -> module whose import makes it known.
OWN_ARCHITECTURES = {"attnscope_positions": "attnscope.demo.encodings"}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be captured, and what the tables and the provenance need to know of it."""

    model: Any
    checkpoint: Checkpoint
    commit: str
    dtype: str
    device: str
    parameters: int
    architecture: str


def load_model(
    checkpoint: Checkpoint, *, dtype: str = "auto", device: str = "auto", trust_remote_code: bool = False
) -> LoadedModel:
    """Load the weights of one checkpoint, in evaluation mode.

    Args:
        trust_remote_code: run code that comes with the model; off means such a model is refused.
    """
    import transformers

    with _place(checkpoint, trust_remote_code) as place:
        config = transformers.AutoConfig.from_pretrained(**place)
        named_class, auto = _classes(config, trust_remote_code)
        model, info = (named_class or auto).from_pretrained(
            **place, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True
        )
        # heads that a study never reads (BERT's pooler) may be absent; anything else would be random numbers
        missing = sorted(name for name in info["missing_keys"] if "pooler" not in name)
        broken = sorted(map(str, info.get("mismatched_keys") or ()))
        if missing or broken:
            kind, names = ("lack", missing) if missing else ("have another shape at", broken)
            raise LoadError(
                f"{checkpoint.title}: the weight files {kind} {len(names)} tensors of "
                f"{type(model).__name__}, for example {names[0]}"
            )
        return _placed(model, checkpoint, config, device)


def random_weights_model(
    checkpoint: Checkpoint,
    *,
    seed: int,
    dtype: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Return a model of the same configuration with the random weights that training would start from."""
    import transformers

    with _place(checkpoint, trust_remote_code, "random-weight control: ") as place, torch.random.fork_rng():
        config = transformers.AutoConfig.from_pretrained(**place)
        named_class, auto = _classes(config, trust_remote_code)
        kind = getattr(config, "dtype", None) if dtype == "auto" else getattr(torch, dtype)
        kind = kind if isinstance(kind, torch.dtype) else torch.float32
        torch.manual_seed(seed)
        if named_class is not None:
            model = named_class._from_config(config, dtype=kind)
        else:
            model = auto.from_config(config, dtype=kind, trust_remote_code=trust_remote_code)
        return _placed(model, checkpoint, config, device)


def _placed(model: Any, checkpoint: Checkpoint, config: Any, device: str) -> LoadedModel:
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    model = model.to(device).eval()
    return LoadedModel(
        model=model,
        checkpoint=checkpoint,
        commit=_commit_of(checkpoint, config),
        dtype=str(model.dtype).removeprefix("torch."),
        device=device,
        parameters=sum(weights.numel() for weights in model.parameters()),
        architecture=type(model).__name__,
    )


def load_config(checkpoint: Checkpoint, *, trust_remote_code: bool = False) -> Any:
    """Return the configuration of a checkpoint, without its weights."""
    import transformers

    with _place(checkpoint, trust_remote_code) as place:
        return transformers.AutoConfig.from_pretrained(**place)


def hub_commit(checkpoint: Checkpoint, *, trust_remote_code: bool = False) -> str:
    """Return the commit at which the hub, or its cache, has a checkpoint now, "" for a folder; no weights are
    read.
    """
    if checkpoint.local:
        return ""
    return _commit_of(checkpoint, load_config(checkpoint, trust_remote_code=trust_remote_code))


def load_tokenizer(checkpoint: Checkpoint, path: str = "", *, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a checkpoint.

    Args:
        checkpoint: whose tokenizer.
        path: folder or hub id of another tokenizer; empty takes the checkpoint's own.
        trust_remote_code: run Python code that comes with the tokenizer.

    Raises:
        LoadError: there is none, or its folder holds a pipe, socket or device.
    """
    import transformers

    with _place(checkpoint, trust_remote_code, "tokenizer: ") as place:
        if path:
            if Path(path).is_dir():
                refuse_special_files(Path(path), "a tokenizer")
            place = {"pretrained_model_name_or_path": path, "trust_remote_code": trust_remote_code}
        return transformers.AutoTokenizer.from_pretrained(**place)


def free_disk(loaded: LoadedModel) -> int:
    """Remove a hub checkpoint from the local cache."""
    if loaded.checkpoint.local or not loaded.commit:
        return 0
    from huggingface_hub import scan_cache_dir

    strategy = scan_cache_dir().delete_revisions(loaded.commit)
    strategy.execute()
    return int(strategy.expected_freed_size)


def _know_own(checkpoint: Checkpoint) -> None:
    """Register an architecture of this package with transformers when a folder holds one."""
    file = Path(checkpoint.path) / "config.json"
    if checkpoint.local and file.is_file():
        for model_type, module in OWN_ARCHITECTURES.items():
            if f'"{model_type}"' in file.read_text("utf-8", errors="replace"):
                importlib.import_module(module)


def _commit_of(checkpoint: Checkpoint, config: Any) -> str:
    """Return the commit that a hub checkpoint came from, "" for a folder."""
    if checkpoint.local:
        return ""
    if commit := getattr(config, "_commit_hash", None):
        return str(commit)
    # transformers 5 keeps it to itself; the cache's folder is named after it
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(checkpoint.path, "config.json", revision=checkpoint.revision or None)
    match = re.search(r"snapshots/([0-9a-f]{40})/", Path(file).as_posix()) if isinstance(file, str) else None
    return match[1] if match else ""


def _classes(config: Any, trust_remote_code: bool) -> tuple[Any, Any]:
    """Return the class of transformers that a configuration names, None for code of its own, and the
    automatic one.
    """
    import transformers

    named = (getattr(config, "architectures", None) or [""])[0]
    named_class = getattr(transformers, named, None) if named and not trust_remote_code else None
    if named.endswith(("ForCausalLM", "LMHeadModel")):
        return named_class, transformers.AutoModelForCausalLM
    return named_class, transformers.AutoModelForMaskedLM if named.endswith(
        "ForMaskedLM"
    ) else transformers.AutoModel


@contextlib.contextmanager
def _place(checkpoint: Checkpoint, trust_remote_code: bool, label: str = "") -> Iterator[dict[str, Any]]:
    """Yield the arguments that tell transformers where a checkpoint is, and silence its bars and warnings.

    The many ways in which loading fails become one line that names the checkpoint.
    """
    from transformers.utils import logging

    place: dict[str, Any] = {
        "pretrained_model_name_or_path": checkpoint.path,
        "trust_remote_code": trust_remote_code,
    }
    if checkpoint.local or not hub_answers():
        place["local_files_only"] = True
    if checkpoint.revision and not checkpoint.local:
        place["revision"] = checkpoint.revision
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        _know_own(checkpoint)
        with without_progress_bars(), plain_defaults():
            yield place
    except LoadError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if checkpoint.local and not any(Path(checkpoint.path).glob("*.safetensors")) and not label:
            reason = f"{checkpoint.path} holds no *.safetensors file, and no other format is loaded"
        if not checkpoint.local and not label and "couldn't connect" in reason.lower():
            reason = (
                "the model is not on this machine and the hub cannot be reached; fetch it where there is a "
                f"network (hf download {checkpoint.path}) or give a folder in its place"
            )
        if "trust_remote_code" in reason:
            reason = (
                "it comes with its own code, which is not run unless trust_remote_code is set for this model"
            )
        raise LoadError(f"{checkpoint.title}: {label}{reason[:400]}") from error
    finally:
        logging.set_verbosity(level)


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing a bar for every file, which would tear the bars of this package."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
