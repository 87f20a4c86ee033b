# SPDX-License-Identifier: MIT
"""What a paper is to the engine: its options, its tables, and the stages that fill them.

A study is a subclass of `Study` in a folder of its own, found by `attnscope.engine.discovery`; it overrides
what it needs and knows everything below the engine, and nothing knows it.

Example:
    >>> from attnscope.engine.study import Study
    >>> from attnscope.engine.tables import Column, Table
    >>> from attnscope.engine.units import Stage
    >>> class Norms(Study):
    ...     name = "norms"
    ...     tables = (Table("norms", keys=("model", "revision", "step"), columns=(Column("norm"),)),)
    ...     def stages(self, units):
    ...         return [Stage("norms", units.checkpoints(), self.measure, writes=("norms",))]
    ...     def measure(self, unit, run):
    ...         run.write("norms", norm=sum(float(w.norm()) for w in run.model().model.parameters()))
    >>> Norms.table("norms").version
    1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from attnscope._nearest import nearest
from attnscope.engine.tables import Table
from attnscope.engine.units import Stage, Units

if TYPE_CHECKING:
    from attnscope.engine.config import Settings
    from attnscope.engine.plan import Plan


class Options(BaseModel):
    """A study's own settings; a subclass adds fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Study:
    """A paper's part of a run; the engine does the rest.

    Args:
        settings: of the run.

    Raises:
        ConfigError: an option or a protocol that the study does not know.
    """

    #: What `Settings.study` and `attnscope run` call it: the name of its folder.
    name: ClassVar[str]
    #: Other names that it answers to.
    aliases: ClassVar[tuple[str, ...]] = ()
    #: Its own settings.
    Options: ClassVar[type[BaseModel]] = Options
    #: Protocols that it can follow.
    protocols: ClassVar[tuple[str, ...]] = ("exact",)
    #: Its tables.
    tables: ClassVar[tuple[Table, ...]] = ()
    #: Figures by name, sections of the report, published values.
    figures: ClassVar[Mapping[str, Any]] = {}
    sections: ClassVar[tuple[Any, ...]] = ()
    published: ClassVar[Path | None] = None
    #: Its own rules by which texts are chosen: name -> (rows, source, generator) -> positions.
    samplers: ClassVar[Mapping[str, Callable[..., Sequence[int]]]] = {}

    def __init__(self, settings: Settings) -> None:
        from attnscope.engine.config import ConfigError
        from attnscope.engine.mistakes import explain

        self.settings = settings
        try:
            self.options: Any = self.Options(**settings.options)
        except ValidationError as error:
            raise ConfigError(explain(error, self.Options, "options")) from None
        for protocol in settings.protocols:
            if protocol not in self.protocols:
                where = (
                    "" if protocol == "exact" else f"; its functions are in attnscope.protocols.{protocol}"
                )
                raise ConfigError(
                    f"protocols: {self.name} follows {', '.join(self.protocols)}, not {protocol}{where}"
                )

    @classmethod
    def table(cls, name: str) -> Table:
        """One of the study's tables.

        Raises:
            ValueError: it declares none of this name.
        """
        for table in cls.tables:
            if table.name == name:
                return table
        names = [table.name for table in cls.tables]
        raise ValueError(f"{cls.name} declares no table {name!r}{nearest(name, names)}")

    def expects(self, plan: Plan) -> list[str]:
        """What a dry run says of this study besides: passes, sums on disk.

        Args:
            plan: of the run.
        """
        return []

    def stages(self, units: Units) -> list[Stage]:
        """What is done, in order; a later stage may read tables of an earlier one.

        Args:
            units: the ways to cut a stage into units.
        """
        raise NotImplementedError(f"{type(self).__name__}.stages")
