# SPDX-License-Identifier: MIT
"""Stages that functions of a module declare: their order, units, tables, and which of them take part."""

from types import SimpleNamespace

import pytest

from attnscope.config.study_folders import studies
from attnscope.study_api.stages import Stages
from attnscope.study_api.study import Study
from attnscope.study_api.units import Units


def declared():
    stages = Stages()

    @stages.stage(lambda units, study: units.texts(block=study.block), writes=["heads"])
    def measure(study, unit, run):
        run.append(("measure", study, unit))

    @stages.stage(
        lambda units, study: units.once(),
        reads=["heads"],
        writes=["controls"],
        when=lambda study: study.nulls,
    )
    def control(study, unit, run):
        run.append(("control", study, unit))

    @stages.stage(
        lambda units, study: units.checkpoints(),
        name="claims",
        reads=["heads", "controls", "samples"],
        writes=["claims"],
        within="checkpoint",
    )
    def decide_claims(study, unit, run):
        run.append(("claims", study, unit))

    return stages


def test_stages_are_those_declared_in_order():
    study = SimpleNamespace(block=7, nulls=True)
    measure, control, claims = declared().of(study, Units())
    assert [stage.name for stage in (measure, control, claims)] == ["measure", "control", "claims"]
    assert (measure.units, control.units.kind, claims.units.kind) == (
        Units().texts(block=7),
        "once",
        "checkpoints",
    )
    assert (claims.reads, claims.writes, claims.within) == (
        ("heads", "controls", "samples"),
        ("claims",),
        "checkpoint",
    )
    assert (measure.reads, measure.within) == ((), "run")


def test_a_function_gets_the_study_first():
    study, calls = SimpleNamespace(block=None, nulls=False), []
    for stage in declared().of(study, Units()):
        stage.function("unit", calls)
    assert calls == [("measure", study, "unit"), ("claims", study, "unit")]


def test_tables_of_a_stage_that_takes_no_part_are_not_read():
    """Tables that no stage declares, such as those of the engine, stay."""
    _, claims = declared().of(SimpleNamespace(block=None, nulls=False), Units())
    assert claims.reads == ("heads", "samples")


def test_a_table_that_another_stage_writes_too_is_read():
    stages = declared()
    stages.stage(lambda units, study: units.texts(), name="more", writes=["controls"])(
        lambda *arguments: None
    )
    of_study = {stage.name: stage for stage in stages.of(SimpleNamespace(block=None, nulls=False), Units())}
    assert of_study["claims"].reads == ("heads", "controls", "samples")


def test_two_stages_of_one_name_are_refused():
    stages = declared()
    with pytest.raises(ValueError, match="two stages are called 'claims'"):
        stages.stage(lambda units, study: units.once(), name="claims")(lambda *arguments: None)


def test_a_study_without_stages_says_so():
    class Empty(Study):
        name = "empty"

    with pytest.raises(NotImplementedError, match=r"Empty\.stages"):
        Empty.__new__(Empty).stages(Units())


@pytest.mark.parametrize("name", sorted(studies()))
def test_every_study_reads_tables_that_an_earlier_stage_writes(name):
    """Whichever of its stages take part."""
    from attnscope.study_api.study import study_class

    study = study_class(name)
    written = set()
    for stage in study.declared_stages.declared.values():
        assert {*stage.reads} - {"samples"} <= written
        written |= {*stage.writes}
    assert written
