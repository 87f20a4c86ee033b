# SPDX-License-Identifier: MIT
"""The engine: unit after unit of a study, stored one by one, resumable at any moment."""

from __future__ import annotations

import gc
import json
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attnscope._memory import give_back_large_blocks, older_objects_aside
from attnscope._warn import CountedWarning, NonFiniteWarning, NotAttentionWarning
from attnscope.engine.config import Settings
from attnscope.engine.discovery import study_class
from attnscope.engine.disk.files import DiskFull, disk_error, remove_leftovers, write_bytes
from attnscope.engine.disk.lock import FolderLock
from attnscope.engine.disk.store import Store
from attnscope.engine.plan import Plan, make_plan, megabytes
from attnscope.engine.provenance import provenance
from attnscope.engine.results import Results, load, resume_command
from attnscope.engine.run_folder import default_name, refuse_changed, refuse_existing, resolved
from attnscope.engine.stage_run import StageRun
from attnscope.engine.stop import Interrupted, StopSignals
from attnscope.engine.texts.samples import own_columns, samples_table
from attnscope.engine.units import Unit
from attnscope.models import Checkpoint, Encoder, LoadedModel, LoadError, load_model
from attnscope.models.loading import free_disk, random_twin

Say = Callable[[str], None]


def run(
    config: str | Path | Settings, *, progress: bool = True, say: Say | None = None, **overrides: Any
) -> Results:
    """Does a study and stores its results in `OUTPUT/NAME`.

    Args:
        config: a YAML file, the name of a packaged study, or a `Study`.
        progress: bars on a terminal or in a notebook.
        say: called with what a person should know; None prints to standard error.
        overrides: keys that replace those of the config.

    Returns:
        the stored results; `provenance["skipped"]` names checkpoints that could not be used.

    Raises:
        ConfigError: the study cannot be understood or done.
        LoadError: no model could be loaded.
        FileExistsError: the run folder exists; the message says whether and how to resume.
        Interrupted: after Ctrl-C or SIGTERM, when the unit at work was stored.
        DiskFull: no room; everything done before is intact.

    Example:
        >>> import attnscope as asc
        >>> asc.run(asc.Study(models="./no/such/folder", texts="texts.txt"))
        Traceback (most recent call last):
        attnscope.engine.config.ConfigError: models[0]: there is no model folder ./no/such/folder
    """
    if isinstance(config, Settings):
        study = Settings(**{**config.to_dict(), **overrides}) if overrides else config
    else:
        study = Settings.from_yaml(config, **overrides)
    study = resolved(study)
    return Engine(study, progress=progress, say=say).run()


def resume(folder: str | Path, *, progress: bool = True, say: Say | None = None) -> Results:
    """Goes on with a run that was stopped, killed or cut off, from its first missing unit.

    Args:
        folder: the run folder.
        progress: bars on a terminal or in a notebook.
        say: called with what a person should know.

    Returns:
        the stored results.

    Raises:
        FileNotFoundError: the folder holds no run.
        ConfigError: the texts, the weights or attnscope itself changed since the run began.

    Example:
        >>> import attnscope as asc
        >>> asc.resume("no/such/folder")
        Traceback (most recent call last):
        FileNotFoundError: resume: no/such/folder holds no study.yaml; a run folder is needed
    """
    path = Path(folder)
    if not (path / "study.yaml").is_file():
        raise FileNotFoundError(f"resume: {path} holds no study.yaml; a run folder is needed")
    study = Settings.from_yaml(
        path / "study.yaml", output=str(path.resolve().parent), name=path.resolve().name
    )
    return Engine(study, progress=progress, say=say).run(resume=True)


@dataclass
class Tally:
    """Counts over a run that provenance and report tell."""

    units: int = 0
    forward_seconds: float = 0.0
    metric_seconds: float = 0.0
    unit_seconds: float = 0.0
    non_finite: Counter[str] = field(default_factory=Counter)
    undefined: Counter[str] = field(default_factory=Counter)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)


