# SPDX-License-Identifier: MIT
"""The engine: unit after unit through capture and metrics into shards, resumable at any moment."""

from __future__ import annotations

import gc
import json
import re
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.engine.config import ConfigError, ModelSource, Study, differences
from attnscope.engine.forward import batch_of, padded, self_attention
from attnscope.engine.lock import FolderLock
from attnscope.engine.memory import give_back_large_blocks
from attnscope.engine.plan import Plan, Unit, batches, make_plan, megabytes
from attnscope.engine.provenance import provenance
from attnscope.engine.recipe import Batch, Recipe, Rows
from attnscope.engine.results import Results, load, resume_command
from attnscope.engine.samples import own_columns, samples_table
from attnscope.engine.schema import stamped
from attnscope.engine.stop import Interrupted, StopSignals
from attnscope.engine.store import (
    DiskFull,
    Shards,
    atomic_file,
    disk_error,
    remove_leftovers,
    write_bytes,
)
from attnscope.models import Checkpoint, Encoder, LoadedModel, LoadError, load_model
from attnscope.models.loading import free_disk, random_twin
from attnscope.studies import recipe_of

if TYPE_CHECKING:
    pass

Say = Callable[[str], None]


def run(
    config: str | Path | Study, *, progress: bool = True, say: Say | None = None, **overrides: Any
) -> Results:
    """Does a study and stores its results in `OUTPUT/NAME`.

    Args:
        config: a YAML file, the name of a packaged study, or a `Study`.
        progress: bars on a terminal or in a notebook.
        say: told what a person should know; None prints to standard error.
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
        >>> asc.run("sink_study", models="./no/such/folder")
        Traceback (most recent call last):
        attnscope.engine.config.ConfigError: models[0]: there is no model folder ./no/such/folder
    """
    if isinstance(config, Study):
        study = Study(**{**config.to_dict(), **overrides}) if overrides else config
    else:
        study = Study.from_yaml(config, **overrides)
    study = resolved(study)
    return Engine(study, progress=progress, say=say).run()


