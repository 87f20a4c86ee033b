# SPDX-License-Identifier: MIT
"""States of the last token of every prompt behind every block, and the other columns of prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from attnscope.capture import Forward
from attnscope.capture.likelihood.tokens import token_likelihood
from attnscope.errors import MissingError
from attnscope.results.store import dataset
from attnscope.studies.hallucination_geometry.questions import as_table, question_tokens
from attnscope.studies.hallucination_geometry.tables import TABLES
from attnscope.study_api.tables import with_metadata

if TYPE_CHECKING:
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions
    from attnscope.study_api.forward import Batch
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Unit

HELD = "held_states"


def collect(unit: Unit, run: StageRun, options: HallucinationOptions) -> None:
    """Store the states of a block of prompts, and of the measured model the prompts themselves."""
    table = as_table([text.sentence for text in unit.inputs]).set_index("sample")
    columns: dict[str, list[Any]] = {"sample": [], "layer": [], "state": []}
    for batch in run.batches():
        for layer, states in last_states(run, batch):
            columns["sample"] += batch.samples
            columns["layer"] += [layer] * len(batch.samples)
            columns["state"].append(states)
        if not unit.variant:
            _prompts(run, batch, table, options)
    states = np.concatenate(columns.pop("state"))
    if unit.variant or not options.keep_states:
        for sample, layer, state in zip(columns["sample"], columns["layer"], states, strict=True):
            run.reduce(HELD, state, sample=sample, layer=layer)
    else:
        run.store("states", _arrow(run, columns, states))


def last_states(run: StageRun, batch: Batch) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Yield the number of the block (−1: its input is that of block 0) and the states [B, D] of last
    tokens.
    """
    rows, last = range(len(batch.lengths)), [n - 1 for n in batch.lengths]
    with run.forward(batch, Forward(sites=("hidden", "block_output"))) as layers:
        for layer in layers:
            if layer.index == 0:
                yield -1, _numpy(layer.hidden[rows, last])
            yield layer.index, _numpy(layer.block_output[rows, last])


def _numpy(states: torch.Tensor) -> np.ndarray[Any, Any]:
    kind = torch.float64 if states.dtype == torch.float64 else torch.float32
    return states.detach().to("cpu", kind).numpy()


def _arrow(run: StageRun, keys: dict[str, list[int]], states: np.ndarray[Any, Any]) -> Any:
    import pyarrow as pa

    table = next(declared for declared in TABLES if declared.name == "states")
    order = np.lexsort([keys["layer"], keys["sample"]])
    n, width = states.shape
    flat = pa.array(states[order].ravel())
    columns = {name: pa.array([value] * n) for name, value in run.constants(table.keys).items()}
    columns |= {name: pa.array(np.asarray(values)[order]) for name, values in keys.items()}
    columns["state"] = pa.FixedSizeListArray.from_arrays(flat, width)
    return with_metadata(pa.table(columns), table, "hallucination_geometry")


def _prompts(run: StageRun, batch: Batch, table: pd.DataFrame, options: HallucinationOptions) -> None:
    rows = table.loc[list(batch.samples)]
    surprisal = np.full(len(rows), np.nan)
    try:
        likelihood = token_likelihood(run.model().model, run.inputs(batch), tokenizer=run.encoder.tokenizer)
        # what stands around all questions alike says nothing about one, and would dilute it
        surprisal = np.array(
            [
                -float(of_prompt[question_tokens(ids, run.encoder, options)].nanmean())
                for of_prompt, ids in zip(likelihood.log_likelihood, batch.token_ids, strict=True)
            ]
        )
    except (NotImplementedError, ValueError) as error:
        run.note(f"hallucination_geometry: no surprisal: {error}")
    names = ("bucket", "template", "pair", "fold", "answer", "question")
    run.write(
        "prompts",
        sample=list(batch.samples),
        tokens=list(batch.lengths),
        surprisal=surprisal,
        **{name: rows[name].tolist() for name in names},
    )


class Stored:
    """States of an earlier stage, a layer at a time.

    Args:
        run: of a stage that reads them.

    Raises:
        MissingError: none are stored.
    """

    def __init__(self, run: StageRun) -> None:
        self.run = run
        self.files = run.stored.files
        self._layers = self._stored_layers()
        if not self._layers:
            raise MissingError("no states are stored")

    def layer(self, layer: int, samples: Any) -> torch.Tensor:
        """Return [n, D] float64 of the samples, in their order."""
        if "states" not in self.files:
            sums = self.run.reduced(HELD, by=("sample",), layer=layer)
            rows = [sums[int(sample),].sum for sample in samples]
            return torch.from_numpy(np.stack(rows)).double()
        import pyarrow.dataset as ds

        table = dataset(self.files["states"]).to_table(
            columns=["sample", "state"], filter=ds.field("layer") == layer
        )
        flat = table["state"].combine_chunks().flatten().to_numpy()
        numbers = table["sample"].to_numpy()
        place = {int(sample): row for row, sample in enumerate(numbers)}
        states = flat.reshape(len(numbers), -1)[[place[int(sample)] for sample in samples]]
        return torch.from_numpy(states.astype(np.float64))

    def layers(self) -> list[int]:
        """Return numbers of the blocks that are stored."""
        return self._layers

    def _stored_layers(self) -> list[int]:
        if "states" not in self.files:
            return sorted(key[0] for key in self.run.reduced(HELD, by=("layer",)))
        column = dataset(self.files["states"]).to_table(columns=["layer"])["layer"]
        return sorted(column.unique().to_pylist())
