# SPDX-License-Identifier: MIT
"""Units that sleep, and one that ends its process or raises."""

import os
import signal
import time
from pathlib import Path

from attnscope.study_api.stages import Stage
from attnscope.study_api.study import Options, Study
from attnscope.study_api.tables import Column, Table


class DeadlyOptions(Options):
    """How long a unit takes; a file that holds `kill` or `raise` for the third text."""

    seconds: float = 0.0
    file: str = ""


class DeadlyUnits(Study):
    """`lengths` of every text, and their `total`."""

    name = "deadly_units"
    Options = DeadlyOptions
    tables = (
        Table("lengths", keys=("model", "revision", "step", "sample"), columns=(Column("length"),)),
        Table("total", keys=("model",), columns=(Column("length"),)),
    )

    def stages(self, units):
        """Texts, then all of them together."""
        return [
            Stage("lengths", units.texts(block=1), self.measure, writes=("lengths",)),
            Stage("total", units.once(), self.add, reads=("lengths",), writes=("total",)),
        ]

    def measure(self, unit, run):
        """The length of each text, as late as asked."""
        time.sleep(self.options.seconds)
        (text,) = unit.inputs
        order = Path(self.options.file or os.devnull).read_text("utf-8")
        if text.sentence.sample == 2 and order == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if text.sentence.sample == 2 and order == "raise":
            raise RuntimeError("there is no third text")
        run.write("lengths", sample=text.sentence.sample, length=float(text.n_tokens))

    def add(self, unit, run):
        """Their sum."""
        for model, lengths in run.read("lengths").groupby("model"):
            run.write("total", model=model, length=lengths["length"].sum())


STUDY = DeadlyUnits
