# SPDX-License-Identifier: MIT
"""The engine: unit after unit of a study, stored one by one, resumable at any moment.

Each unit is computed, written whole and only then renamed into its place, so a kill costs one unit at most.
Checkpoints go one by one: load, all stages that need it, its controls, free. Tables are gathered at the end
from the units in the order of the plan, and are the same bytes however often the run was interrupted.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attnscope import _blas
from attnscope._evaluation import plain_defaults
from attnscope._memory import frozen_gc, system_arrow_pool
from attnscope._precision import provenance_of
from attnscope._progress import progress_bar
from attnscope.config.memory_texts import json_lines
from attnscope.config.run_config import RunConfig
from attnscope.engine.executors.executor import Executor, LocalExecutor, Outcome
from attnscope.engine.model_cache import HeldModel, about_model
from attnscope.engine.prepared_run import PreparedRun
from attnscope.engine.provenance import machine, provenance, read_provenance
from attnscope.engine.run_folder import (
    folder_of_run,
    has_content,
    refuse_changed,
    refuse_other_models,
    with_stored_texts,
)
from attnscope.engine.stop import stop_signals
from attnscope.errors import DiskFull, FolderLocked, Interrupted, ResultsError, UnitsFailed, command
from attnscope.models import Checkpoint, LoadedModel, LoadError
from attnscope.models.checkpoints import folder_of
from attnscope.models.tokens import Encoder
from attnscope.results.files import (
    NO_ROOM,
    hash_file,
    make_folder,
    refuse_links,
    remove,
    remove_leftovers,
    write_bytes,
)
from attnscope.results.folder_lock import FolderLock
from attnscope.results.results import Results, load
from attnscope.results.store import Store
from attnscope.study_api.samples import samples_table
from attnscope.study_api.stage_run import StageRun
from attnscope.study_api.tables import Table
from attnscope.study_api.tally import Tally
from attnscope.study_api.units import Unit
from attnscope.texts.sources import extra_columns
from attnscope.untrusted.safe_text import escape_controls

#: Shows a line to the user.
Notify = Callable[[str], None]


class Engine:
    """One run of one study.

    Args:
        prepared: what is decided about it.
        beside: folders of the same plan whose units count as stored.
        label: of the progress bar.
    """

    def __init__(
        self,
        prepared: PreparedRun,
        *,
        progress: bool = True,
        say: Notify | None = None,
        executor: Executor | None = None,
        beside: Sequence[Path] = (),
        label: str = "units",
    ) -> None:
        self.settings, self.study = prepared.settings, prepared.study
        self.folder, self.plan = prepared.folder, prepared.plan
        self.store = Store(self.folder, beside)
        self.executor: Executor = executor or LocalExecutor()
        self.progress = progress
        self.label = label
        self.say: Notify = say or _print_line
        #: Of the unit at work, and of all that this process did.
        self.tally, self.total = Tally(), Tally()
        self.notes: list[str] = []
        self.failed: list[str] = []
        self.stopping: Callable[[], bool] = lambda: False
        self._bar: Any = None
        self._held = HeldModel()
        #: Of units that earlier processes stored: entries of the provenance.
        self._models_before: dict[str, dict[str, Any]] = {}
        self.machines = {socket.gethostname(): machine()}
        self._extras = extra_columns(self.plan.sentences)
        #: Bytes of attention one layer may take: two layers and the metrics' copies are alive at a time.
        memory = self.settings.max_memory
        self.layer_budget = None if memory is None else int(memory) // 4

    def run(self, resume: bool = False, refuse: Callable[[], None] | None = None) -> Results:
        """Compute the missing units and write the tables; `refuse` as `open_run` takes it."""
        with self.open_run(resume, refuse) as (facts, lock):
            self.finish(facts, lock)
        return load(self.folder)

    @contextmanager
    def open_run(
        self, resume: bool, refuse: Callable[[], None] | None = None
    ) -> Iterator[tuple[dict[str, Any], FolderLock]]:
        """Open the folder of the run for this process alone.

        Args:
            resume: go on with the units that are stored.
            refuse: raises where the folder must not be written into; asked under the lock, because another
                process may have finished a study there while this one planned.
        """
        plan = self.plan
        try:
            for note in [*plan.notes, *(f"skipped {title}: {reason}" for title, reason in plan.skipped)]:
                self.say(note)
            self.executor.check(self)
            with (
                self._locked_folder(refuse) as lock,
                frozen_gc(),
                system_arrow_pool(),
                plain_defaults(),
            ):
                settings = with_stored_texts(self.settings, self.folder)
                facts = provenance(settings, plan.digest)
                if resume:
                    refuse_changed(self.folder, facts)
                self._store_texts(settings)
                write_bytes(self.folder / "study.yaml", settings.to_yaml().encode())
                self.store.open({unit.id: unit.folder for unit in plan.units}, self.say)
                self._models_before = self._stored_models() if resume else {}
                yield facts, lock
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            why = str(error.strerror) if isinstance(error, DiskFull) else f"no room ({error.strerror})"
            if (self.folder / "study.yaml").is_file():
                why += f"; what is done is intact: {command('resume', self.folder)}"
            raise DiskFull(error.errno, why, str(error.filename or self.folder)) from error

    def _stored_models(self) -> dict[str, dict[str, Any]]:
        """Return what the folder says of the models of its units."""
        units = [unit for unit in self.plan.units if self.store.is_in_folder(unit.id)]
        checkpoints = {checkpoint for unit in units for checkpoint in (unit.checkpoint, unit.other)}
        titles = {checkpoint.title for checkpoint in checkpoints if checkpoint is not None}
        models = read_provenance(self.folder).get("models", {})
        return {title: facts for title, facts in models.items() if title in titles}

    def _store_texts(self, stored: RunConfig) -> None:
        """Write the texts in memory where the settings to be stored name them."""
        folder = folder_of_run(self.folder)
        for source, file in zip(self.settings.texts, stored.texts, strict=True):
            if source.rows is not None:
                make_folder((folder / file.path).parent)
                write_bytes(folder / file.path, json_lines(source.rows))

    @contextmanager
    def _locked_folder(self, refuse: Callable[[], None] | None) -> Iterator[FolderLock]:
        """Make and lock the run folder; a run that loads no model leaves nothing that it made itself."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        is_new = make_folder(self.folder)
        refuse_links(self.folder)
        with FolderLock(self.folder) as lock:
            is_new = is_new and not has_content(self.folder)
            if refuse is not None:
                refuse()
            try:
                yield lock
            except LoadError:
                if is_new and not self._stored_tables(self._stored_units()):
                    remove(self.folder)
                raise

    def finish(self, facts: dict[str, Any], lock: FolderLock) -> None:
        """Compute the missing units and write the tables."""
        started = time.monotonic()
        self.execute_units(facts, lock)
        done = self._stored_units()
        # sums that stages hand on to later ones are no tables of the run
        names = [name for name in self._stored_tables(done) if not name.startswith("reduced-")]
        if not done or (self.plan.skipped and not names):  # a unit may be done, and have nothing to write
            raise LoadError(self.plan.reasons)
        with self._recorded(facts, lock):
            facts["tables"] = self._gather_tables(done, names)
        facts["seconds"] = round(time.monotonic() - started, 3)
        write_provenance(self, facts, "finished")
        self._say_what_was_counted()

    def _gather_tables(self, done: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Write the tables of these names of stored units, and return the hash and the rows of each."""
        target = self.folder / "tables"
        make_folder(target)
        for folder in (self.folder, target):
            remove_leftovers(folder)
        written: dict[str, dict[str, Any]] = {}
        for name in names:
            file = target / f"{name}.parquet"
            self.store.gather(done, name, file)
            rows = sum(self.store.rows(unit).get(name, 0) for unit in done)
            written[name] = {"sha256": hash_file(file), "rows": rows}
        return written

    def _say_what_was_counted(self) -> None:
        """Show the notes of all units, and how many matrices have no value or another than was asked for."""
        stored, notes = self.stored_counts()
        for note in notes:
            self.say(note)
        for metric, count in stored.non_finite.items():
            self.say(f"{metric}: {count} matrices held NaN or infinite entries; their results are NaN")
        for metric, count in stored.fallbacks.items():
            self.say(f"{metric}: {count} matrices were measured exactly; fast does not hold its bound there")
        for metric, count in stored.undefined.items():
            self.say(
                f"{metric}: {count} matrices have too few tokens or no row that varies; they have no value"
            )

    def _stored_units(self) -> list[str]:
        """Return the names of the stored units that count, in the order of the plan."""
        return [unit.id for unit in self.plan.units if self.counts(unit)]

    def counts(self, unit: Unit) -> bool:
        """Return True if a unit is stored and its rows belong to the run.

        A stage of a skipped checkpoint that lacks units would give means over fewer texts than the others: it
        waits for `resume`.
        """
        if unit.id not in self.store or not self.is_skipped(unit):
            return unit.id in self.store
        key = (unit.other, unit.variant, unit.seed)
        stage = self.plan.units_of(unit.stage, unit.checkpoint)
        return all(of.id in self.store for of in stage if (of.other, of.variant, of.seed) == key)

    def _stored_tables(self, units: Sequence[str]) -> list[str]:
        """Return the names of the tables that some units have rows of."""
        return sorted({name for unit in units for name in self.store.rows(unit)})

    def execute_units(self, facts: dict[str, Any], lock: FolderLock) -> None:
        """Let the executor compute every missing unit, and store each."""
        write_provenance(self, facts, "running")
        total, done = len(self.plan.units), self.store.count()
        with stop_signals(self.say) as received, self.bar(total, self.label, done) as self._bar:
            self.stopping = lambda: bool(received)
            with self._recorded(facts, lock):
                for outcome in self.executor.outcomes(self):
                    if outcome is not None:
                        models = len(self.total.models)
                        self._store_outcome(outcome)
                        if len(self.total.models) > models:  # who goes on after a kill may not load it again
                            write_provenance(self, facts, "running")
                    lock.check()
        if received:
            write_provenance(self, facts, "interrupted")
            raise Interrupted(received[0], str(self.folder))
        if self.failed:
            write_provenance(self, facts, "failed")
            raise UnitsFailed(
                f"{len(self.failed)} of {len(self.plan.units)} units were given up, all others are stored: "
                f"{'; '.join(self.failed)}; {command('resume', self.folder)}"
            )

    @contextmanager
    def _recorded(self, facts: Mapping[str, Any], lock: FolderLock) -> Iterator[None]:
        """Store that the run was interrupted where an error ends what is inside, while the folder is ours."""
        try:
            yield
        except BaseException:
            with suppress(OSError, ResultsError, FolderLocked):  # the error at hand says more
                lock.check()
                write_provenance(self, facts, "interrupted")
            raise

    def _store_outcome(self, outcome: Outcome) -> None:
        """Store the tables of a unit, or record why it has none."""
        unit, plan = outcome.unit, self.plan
        if outcome.tables is not None:
            self.refuse_other_models(outcome.tally.get("models", {}))  # a worker's too
            tally = Tally()
            tally.add(outcome.tally)
            facts: dict[str, Any] = {"read": self._input_digest(unit), "machine": outcome.machine}
            facts |= {"counts": tally.counts, "notes": [*outcome.notes]}
            self.store.write(unit.id, outcome.tables, facts)
            self.total.add(outcome.tally)
            self.total.units += 1
            self._bar.update(self.store.count() - self._bar.n)
        elif outcome.skipped:
            assert unit.checkpoint is not None
            title = unit.checkpoint.title
            plan.leave_out([unit.checkpoint], outcome.skipped)
            self.say(f"skipped {title}: {plan.skipped[-1][1]}")
            order = {checkpoint.title: place for place, checkpoint in enumerate(plan.checkpoints)}
            plan.skipped.sort(key=lambda pair: order.get(pair[0], -1))
        else:
            self.failed.append(f"unit {unit.folder} ({unit.title}): {outcome.failed}")
            self.say(f"given up: {self.failed[-1]}")

    def stored_counts(self) -> tuple[Tally, list[str]]:
        """Return what was counted in the units in the folder, whoever did them, and their notes."""
        tally, notes = Tally(), dict[str, None]()
        for unit in self.plan.units:
            if self.store.is_in_folder(unit.id):
                manifest = self.store.manifest(unit.id)
                tally.add_counts(manifest.get("counts", {}))
                notes.update(dict.fromkeys(manifest.get("notes", ())))
        return tally, list(notes)

    def show(self, text: str) -> None:
        """Write a text behind the progress bar."""
        if self._bar is not None:
            self._bar.set_postfix_str(escape_controls(text))

    def is_pending(self, unit: Unit) -> bool:
        """Return True if a unit is still to be computed."""
        if self.is_unreachable(unit):
            return False
        if unit.id not in self.store:
            return True
        if not self.store.is_in_folder(unit.id):
            return False
        if self.store.manifest(unit.id).get("read") == self._input_digest(unit):
            return False
        self.store.drop(unit.id)
        return True

    def is_unreachable(self, unit: Unit) -> bool:
        """Return True if the unit can never run: its checkpoint or all of its inputs were skipped."""
        return self.is_skipped(unit) or (
            bool(self.plan.stages[unit.stage].reads)
            and all(not self.counts(read) and self.is_unreachable(read) for read in self.plan.reads(unit))
        )

    def is_skipped(self, unit: Unit) -> bool:
        """Return True if a checkpoint of the unit cannot be used."""
        skipped = {title for title, _ in self.plan.skipped}
        checkpoints = (unit.checkpoint, unit.other)
        return any(checkpoint is not None and checkpoint.title in skipped for checkpoint in checkpoints)

    def is_ready(self, unit: Unit) -> bool:
        """Return True if every unit that a unit reads is stored, or never will be."""
        return all(read.id in self.store or self.is_unreachable(read) for read in self.plan.reads(unit))

    def _input_digest(self, unit: Unit) -> str:
        """Return a digest of the stored units that a unit reads; one may have been skipped before."""
        reads = [read for read in self.plan.reads(unit) if self.counts(read)]
        return self.plan.digest_of(reads).hex() if reads else ""

    def work(self, unit: Unit) -> Outcome:
        """Compute one unit."""
        self.tally, self.notes = Tally(), []
        stage = self.plan.stages[unit.stage]
        run = StageRun(self, unit, stage.reads, stage.writes)
        if unit.checkpoint is None:
            self.release()
        began = time.perf_counter()
        with self.tally.counting(), _blas.one_thread():
            stage.function(unit, run)
        tables = run.finish()
        if "samples" in stage.writes and not unit.variant:
            samples = samples_table(unit, run.encoder, self._extras, run.causal, self.study.name)
            tables = {"samples": samples, **tables}
        self.tally.unit_seconds += time.perf_counter() - began
        return Outcome(unit, tables, tally=self.tally.as_plain(), notes=self.notes)

    def loaded(self, checkpoint: Checkpoint, unit: Unit, *, control: bool) -> LoadedModel:
        """Return a checkpoint in memory, or the unit's `control` of it; the previous one is released."""
        seed = unit.seed if control and unit.variant == "random_weights" else None
        source = self.settings.models[unit.source]
        model = self._held.get(checkpoint, source, self.settings.seed, seed)
        if "device" not in self.tally.models.get(checkpoint.title, {}):
            self.refuse_other_models({checkpoint.title: {"device": model.device, "commit": model.commit}})
            if seed is None:
                encoder = self.plan.encoders.get(unit.source)
                self.tally.models[checkpoint.title] = about_model(model, encoder)
        return model

    def weights_folder(self, checkpoint: Checkpoint) -> Path:
        """Return the folder of a checkpoint's files; nothing is loaded."""
        folder = folder_of(checkpoint)
        # the cache of the hub calls the folders of its snapshots by their commits
        commit = "" if checkpoint.local else folder.name
        facts = {"path": checkpoint.path, "revision": checkpoint.revision, "commit": commit}
        self.refuse_other_models({checkpoint.title: facts})
        self.tally.models.setdefault(checkpoint.title, facts)
        return folder

    def refuse_other_models(self, models: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise OtherModel if models are others than those that the stored units are of."""
        refuse_other_models({**self._models_before, **self.total.models}, models, self.plan)

    @property
    def study_name(self) -> str:
        """Name of the study."""
        return self.study.name

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Title and reason of each checkpoint that cannot be used."""
        return self.plan.skipped

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Every checkpoint of the run, in the order of the plan."""
        return self.plan.checkpoints

    def table(self, name: str) -> Table:
        """Return a table that the study declares."""
        return self.study.table(name)

    def encoder(self, unit: Unit) -> Encoder:
        """Return the encoder of the unit's model."""
        return self.plan.encoders[unit.source]

    def heads(self, unit: Unit) -> int:
        """Return the number of attention heads per layer of the unit's model."""
        return self.plan.heads[unit.source]

    def samples(self, unit: Unit) -> int:
        """Return the number of texts that the unit's model reads in the whole run."""
        return self.plan.samples(unit)

    def files(self, unit: Unit, table: str) -> list[Path]:
        """Return the files of a table that the unit may read, in the order of the plan."""
        return self.store.files([read.id for read in self.plan.reads(unit) if self.counts(read)], table)

    def release(self, *, remove: bool = False) -> None:
        """Release the model in memory, and with `remove` delete its files in the hub's cache."""
        if message := self._held.release(remove=remove):
            self.say(message)

    def bar(self, total: int, label: str, initial: int = 0, *, inner: bool = False) -> Any:
        """Return a progress bar of the run, or with `inner` of one unit."""
        return progress_bar(total, label, initial, show=self.progress, inner=inner)


def _print_line(text: str) -> None:
    """Write a line to the terminal, above a progress bar."""
    from tqdm.auto import tqdm

    # a log on a full disk, or a terminal that was closed, is no reason to stop measuring
    with suppress(OSError):
        tqdm.write(f"attnscope: {escape_controls(text)}", file=sys.stderr)


def _by_device(calls: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the calls of measures by device, of those that did not run in the core."""
    by_device: dict[str, dict[str, int]] = {}
    for key, count in sorted(calls.items()):
        device, _, name = key.partition(": ")
        by_device.setdefault(device, {})[name] = count
    return by_device


def write_provenance(engine: Engine, facts: Mapping[str, Any], state: str) -> None:
    """Write `provenance.json` of the run so far; models and machines of earlier processes stay in it."""
    plan, total, before = engine.plan, engine.total, read_provenance(engine.folder)
    stored, notes = engine.stored_counts()
    manifests = [engine.store.manifest(unit.id) for unit in plan.units if engine.store.is_in_folder(unit.id)]
    machines = {**before.get("machines", {}), **engine.machines}
    models = Tally(models=dict(before.get("models", {})))
    models.add({"models": total.models})
    counts = Counter(str(unit.get("machine", "")) for unit in manifests)
    content = {
        **facts,
        "state": state,
        "machines": {host: {**machines.get(host, {}), "units": n} for host, n in sorted(counts.items())},
        "models": models.models,
        "sentences": plan.counts,
        "notes": [*plan.notes, *notes],
        "skipped": [{"checkpoint": title, "reason": reason} for title, reason in plan.skipped],
        "failed": engine.failed,
        "units": {
            "planned": len(plan.units),
            "stored": len(manifests),
            "done_by_this_process": total.units,
        },
        "forward_seconds": round(total.forward_seconds, 3),
        "metric_seconds": round(total.metric_seconds, 3),
        "unit_seconds": round(total.unit_seconds, 3),
        "measured_on": _by_device(stored.device_calls),
        "precision": provenance_of(engine.settings.precision, stored.fallbacks),
        "non_finite": stored.non_finite,
        "undefined": stored.undefined,
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, default=str)
    write_bytes(engine.folder / "provenance.json", f"{text}\n".encode())
