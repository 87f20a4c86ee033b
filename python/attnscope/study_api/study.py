# SPDX-License-Identifier: MIT
"""Base class of a study: its options, tables and stages.

A study is a subclass of `Study` in its folder, found by `attnscope.config.study_folders`; it overrides
what it needs and knows everything below the engine, and nothing knows it.

Example:
    >>> from attnscope.study_api.study import Study
    >>> from attnscope.study_api.tables import Column, Table
    >>> from attnscope.study_api.stages import Stages
    >>> STAGES = Stages()
    >>> @STAGES.stage(lambda units, study: units.checkpoints(), writes=("norms",))
    ... def norms(study, unit, run):
    ...     run.write("norms", norm=sum(float(w.norm()) for w in run.model().model.parameters()))
    >>> class Norms(Study):
    ...     name = "norms"
    ...     declared_stages = STAGES
    ...     tables = (Table("norms", keys=("model", "revision", "step"), columns=(Column("norm"),)),)
    >>> Norms.table("norms").version
    1
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from attnscope._nearest import nearest
from attnscope.config.config_files import as_list
from attnscope.config.run_config import Names as Names
from attnscope.config.run_config import RunConfig, Strict, explain
from attnscope.config.study_folders import find_study, load_study, unknown_study
from attnscope.errors import ConfigError
from attnscope.models import Encoder
from attnscope.study_api.plan import Plan
from attnscope.study_api.stages import Stage, Stages
from attnscope.study_api.tables import Table
from attnscope.study_api.units import Unit, Units
from attnscope.texts.sentence import Sentence


class Options(Strict):
    """A study's own settings; a subclass adds fields. A number of them is finite."""

    model_config: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)


def one_of(names: Sequence[str]) -> BeforeValidator:
    """Return a validator of lists of `names`, in their order; a name is a list of it, "all" of all."""

    def read(value: object) -> object:
        chosen = [value] if isinstance(value, str) else value or []
        if not isinstance(chosen, (list, tuple)):
            return chosen
        if list(chosen) == ["all"]:
            return list(names)
        for name in chosen:
            if name not in names:
                raise ValueError(f"there is no {name!r}{nearest(str(name), [*names, 'all'])}")
        return [name for name in names if name in chosen]

    return BeforeValidator(read)


class Study:
    """A paper's part of a run; the engine does the rest."""

    #: What `Settings.study` and `attnscope run` call it: the name of its folder.
    name: ClassVar[str]
    #: Its own settings.
    Options: ClassVar[type[BaseModel]] = Options
    #: Whether it needs causal maps; of an encoder-decoder other studies read the encoder.
    causal: ClassVar[bool] = False
    #: Protocols that it can follow.
    protocols: ClassVar[tuple[str, ...]] = ("exact",)
    #: Its tables.
    tables: ClassVar[tuple[Table, ...]] = ()
    #: Its stages, as functions of their module declare them; None where `stages` makes them.
    declared_stages: ClassVar[Stages | None] = None
    #: Whether equal texts are one sample of its exact tests and intervals; else each is a sample.
    joins_equal_texts: ClassVar[bool] = False
    #: Its own rules by which texts are chosen: name -> (rows, source, generator) -> positions.
    samplers: ClassVar[Mapping[str, Callable[..., Sequence[int]]]] = {}

    def __init__(self, settings: RunConfig) -> None:
        self.settings = settings
        self.options: Any = self._checked(settings.options)

    @classmethod
    def resolve_options(cls, values: Mapping[str, Any], settings_keys: Container[str]) -> dict[str, Any]:
        """Return values of settings with this study's part checked and filled in; ConfigError if it is wrong.

        A key that is none of `settings_keys` and that the study's options have goes to the options, so that
        `bars: true` in a file and `--set bars=true` are short for `options.bars`.
        """
        options = values.get("options") or {}
        if not isinstance(options, Mapping):
            raise ConfigError(f"options: expected keys and values, got {options!r:.200}")
        fields = cls.Options.model_fields
        short = {key: value for key, value in values.items() if key not in settings_keys and key in fields}
        rest = {key: value for key, value in values.items() if key not in short}
        protocols = as_list(rest.get("protocols", ["exact"]))
        if protocols == ["both"]:
            rest["protocols"] = protocols = [*cls.protocols]
        for place, protocol in enumerate(protocols if isinstance(protocols, list) else ()):
            if isinstance(protocol, str) and protocol not in cls.protocols:
                raise ConfigError(
                    f"protocols[{place}]: {cls.name} follows {', '.join(cls.protocols)}, got {protocol!r}"
                    f"{nearest(protocol, cls.protocols)}"
                )
        return {**rest, "options": cls._checked({**options, **short}).model_dump(mode="json")}

    @classmethod
    def _checked(cls, options: Mapping[str, Any]) -> BaseModel:
        try:
            return cls.Options(**options)
        except ValidationError as error:
            raise ConfigError(explain(error, cls.Options, "options")) from None

    @classmethod
    def table(cls, name: str) -> Table:
        """Return one of the study's tables; ValueError if it declares none of this name."""
        tables = {table.name: table for table in cls.tables}
        if name not in tables:
            raise ValueError(f"{cls.name} declares no table {name!r}{nearest(name, tables)}")
        return tables[name]

    def prepare_texts(
        self, sentences: Sequence[Sentence], encoder: Encoder, model: str, plan: Plan
    ) -> Sequence[Sentence]:
        """Return the texts as a model is to read them: a question inside a prompt, for example."""
        return sentences

    def describe_plan(self, plan: Plan) -> list[str]:
        """Return extra lines for the dry run: forward passes, disk space."""
        return []

    @property
    def holds_maps(self) -> bool:
        """True if stages hold attention maps in memory, whose size bounds batches."""
        return True

    def kept_bytes(self, plan: Plan) -> int:
        """Return the memory that stages keep beside a model while they read earlier tables."""
        return 0

    def stored_bytes(self, unit: Unit, plan: Plan) -> int:
        """Return roughly how many bytes of sums over texts (`run.reduce`) a unit will leave on disk."""
        return 0

    def stages(self, units: Units) -> list[Stage]:
        """Return the stages in order, each cut by `units`. A stage may read tables of earlier stages."""
        if self.declared_stages is None:
            raise NotImplementedError(f"{type(self).__name__}.stages")
        return self.declared_stages.of(self, units)


def study_class(name: str) -> type[Study]:
    """Return the class that says what a study measures; ConfigError where there is no such study."""
    folder = find_study(name)
    if folder is None:
        raise ConfigError(unknown_study(name))
    declared: Any = load_study(name)
    if not (isinstance(declared, type) and issubclass(declared, Study)):
        raise TypeError(f"{folder.package}.study must hold a subclass of Study as STUDY, got {declared!r}")
    return declared
