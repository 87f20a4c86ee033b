# SPDX-License-Identifier: MIT
"""A callback of transformers' Trainer that measures attention every so many steps."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import transformers
from torch import nn
from transformers import TrainerCallback

import attnscope
from attnscope.capture.preservation import preserved
from attnscope.results.equal_texts import of_distinct_texts
from attnscope.results.files import remove
from attnscope.results.results import Results, load
from attnscope.untrusted.names import file_name_fault

if TYPE_CHECKING:
    import pandas as pd

#: What one logged number is of, and the key columns that tell its rows apart.
_LOGGED: dict[str, list[str]] = {"model": [], "layer": ["layer"], "head": ["layer", "head"]}


class AttentionCallback(TrainerCallback):  # type: ignore[misc]
    """Measures a model's attention on fixed texts before the first step, every so many steps and at the end.

    Means go through `trainer.log`, and so to whatever the trainer reports to (Weights & Biases, TensorBoard,
    MLflow), as `attention/sink_share`. All rows of every measurement are stored as a run folder of Parquet
    tables, a series of checkpoints that `attnscope.load`, `emergence_step` and `report` read. The model, its
    modes and the random states are afterwards as they were, so that training goes on as without a callback.

    Args:
        texts: what `analyze` takes: texts, token ids, or a mapping of the model's inputs.
        metrics: names of metrics or of columns, as `analyze` takes them.
        every: steps between two measurements.
        tokenizer: of texts; None takes the trainer's `processing_class`.
        folder: of the series, which must not be there when training begins at step 0; None is `attention` in
            the trainer's output folder, or `attention-2` and so on. Training that resumes goes on with it. Of
            several processes the first measures and writes.
        log: what one logged number is the mean of: the "model", a "layer" or a "head".
        options: of the metrics.

    Raises:
        ValueError: `every` below 1, an unknown metric, or another `log`.
        FileExistsError: when training begins, for a folder with something in it.
        NotImplementedError: when training begins, for a model whose weights are spread over processes.

    Example:
        >>> from attnscope.training import AttentionCallback
        >>> callback = AttentionCallback(["the cat sat on the mat"], ["sink_share"], every=50)
        >>> trainer.add_callback(callback)                                       # doctest: +SKIP
        >>> trainer.train()                                                      # doctest: +SKIP
        >>> heads = attnscope.load(callback.folder)["heads"]                     # doctest: +SKIP
        >>> attnscope.emergence_step(heads, "sink_share", by=["layer", "head"])  # doctest: +SKIP
    """

    def __init__(
        self,
        texts: Any,
        metrics: Any,
        every: int = 100,
        *,
        tokenizer: Any = None,
        folder: str | Path | None = None,
        log: Literal["model", "layer", "head"] = "model",
        **options: Any,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"AttentionCallback: every must be a whole number of steps, got {every!r}")
        if log not in _LOGGED:
            raise ValueError(f"AttentionCallback: log must be one of {', '.join(_LOGGED)}, got {log!r}")
        self.texts, self.metrics, self.every = texts, metrics, every
        self.tokenizer, self.log, self.options = tokenizer, log, options
        self._requested_folder = None if folder is None else Path(folder)
        if folder is not None and (fault := file_name_fault(Path(folder).name)):
            raise ValueError(f"AttentionCallback: the name of the folder {fault}")
        self.folder: Path | None = None
        self._tables: dict[str, list[pd.DataFrame]] = {}
        self._measured = -1

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the model that training begins with."""
        if how := spreads_weights_by(args, calling_trainer(), kwargs["model"]):
            raise NotImplementedError(
                f"AttentionCallback: under {how} the weights are spread over processes, and no process can "
                "run the model for itself; measure saved checkpoints instead (attnscope run)"
            )
        self._tables, self._measured = {}, -1
        if not state.is_world_process_zero:
            # the folder is the first process's alone, which may have begun to write there
            self.folder = self._requested_folder
            return
        resumes = state.global_step > 0
        self.folder = series_folder(self._requested_folder, Path(args.output_dir), resumes=resumes)
        if resumes and (self.folder / "tables").is_dir():
            before = load(self.folder)
            self._tables = {
                name: [table[table["step"] < state.global_step]] for name, table in before.items()
            }
        self._measure(state, kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure every so many steps."""
        if state.global_step % self.every == 0:
            self._measure(state, kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the trained model, where its last step was not measured."""
        self._measure(state, kwargs)

    def _measure(self, state: Any, event: Mapping[str, Any]) -> None:
        if not state.is_world_process_zero or state.global_step == self._measured:
            return
        tokenizer = self.tokenizer if self.tokenizer is not None else event.get("processing_class")
        results = measure_in_training(event["model"], self.texts, self.metrics, tokenizer, **self.options)
        self._measured = int(state.global_step)
        for name, table in results.items():
            table["revision"], table["step"] = f"step{self._measured}", self._measured
            self._tables.setdefault(name, []).append(table)
        self._store(results)
        trainer = calling_trainer()
        due = trainer.control.should_log  # a log takes back the one of the loss that this step is due
        trainer.log(means(results, _LOGGED[self.log]))
        trainer.control.should_log = due

    def _store(self, results: Results) -> None:
        """Write the series so far as one folder, which replaces that of before once it is whole."""
        import pandas as pd

        tables = {}
        for name, parts in self._tables.items():
            tables[name] = pd.concat([part for part in parts if len(part)], ignore_index=True)
            tables[name].attrs = {"keys": results.key_columns(name) if name in results else []}
        assert self.folder is not None
        replace_series(self.folder, Results(tables, provenance=results.provenance))


def series_folder(folder: Path | None, output: Path, *, resumes: bool) -> Path:
    """Return the folder of a series: one that is free, or when training resumes the newest of this trainer.

    Raises:
        FileExistsError: a folder that was asked for has something in it, and training begins at step 0.
    """
    if folder is not None:
        if not resumes and folder.exists() and any(folder.iterdir()):
            raise FileExistsError(
                f"AttentionCallback: {folder} exists and is not empty; choose another folder"
            )
        return recovered(folder)
    number = 1
    while recovered(output / _series_name(number)).exists():
        number += 1
    return output / _series_name(max(1, number - 1) if resumes else number)


def _series_name(number: int) -> str:
    return "attention" if number == 1 else f"attention-{number}"


def replace_series(folder: Path, series: Results) -> None:
    """Write a series, and put it where its shorter version is; at every moment one of them is whole."""
    new, old = _beside(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove(new)
    series.save(new)
    if folder.exists():
        remove(old)
        folder.rename(old)
    new.rename(folder)
    remove(old)


def recovered(folder: Path) -> Path:
    """Return the folder of a series; one whose exchange was cut off between two names gets its name again."""
    new, old = _beside(folder)
    if old.is_dir() and not folder.exists():
        # the old one loses its name once the new one is whole
        (new if new.is_dir() else old).rename(folder)
    return folder


def _beside(folder: Path) -> tuple[Path, Path]:
    """Return where the longer version of a series is written, and where the shorter one waits."""
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


def measure_in_training(
    model: nn.Module, texts: Any, metrics: Any, tokenizer: Any, **options: Any
) -> Results:
    """Return what `analyze` measures of a model that is being trained, and leave it as it was.

    Modules that are in training mode are set to evaluation for as long as it takes. Random states, hooks and
    buffers are put back.
    """
    modes = {module: module.training for module in model.modules()}
    with preserved(model):
        model.eval()
        try:
            return attnscope.analyze(
                model, texts, metrics, tokenizer=tokenizer, **{"progress": False, **options}
            )
        finally:
            for module, mode in modes.items():
                module.training = mode


def spreads_weights_by(args: Any, trainer: transformers.Trainer, model: nn.Module) -> str:
    """Return by what a trainer spreads a model's weights over processes, "" where each process has them all.

    The arguments do not say it where a file of `accelerate launch` does.
    """
    if args.deepspeed or trainer.is_deepspeed_enabled:
        return "DeepSpeed"
    if args.fsdp or trainer.is_fsdp_enabled or (getattr(model, "fsdp_size", None) or 1) > 1:
        return "FSDP"
    return "tensor parallelism" if (getattr(model, "tp_size", None) or 1) > 1 else ""


def means(results: Results, by: list[str]) -> dict[str, float]:
    """Return the mean of every column of heads, as `attention/COLUMN` or `attention/COLUMN/layer3/head1`.

    Equal texts are one, as in the report of the series.
    """
    if "heads" not in results:
        return {}
    heads = of_distinct_texts(results)["heads"]
    columns = [name for name in heads.columns if name not in (*results.key_columns("heads"), "n_tokens")]
    numbers = heads[columns].select_dtypes("number")
    if not by:
        return {f"attention/{name}": float(value) for name, value in numbers.mean().dropna().items()}
    logged: dict[str, float] = {}
    for key, row in numbers.groupby([heads[name] for name in by]).mean().iterrows():
        numbers_of_key = key if isinstance(key, tuple) else (key,)
        place = "/".join(f"{name}{number}" for name, number in zip(by, numbers_of_key, strict=True))
        logged |= {f"attention/{name}/{place}": float(value) for name, value in row.dropna().items()}
    return logged


def calling_trainer() -> transformers.Trainer:
    """Return the trainer whose call this is; transformers hands callbacks everything but the trainer."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, transformers.Trainer):
            return owner
        frame = frame.f_back
    raise RuntimeError("AttentionCallback: no transformers.Trainer calls it; add it by trainer.add_callback")