class Engine:
    """One run of one study.

    Args:
        settings: paths resolved.
        progress: bars where someone can see them.
        say: called with what a person should know.
    """

    plan: Plan

    def __init__(self, settings: Settings, *, progress: bool = True, say: Say | None = None) -> None:
        self.settings = settings
        self.study = study_class(settings.study)(settings)
        self.folder = Path(settings.output) / (settings.name or default_name(settings))
        self.store = Store(self.folder)
        self.progress = progress
        self.say: Say = say or _say
        self.tally = Tally()
        self.notes: list[str] = []
        self._held: tuple[Any, LoadedModel] | None = None
        self._extras: dict[str, Any] = {}

    @property
    def layer_budget(self) -> int | None:
        """Bytes of attention one layer may take: two layers and the metrics' copies are alive at a time."""
        return None if self.settings.max_memory is None else int(self.settings.max_memory) // 4

    def prepare(self) -> Plan:
        """Makes the plan."""
        give_back_large_blocks()
        self.plan = make_plan(self.settings, self.study)
        self._extras = own_columns(self.plan.sentences)
        return self.plan

    def run(self, resume: bool = False) -> Results:
        """Plans, does what is missing, and writes the tables."""
        made = not self.folder.exists()
        if not resume:
            refuse_existing(self.folder, self.settings)
        plan = self.prepare()
        for note in plan.notes:
            self.say(note)
        for title, reason in plan.skipped:
            self.say(f"skipped {title}: {reason}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FolderLock(self.folder) as lock, older_objects_aside():
                return self._locked(plan, lock, resume)
        except OSError as error:
            full = disk_error(error, self.folder)
            if isinstance(full, DiskFull):
                raise DiskFull(
                    full.errno, f"{full.strerror}; what is done is intact: {resume_command(self.folder)}"
                ) from error
            raise
        except LoadError:
            if made and self.tally.units == 0:
                shutil.rmtree(self.folder)
            raise

    def _locked(self, plan: Plan, lock: FolderLock, resume: bool) -> Results:
        facts = provenance(self.settings, plan.digest)
        if resume:
            refuse_changed(self.folder, facts)
        write_bytes(self.folder / "study.yaml", self.settings.to_yaml().encode())
        self._write_provenance(facts, plan, "running")
        self.store.open({unit.id: unit.folder for unit in plan.units}, self.say)
        started = time.monotonic()
        with StopSignals(self.say) as signals:
            for _ in self._done_one_by_one(plan):
                lock.beat()
                if signals.received is not None:
                    self._write_provenance(facts, plan, "interrupted")
                    raise Interrupted(signals.received, str(self.folder))
        if not any(unit.id in self.store for unit in plan.units):
            raise LoadError("; ".join(f"{title}: {reason}" for title, reason in plan.skipped))
        self._write_tables(plan)
        facts["seconds"] = round(time.monotonic() - started, 3)
        self._write_provenance(facts, plan, "finished")
        for note in self.notes:
            self.say(note)
        for metric, count in self.tally.non_finite.items():
            self.say(f"{metric}: {count} matrices held NaN or infinite entries; their results are NaN")
        for metric, count in self.tally.undefined.items():
            self.say(
                f"{metric}: {count} matrices have too few tokens or no row that varies; they have no value"
            )
        return load(self.folder)

    def _done_one_by_one(self, plan: Plan) -> Iterator[Unit]:
        """Every missing unit, when it is stored, in the order of the plan."""
        last = {one: unit for unit in plan.units for one in (unit.checkpoint, unit.other) if one}
        done = sum(unit.id in self.store for unit in plan.units)
        with self.bar(len(plan.units), "units", done) as bar:
            for unit in plan.units:
                if self._wanted(plan, unit):
                    bar.set_postfix_str(unit.title)
                    try:
                        self.store.write(unit.id, self.work(unit), {"read": self._read_by(plan, unit)})
                    except LoadError as error:
                        assert unit.checkpoint is not None
                        title = unit.checkpoint.title
                        plan.skipped.append((title, str(error).removeprefix(f"{title}: ")))
                        self.say(f"skipped {title}: {plan.skipped[-1][1]}")
                        continue
                    self.tally.units += 1
                    bar.update(1)
                    yield unit
                if unit.checkpoint is not None and unit is last[unit.checkpoint]:
                    self._release(remove=self.settings.models[unit.source].free_disk)

    def _wanted(self, plan: Plan, unit: Unit) -> bool:
        """Whether a unit is still to be done: not where its checkpoint, or all that it reads, was skipped."""
        skipped = {title for title, _ in plan.skipped}
        if any(one is not None and one.title in skipped for one in (unit.checkpoint, unit.other)):
            return False
        if plan.stages[unit.stage].reads and not any(one.id in self.store for one in plan.reads(unit)):
            return False
        if unit.id not in self.store:
            return True
        if self.store.about(unit.id).get("read") == self._read_by(plan, unit):
            return False
        self.store.drop(unit.id)
        return True

    def _read_by(self, plan: Plan, unit: Unit) -> str:
        """Changes with the stored units that a unit reads: a checkpoint may have been skipped before."""
        read = [one for one in plan.reads(unit) if one.id in self.store]
        return plan.digest_of(read).hex() if read else ""

    def work(self, unit: Unit) -> dict[str, Any]:
        """The tables of one unit."""
        stage, run = self.plan.stages[unit.stage], StageRun(self, unit)
        if unit.checkpoint is None:
            self._release()
        began = time.perf_counter()
        with self._counting():
            stage.function(unit, run)
        tables = run.finish()
        if "samples" in stage.writes and not unit.variant:
            samples = samples_table(unit, run.encoder, self._extras, run.causal, self.study.name)
            tables = {"samples": samples, **tables}
        self.tally.unit_seconds += time.perf_counter() - began
        return tables

    def loaded(self, checkpoint: Checkpoint, unit: Unit, *, control: bool) -> LoadedModel:
        """A checkpoint in memory; the one before is let go.

        Args:
            checkpoint: which weights.
            unit: at work.
            control: whether the unit's variant, if it has one, stands in for the checkpoint.
        """
        random = control and unit.variant == "random_weights"
        key = (checkpoint, unit.seed if random else None)
        if self._held is None or self._held[0] != key:
            self._release()
            source = self.settings.models[unit.source]
            options: dict[str, Any] = {"device": source.device, "trust_remote_code": source.trust_remote_code}
            options["dtype"] = source.dtype
            if random:
                seeds = np.random.SeedSequence([self.settings.seed, unit.seed])
                seed = int(seeds.generate_state(1)[0]) if unit.seed else self.settings.seed
                model = random_twin(checkpoint, seed=seed, **options)
            else:
                model = load_model(checkpoint, **options)
                self._note_model(model, self.plan.encoders.get(unit.source))
            self._held = key, model
        return self._held[1]

    def _release(self, *, remove: bool = False) -> None:
        """Lets the model in memory go, and with `remove` its files in the hub's cache."""
        if self._held is None:
            return
        loaded = self._held[1]
        if remove:
            self.say(f"{loaded.checkpoint.title}: {megabytes(free_disk(loaded))} of disk freed")
        self._held = None
        del loaded
        gc.collect()

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Gathers the metrics' warnings on maps without a value: a count per run, not a line per layer."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for warning in caught:
            message = warning.message
            if isinstance(message, NotAttentionWarning):
                continue  # captured rows are a softmax; with a learned sink they sum to less
            if isinstance(message, CountedWarning):
                tally = (
                    self.tally.non_finite if isinstance(message, NonFiniteWarning) else self.tally.undefined
                )
                tally[message.function] += message.count
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)

    def _note_model(self, loaded: LoadedModel, encoder: Encoder | None) -> None:
        self.tally.models[loaded.checkpoint.title] = {
            "path": loaded.checkpoint.path,
            "revision": loaded.checkpoint.revision,
            "commit": loaded.commit,
            "architecture": loaded.architecture,
            "tokenizer": encoder.tokenizer_name if encoder else None,
            "parameters": loaded.parameters,
            "dtype": loaded.dtype,
            "device": loaded.device,
            "attention": str(getattr(loaded.model.config, "_attn_implementation", "")),
        }

    def _write_tables(self, plan: Plan) -> None:
        target = self.folder / "tables"
        target.mkdir(exist_ok=True)
        for folder in (self.folder, target):
            remove_leftovers(folder)
        done = [unit.id for unit in plan.units if unit.id in self.store]
        for name in sorted({name for unit in done for name in self.store.rows(unit)}):
            if not name.startswith("reduced-"):
                self.store.gather(done, name, target / f"{name}.parquet")

    def _write_provenance(self, facts: dict[str, Any], plan: Plan, state: str) -> None:
        tally = self.tally
        whole = {
            **facts,
            "state": state,
            "models": tally.models or self._stored_models(),
            "sentences": plan.counts,
            "notes": [*plan.notes, *self.notes],
            "skipped": [{"checkpoint": title, "reason": reason} for title, reason in plan.skipped],
            "units": {"planned": len(plan.units), "done_by_this_process": tally.units},
            "forward_seconds": round(tally.forward_seconds, 3),
            "metric_seconds": round(tally.metric_seconds, 3),
            "unit_seconds": round(tally.unit_seconds, 3),
            "non_finite": dict(tally.non_finite),
            "undefined": dict(tally.undefined),
        }
        write_bytes(
            self.folder / "provenance.json",
            json.dumps(whole, indent=2, ensure_ascii=False, default=str).encode() + b"\n",
        )

    def _stored_models(self) -> dict[str, Any]:
        stored = self.folder / "provenance.json"
        if not stored.is_file():
            return {}
        models = json.loads(stored.read_text("utf-8")).get("models", {})
        return models if isinstance(models, dict) else {}

    def bar(self, total: int, unit: str, initial: int = 0, leave: bool = True) -> Any:
        """A progress bar, silent where nobody can see it."""
        from tqdm.auto import tqdm

        off = None if self.progress else True
        return tqdm(total=total, initial=initial, unit=f" {unit}", disable=off, leave=leave)


def _say(text: str) -> None:
    from tqdm.auto import tqdm

    tqdm.write(f"attnscope: {text}", file=sys.stderr)