def resume(folder: str | Path, *, progress: bool = True, say: Say | None = None) -> Results:
    """Goes on with a run that was stopped, killed or cut off, from its first missing unit.

    Args:
        folder: the run folder.
        progress: bars on a terminal or in a notebook.
        say: told what a person should know.

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
    study = Study.from_yaml(path / "study.yaml", output=str(path.resolve().parent), name=path.resolve().name)
    return Engine(study, progress=progress, say=say).run(resume=True)


@dataclass
class Tally:
    """Counts over a run that provenance and report tell."""

    units: int = 0
    forward_seconds: float = 0.0
    metric_seconds: float = 0.0
    after_seconds: float = 0.0
    spoiled: Counter[str] = field(default_factory=Counter)
    undefined: Counter[str] = field(default_factory=Counter)
    commits: dict[str, str] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)


class Engine:
    """One run of one study.

    Args:
        study: the configuration, paths resolved.
        progress: bars where someone can see them.
        say: told what a person should know.
    """

    def __init__(self, study: Study, *, progress: bool = True, say: Say | None = None) -> None:
        self.study = study
        self.recipe: Recipe = recipe_of(study)
        self.folder = Path(study.output) / (study.name or _default_name(study))
        self.progress = progress
        self.say: Say = say or _say
        self.tally = Tally()
        self._uniform: dict[tuple[int, bool], list[dict[str, Any]]] = {}

    def run(self, resume: bool = False) -> Results:
        """Plans, does what is missing, and writes the tables."""
        made = not self.folder.exists()
        give_back_large_blocks()
        if not resume:
            self._refuse_existing()
        plan = make_plan(self.study, twins=self.recipe.twins(), pads=self.recipe.pads())
        for note in plan.notes:
            self.say(note)
        for title, reason in plan.skipped:
            self.say(f"skipped {title}: {reason}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FolderLock(self.folder) as lock:
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

    def _refuse_existing(self) -> None:
        if not self.folder.exists() or (self.folder.is_dir() and not _begun(self.folder)):
            return
        stored = self.folder / "study.yaml"
        if not self.folder.is_dir() or not stored.is_file():
            raise FileExistsError(f"{self.folder} exists and is no run folder; choose another --name")
        try:
            there = Study.from_yaml(stored)
        except ConfigError as error:
            raise FileExistsError(f"{self.folder} exists, and its study cannot be read: {error}") from error
        changed = [
            f"{key}: {old} there, {new} here"
            for key, old, new in differences(there.to_dict(), self.study.to_dict())
            if key not in ("name", "output")
        ]
        if changed:
            raise FileExistsError(
                f"{self.folder} exists and holds another study ({'; '.join(changed)}); choose another --name"
            )
        raise FileExistsError(
            f"{self.folder} exists and holds this very study: {resume_command(self.folder)}"
        )

    def _locked(self, plan: Plan, lock: FolderLock, resume: bool) -> Results:
        facts = provenance(self.study, plan.digest)
        if resume:
            self._refuse_changed(facts)
        write_bytes(self.folder / "study.yaml", self.study.to_yaml().encode())
        self._write_provenance(facts, plan, "running")
        shards = Shards(self.folder)
        done = set(shards.open({unit.id: unit.file for unit in plan.units}, self.say))
        started = time.monotonic()
        with StopSignals(self.say) as signals:
            for unit, tables in self._measured(plan, done):
                shards.write(unit.id, unit.file, tables)
                done.add(unit.id)
                self.tally.units += 1
                lock.beat()
                if signals.received is not None:
                    self._write_provenance(facts, plan, "interrupted")
                    raise Interrupted(signals.received, str(self.folder))
        if not done:
            raise LoadError("; ".join(f"{title}: {reason}" for title, reason in plan.skipped))
        self._write_tables(plan, shards, [unit.id for unit in plan.units if unit.id in done])
        facts["seconds"] = round(time.monotonic() - started, 3)
        self._write_provenance(facts, plan, "finished")
        for note in self.recipe.notes:
            self.say(note)
        for metric, count in self.tally.spoiled.items():
            self.say(f"{metric}: {count} matrices held NaN or infinite entries; their results are NaN")
        for metric, count in self.tally.undefined.items():
            self.say(
                f"{metric}: {count} matrices have too few tokens or no row that varies; they have no value"
            )
        return load(self.folder)

    def _refuse_changed(self, facts: dict[str, Any]) -> None:
        stored = self.folder / "provenance.json"
        before = json.loads(stored.read_text("utf-8")) if stored.is_file() else {}
        if before.get("attnscope", facts["attnscope"]) != facts["attnscope"]:
            raise ConfigError(
                f"{self.folder} was begun by attnscope {before['attnscope']}, this is {facts['attnscope']}: "
                "one table would hold numbers of both"
            )
        if before.get("plan", facts["plan"]) != facts["plan"]:
            raise ConfigError(
                f"{self.folder}: the texts or the weights have changed since the run began; "
                "run the study under another name"
            )

    def _measured(self, plan: Plan, done: set[str]) -> Iterator[tuple[Unit, dict[str, Any]]]:
        """Every missing unit with its tables, in the order of the plan."""
        missing = [unit for unit in plan.units if unit.id not in done]
        extras = own_columns(plan)
        with self._bar(len(plan.units), "units", len(plan.units) - len(missing)) as bar:
            for checkpoint, twin in dict.fromkeys((unit.checkpoint, unit.twin) for unit in missing):
                if twin and checkpoint.title in {title for title, _ in plan.skipped}:
                    continue  # a null of a model that was not measured
                units = [unit for unit in missing if (unit.checkpoint, unit.twin) == (checkpoint, twin)]
                source = self.study.models[units[0].source]
                bar.set_postfix_str(f"{checkpoint.model}, random weights" if twin else checkpoint.title)
                try:
                    loaded = self._loaded(checkpoint, source, plan.encoders[units[0].source], twin)
                    for unit in units:
                        yield unit, self.measure_unit(unit, loaded, plan, extras)
                        bar.update(1)
                except LoadError as error:
                    reason = str(error).removeprefix(f"{checkpoint.title}: ")
                    plan.skipped.append((checkpoint.title, reason))
                    self.say(f"skipped {checkpoint.title}: {reason}")
                    continue
                rest = missing[missing.index(units[-1]) + 1 :]
                if source.free_disk and all(unit.checkpoint != checkpoint for unit in rest):
                    self.say(f"{checkpoint.title}: {megabytes(free_disk(loaded))} of disk freed")
                del loaded
                gc.collect()

    def _loaded(
        self, checkpoint: Checkpoint, source: ModelSource, encoder: Encoder, twin: bool
    ) -> LoadedModel:
        options: dict[str, Any] = {"device": source.device, "trust_remote_code": source.trust_remote_code}
        options["dtype"] = source.dtype
        if twin:
            return random_twin(checkpoint, seed=self.study.seed, **options)
        loaded = load_model(checkpoint, **options)
        self._note_model(loaded, encoder)
        return loaded

    def measure_unit(
        self, unit: Unit, loaded: LoadedModel, plan: Plan, extras: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The tables of one unit.

        Args:
            unit: what to measure.
            loaded: its checkpoint.
            plan: the run's plan.
            extras: the sources' own columns, one value per sentence of the study.
        """
        checkpoint = unit.checkpoint
        keys = {"model": checkpoint.model, "revision": checkpoint.revision, "step": checkpoint.step}
        if unit.twin:
            keys |= {"revision": "", "step": -1}
        rows = Rows(keys, null=unit.twin)
        encoder = plan.encoders[unit.source]
        seen: set[tuple[int, bool]] = set()
        masks: dict[int, bool] = {}
        if unit.id == next(one.id for one in plan.units if one.checkpoint == checkpoint):
            for table, columns in self.recipe.of_weights(loaded.model).items():
                rows.add(table, columns)
        with self._counting(), self._bar(len(unit.inputs), "sentences", leave=False) as bar:
            for group in batches(unit, plan.heads[unit.source], _layer_budget(self.study)):
                batch = batch_of(group, encoder)
                causal = self._forward(loaded, batch, encoder, rows)
                seen |= {(n, causal) for n in batch.lengths}
                masks |= dict.fromkeys(batch.samples, causal)
                bar.update(len(group))
        if unit.twin:
            return self._nulls(keys, {"random_weights": rows})
        for n, causal in sorted(seen):
            if (n, causal) not in self._uniform:
                with warnings.catch_warnings():
                    # what has no value on uniform attention is NaN in the table, which says enough
                    warnings.simplefilter("ignore", RuntimeWarning)
                    self._uniform[n, causal] = self.recipe.baselines(n, causal)
            for row in self._uniform[n, causal]:
                rows.add("baselines", row)
        tables = {"samples": samples_table(unit, encoder, extras, masks), **rows.finish()}
        return {**tables, **self._nulls(keys, {kind: rows.nulls(kind) for kind in rows.kinds()})}

    def _nulls(self, keys: dict[str, Any], nulls: dict[str, Rows]) -> dict[str, Any]:
        """The table `nulls`, which keeps averages of what the nulls' rows hold."""
        kept = Rows(keys)
        for kind, rows in nulls.items():
            columns = self.recipe.reduced(rows.finish(), kind)
            if columns:
                kept.add("nulls", columns)
        return kept.finish()

    def _forward(self, loaded: LoadedModel, batch: Batch, encoder: Encoder, rows: Rows) -> bool:
        """One padded batch through the model; every layer is measured while it is alive."""
        causal, inside, began, after = True, 0.0, time.perf_counter(), 0.0
        for model, part in self.recipe.passes(loaded.model, batch):
            inputs = padded(part, encoder.pad_id, loaded.device)
            outputs: list[Any] = []
            for number, layer in self_attention(
                model,
                inputs,
                layers=self.study.layers or None,
                sites=self.recipe.sites(),
                extra=self.recipe.extra_sites(),
                outputs=outputs,
            ):
                measuring = time.perf_counter()
                # in a causal map the first query sees the first key alone
                causal = causal and not bool((layer.attention[:, :, 0, 1:] != 0).any())
                self.recipe.measure(layer, number, part, rows)
                inside += time.perf_counter() - measuring
            ending = time.perf_counter()
            last = getattr(outputs[0], "last_hidden_state", None) if outputs else None
            self.recipe.after(loaded, inputs, part, encoder, last, rows)
            after += time.perf_counter() - ending
        self.tally.metric_seconds += inside
        self.tally.after_seconds += after
        self.tally.forward_seconds += time.perf_counter() - began - inside - after
        return causal

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Gathers the metrics' warnings on maps without a value: a count per run, not a line per layer."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for warning in caught:
            found = re.match(r"([\w.]+): (\d+) of \d+ [\w ]+? (hold NaN|have fewer)", str(warning.message))
            if found:
                tally = self.tally.spoiled if found[3] == "hold NaN" else self.tally.undefined
                tally[found[1]] += int(found[2])
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)

    def _note_model(self, loaded: LoadedModel, encoder: Encoder) -> None:
        self.tally.models[loaded.checkpoint.title] = {
            "path": loaded.checkpoint.path,
            "revision": loaded.checkpoint.revision,
            "commit": loaded.commit,
            "architecture": loaded.architecture,
            "tokenizer": encoder.tokenizer_name,
            "parameters": loaded.parameters,
            "dtype": loaded.dtype,
            "device": loaded.device,
            "attention": str(getattr(loaded.model.config, "_attn_implementation", "")),
        }

    def _write_tables(self, plan: Plan, shards: Shards, done: Sequence[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        target = self.folder / "tables"
        target.mkdir(exist_ok=True)
        for folder in (self.folder, target):
            remove_leftovers(folder)
        names = sorted({name for unit in done for name in shards.rows(unit)})
        for name in names:
            if name != "baselines":
                shards.gather(done, name, target / f"{name}.parquet")
        if "baselines" in names:
            # every unit holds the baselines of its own lengths; here each is kept once
            parts = [shards.read(unit, "baselines") for unit in done if "baselines" in shards.rows(unit)]
            keys = ["n_tokens", "metric", "kind", "threshold"]
            keys += ["protocol"] if "protocol" in parts[0].column_names else []
            seen: dict[tuple[Any, ...], int] = {}
            whole = pa.concat_tables(parts)
            for position, key in enumerate(zip(*(_hashable(whole, name) for name in keys), strict=True)):
                seen.setdefault(key, position)
            order = [seen[key] for key in sorted(seen)]
            with atomic_file(target / "baselines.parquet") as file:
                pq.write_table(stamped(whole.take(order).combine_chunks()), file, compression="zstd")
        for name, table in self.recipe.finish(load(self.folder)).items():
            with atomic_file(target / f"{name}.parquet") as file:
                pq.write_table(stamped(table), file, compression="zstd")

    def _write_provenance(self, facts: dict[str, Any], plan: Plan, state: str) -> None:
        whole = {
            **facts,
            "state": state,
            "models": self.tally.models or self._stored_models(),
            "sentences": plan.counts,
            "notes": [*plan.notes, *self.recipe.notes],
            "skipped": [{"checkpoint": title, "reason": reason} for title, reason in plan.skipped],
            "units": {"planned": len(plan.units), "done_by_this_process": self.tally.units},
            "forward_seconds": round(self.tally.forward_seconds, 3),
            "metric_seconds": round(self.tally.metric_seconds, 3),
            "after_seconds": round(self.tally.after_seconds, 3),
            "spoiled": dict(self.tally.spoiled),
            "undefined": dict(self.tally.undefined),
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

    def _bar(self, total: int, unit: str, initial: int = 0, leave: bool = True) -> Any:
        from tqdm.auto import tqdm

        # None: silent where nobody can see it
        off = None if self.progress else True
        return tqdm(total=total, initial=initial, unit=f" {unit}", disable=off, leave=leave)


def _say(text: str) -> None:
    from tqdm.auto import tqdm

    tqdm.write(f"attnscope: {text}", file=sys.stderr)


def _begun(folder: Path) -> bool:
    """Whether a folder holds more than a process leaves that is killed before its first file."""
    return any(not (one.name == ".lock" or one.match(".*.tmp")) for one in folder.iterdir())


def _default_name(study: Study) -> str:
    from attnscope.models import find_checkpoints

    labels = []
    for position, model in enumerate(study.models):
        try:
            found = find_checkpoints(model.path, model.revisions, model.label)
        except FileNotFoundError as error:
            raise ConfigError(f"models[{position}]: {error}") from None
        labels.append(found[0].model.replace("/", "--"))
    return "-".join([study.study, *labels[:3]])


def resolved(study: Study) -> Study:
    """The same study with absolute paths, so that a run can be resumed from any folder."""
    values = study.to_dict()
    for entry in (*values["models"], *values["texts"]):
        for key in ("path", "tokenizer"):
            if entry.get(key) and Path(entry[key]).expanduser().exists():
                entry[key] = str(Path(entry[key]).expanduser().resolve())
    for entry in values["models"]:
        folder = Path(entry["path"]).expanduser()
        if any(mark in entry["path"] for mark in "*?[") and not folder.is_absolute():
            entry["path"] = str(Path.cwd() / folder)
    return Study(**values)


def _layer_budget(study: Study) -> int | None:
    """Bytes of attention one layer may take: two layers and the metrics' copies are alive at a time."""
    return None if study.max_memory is None else int(study.max_memory) // 4


def _hashable(table: Any, name: str) -> list[Any]:
    """Values that compare and hash; NaN, which equals nothing, becomes −1."""
    return [-1.0 if value != value else value for value in table.column(name).to_pylist()]
