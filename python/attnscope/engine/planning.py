# SPDX-License-Identifier: MIT
"""Plans a run: reads the texts, finds the checkpoints, encodes, and cuts stages into units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnscope._nearest import nearest
from attnscope.config.run_config import RunConfig
from attnscope.engine.encoding import encode
from attnscope.errors import ConfigError
from attnscope.models import Checkpoint, LoadError, find_checkpoints
from attnscope.models.checkpoints import fingerprint
from attnscope.study_api.plan import CheckpointsByModel, Plan, megabytes
from attnscope.study_api.stages import Stage, phases
from attnscope.study_api.study import Study, study_class
from attnscope.study_api.units import Cut, Input, Units
from attnscope.texts.readers import looks_wrapped
from attnscope.texts.sources import origins, read_sentences
from attnscope.untrusted.names import name_fault


def make_plan(
    settings: RunConfig, study: Study | None = None, checkpoints: CheckpointsByModel | None = None
) -> Plan:
    """Read the texts, list the checkpoints, encode the texts and cut the stages into units.

    Args:
        settings: of the run.
        study: of the settings; None makes it.
        checkpoints: of models whose checkpoints another process has listed.
    """
    study = study or study_class(settings.study)(settings)
    stages = [*study.stages(Units())]
    first = next((at for at, stage in enumerate(stages) if stage.units.kind == "texts"), None)
    if first is not None:
        stages[first] = replace(stages[first], writes=("samples", *stages[first].writes))
    plan = Plan(
        settings, {stage.name: stage for stage in stages}, checkpoints_by_model=dict(checkpoints or {})
    )
    plan.phases = phases(stages)
    if first is not None:
        _read_texts(plan, study)
    _series(plan)
    inputs = _encoded(plan, study)
    _check_free_disk(plan)
    for phase in sorted(set(plan.phases.values())):
        now = [stage for stage in stages if plan.phases[stage.name] == phase]
        for position in inputs:
            _add_units(plan, position, now, inputs)
        for stage in now:
            if stage.units.kind == "once":
                plan.add(stage)
    if not any(unit.checkpoint for unit in plan.units):
        raise LoadError(plan.reasons or "no sentence is left to measure")
    if any(stage.units.kind == "pairs" for stage in stages) and not any(unit.other for unit in plan.units):
        raise LoadError(plan.reasons or "two checkpoints are needed to be compared, got one")
    _check_memory(plan)
    _check_disk(plan, study)
    return plan


def _read_texts(plan: Plan, study: Study) -> None:
    settings = plan.settings
    if not settings.texts:
        raise ConfigError("texts is missing (--texts on the command line)")
    if len({source.per == "window" for source in settings.texts}) > 1:
        raise ConfigError("texts.per: windows and sentences do not go into one run; cut all sources or none")
    plan.sentences = read_sentences(settings.texts, settings.seed, study.samplers)
    plan.notes += [
        f"{source.path}: every line is read as a sentence, but its lines look like wrapped paragraphs; "
        "--set texts.per=paragraph joins them"
        for source in settings.texts
        if looks_wrapped(source)
    ]
    for source, name in zip(settings.texts, origins(settings.texts), strict=True):
        count = sum((text.source, text.group) == (name, source.group) for text in plan.sentences)
        if source.samples is not None and source.per != "window" and count < source.samples:
            plan.notes.append(f"{source.path}: {source.samples} texts were asked for, and it holds {count}")
    if short := sum(sentence.cut for sentence in plan.sentences):
        plan.notes.append(
            f"{short} of {len(plan.sentences)} sentences are cut to their source's max_characters"
        )


def checkpoints_of(settings: RunConfig, position: int) -> list[Checkpoint]:
    """Return the checkpoints of one model of the settings."""
    source = settings.models[position]
    try:
        return find_checkpoints(source.path, source.revisions, source.label)
    except (FileNotFoundError, ConfigError) as error:
        raise ConfigError(f"models[{position}]: {error}") from None


def _series(plan: Plan) -> None:
    """List the checkpoints of every model that no other process has listed."""
    labels: dict[str, int] = {}
    for position in range(len(plan.settings.models)):
        if position not in plan.checkpoints_by_model:
            series = checkpoints_of(plan.settings, position)
            plan.checkpoints_by_model[position] = [
                (checkpoint, fingerprint(checkpoint, len(series))) for checkpoint in series
            ]
        label = plan.checkpoints_by_model[position][0][0].model
        if fault := name_fault(label):
            raise ConfigError(f"models[{position}]: its name in tables {fault}; give it a label")
        for checkpoint, _ in plan.checkpoints_by_model[position]:
            if fault := name_fault(checkpoint.revision):
                raise ConfigError(f"models[{position}]: the name of a checkpoint {fault}")
        if labels.setdefault(label, position) != position:
            raise ConfigError(
                f"models[{position}]: two models would be called {label!r} in the tables; "
                "give one of them a label"
            )
        _note_unknown_steps(plan, [checkpoint for checkpoint, _ in plan.checkpoints_by_model[position]])


def _note_unknown_steps(plan: Plan, series: Sequence[Checkpoint]) -> None:
    """Note revisions such as `main`, of which no step is known, in a series of steps."""
    unknown = [checkpoint.revision for checkpoint in series if checkpoint.step < 0]
    if unknown and len(unknown) < len(series):
        plan.notes.append(
            f"{series[0].model}: no step is known of {', '.join(unknown)}, since only a name such as "
            "step1000 says it; in the order of training it stands before the others, and the last checkpoint "
            f"is {series[-1].revision}"
        )


def _encoded(plan: Plan, study: Study) -> dict[int, list[Input]]:
    """Return the encoded texts of each model that can be loaded; none if no stage over texts uses it."""
    cuts = [stage.units for stage in plan.stages.values() if stage.units.kind == "texts"]
    inputs = {}
    for position, series in plan.series.items():
        is_used = any(_uses(plan, cut, checkpoint) for cut in cuts for checkpoint in series)
        try:
            inputs[position] = encode(plan, study, position) if is_used else []
        except LoadError as error:
            plan.leave_out(series, error)
    return inputs


def _uses(plan: Plan, cut: Cut, checkpoint: Checkpoint) -> bool:
    """Return True if a stage over texts uses a checkpoint."""
    if not cut.base:
        return True
    others = (_base(plan, at, other, cut.base) for at, series in plan.series.items() for other in series)
    return any(base is not None and base[1] == checkpoint for base in others)


def _add_units(
    plan: Plan, position: int, stages: Sequence[Stage], inputs: Mapping[int, Sequence[Input]]
) -> None:
    """Add the units of one model, checkpoint by checkpoint, its controls last."""
    series = plan.series[position]
    for checkpoint in series:
        fields: dict[str, Any] = {"checkpoint": checkpoint, "source": position}
        for stage in stages:
            if stage.units.kind == "texts":
                if _uses(plan, stage.units, checkpoint):
                    _add_blocks(plan, stage, inputs[position], fields)
            elif stage.units.kind == "checkpoints":
                plan.add(stage, **fields)
            elif stage.units.kind == "pairs":
                base = _base(plan, position, checkpoint, stage.units.base)
                if base is not None and base[0] in inputs:
                    plan.add(stage, **fields, other=base[1])
    for stage in stages:
        is_used = any(_uses(plan, stage.units, checkpoint) for checkpoint in series)
        for variant in stage.units.variants if is_used else ():
            for seed in range(stage.units.seeds):
                # one for a whole series, whose checkpoints share their configuration; what it reads of a
                # checkpoint, such as words in the place of others, is of the last one, the trained model
                control = {"checkpoint": series[-1], "source": position, "variant": variant, "seed": seed}
                _add_blocks(plan, stage, inputs[position], control)


def _base(plan: Plan, position: int, checkpoint: Checkpoint, base: str) -> tuple[int, Checkpoint] | None:
    """Return the checkpoint that another is compared with and its model, None for one that has none.

    "first" is the first of the series, or of the first model listed where the model is no series.
    """
    series = plan.series[position]
    at = series.index(checkpoint)
    named = {member.revision: (position, member) for member in series if member.revision}
    labels = {members[0].model: (model, members[0]) for model, members in plan.series.items()}
    if base == "previous":
        return (position, series[at - 1]) if at else None
    if base == "first":
        model = position if len(series) > 1 else 0
        compared = model, plan.series[model][0]
    elif base in named or base in labels:
        compared = named.get(base) or labels[base]
    else:
        names = [*named, *labels]
        raise ConfigError(f"{checkpoint.model} has no checkpoint {base!r}{nearest(base, names)}")
    return None if compared[1] == checkpoint else compared


def _add_blocks(plan: Plan, stage: Stage, inputs: Sequence[Input], fields: dict[str, Any]) -> None:
    block = stage.units.block or plan.settings.block
    for start in range(0, len(inputs), block):
        plan.add(stage, **fields, inputs=tuple(inputs[start : start + block]))


def _check_free_disk(plan: Plan) -> None:
    """Raise ConfigError if a checkpoint that is to be removed from the disk is loaded again."""
    again = [
        stage.name
        for stage in plan.stages.values()
        if stage.units.kind == "pairs" or (plan.phases[stage.name] and stage.units.kind != "once")
    ]
    for position, source in enumerate(plan.settings.models):
        if source.free_disk and again:
            raise ConfigError(
                f"models[{position}].free_disk: the stage {again[0]!r} of {plan.settings.study} needs a "
                "checkpoint after it would have been removed"
            )


def _check_memory(plan: Plan) -> None:
    """Raise ConfigError if the longest sentence of a study cannot fit into `max_memory`."""
    bound = plan.settings.max_memory
    if bound is None or not plan.sentences:
        return
    read = ((text.n_tokens, unit) for unit in plan.units for text in unit.inputs)
    n, unit = max(read, key=lambda pair: pair[0])
    # two layers' attention, the head means in float64, and the metrics' own copies
    need = 4 * plan.heads[unit.source] * n * n * 4
    if need > int(bound):
        raise ConfigError(
            f"max_memory: a sentence of {n} tokens needs {megabytes(need)} for its attention in "
            f"{unit.title}, {megabytes(int(bound))} are allowed: raise it or set max_tokens"
        )


def _check_disk(plan: Plan, study: Study) -> None:
    """Raise ConfigError if the sums of a study would not fit into `max_disk`."""
    bound = plan.settings.max_disk
    need = sum(study.stored_bytes(unit, plan) for unit in plan.units) if bound is not None else 0
    if bound is not None and need > int(bound):
        raise ConfigError(
            f"max_disk: the sums of {study.name} take about {megabytes(need)} on disk, "
            f"{megabytes(int(bound))} are allowed: raise it, or take fewer texts or a larger block"
        )
