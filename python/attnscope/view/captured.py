# SPDX-License-Identifier: MIT
"""The attention of one stored sentence, captured again from the run's own model and token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.engine.results import Results
from attnscope.engine.schema import ResultsError

if TYPE_CHECKING:
    import pandas as pd


def captured_sentence(results: Results, sample: int) -> pd.DataFrame:
    """Every head's matrix of one sentence, at the last checkpoint that read it.

    Raises:
        ResultsError: the run has no such sentence, or its model is not where the study says.
    """
    import pandas as pd
    import torch

    from attnscope.engine.config import Study
    from attnscope.engine.forward import self_attention
    from attnscope.models import LoadError, find_checkpoints, load_model

    samples = results.table("samples")
    rows = samples[samples["sample"] == sample]
    if rows.empty:
        raise ResultsError(f"view: the run has no sample {sample}, only 0 to {samples['sample'].max()}")
    if not results.study:
        raise ResultsError("view: these results name no study, so the attention cannot be captured again")
    row = rows.sort_values(["model", "step", "revision"], kind="stable").iloc[-1]
    wanted = (row["model"], row["revision"], row["step"])
    study = Study(**results.study)
    try:
        source, checkpoint = next(
            (source, one)
            for source in study.models
            for one in find_checkpoints(source.path, source.revisions, source.label)
            if (one.model, one.revision, one.step) == wanted
        )
        loaded = load_model(checkpoint, dtype=source.dtype, trust_remote_code=source.trust_remote_code)
    except (StopIteration, FileNotFoundError, LoadError) as error:
        raise ResultsError(
            f"view: the model {wanted[0]} of the run cannot be loaded again: {error}"
        ) from error
    ids = torch.tensor([list(row["token_ids"])], device=loaded.device)
    found: list[dict[str, Any]] = []
    for number, layer in self_attention(loaded.model, {"input_ids": ids}, layers=study.layers or None):
        for head, matrix in zip(layer.heads, layer.attention[0].float().cpu(), strict=True):
            found.append(
                {
                    **dict(zip(("model", "revision", "step"), wanted, strict=True)),
                    "sample": sample,
                    "layer": number,
                    "head": head,
                    "n_tokens": ids.shape[1],
                    "attention": matrix.numpy().ravel(),
                }
            )
    frame: pd.DataFrame = pd.DataFrame(found)
    return frame
