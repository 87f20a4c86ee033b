# SPDX-License-Identifier: MIT
"""The readout of every layer: the prediction that its states would give as the model's last ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import attnscope as asc
from attnscope.studies.hallucination_geometry.direction_sensitivity import first_token, prompt_text
from attnscope.studies.hallucination_geometry.states import Stored

if TYPE_CHECKING:
    from attnscope.study_api.stage_run import StageRun

#: Prompts that are read out together.
_TOGETHER = 256


def read_layers(run: StageRun, table: pd.DataFrame) -> None:
    """Write the table `lens` of a checkpoint or of a control; a model without a readout is noted."""
    model = run.model().model
    try:
        readout = asc.readout(model)
    except NotImplementedError as error:
        run.note(f"hallucination_geometry: no lens: {error}")
        return
    stored = Stored(run)
    parameter = next(model.parameters())
    answers = torch.tensor([_answer_token(run, answer) for answer in table["answer"]], device="cpu")
    samples = table["sample"].to_numpy()
    for layer in stored.layers():
        states = stored.layer(layer, table["sample"])
        for rows in torch.split(torch.arange(len(table), device="cpu"), _TOGETHER):
            with torch.no_grad():
                logits = readout(states[rows].to(parameter.device, parameter.dtype)).double().cpu()
            log_p = logits.log_softmax(-1)
            has_answer = answers[rows] >= 0
            log_p_answer = log_p.gather(1, answers[rows].clamp_min(0)[:, None])[:, 0]
            rank = (log_p > log_p_answer[:, None]).sum(-1)
            run.write(
                "lens",
                layer=layer,
                sample=samples[rows.numpy()],
                prediction_entropy=entropy(log_p),
                top=log_p.amax(-1).exp(),
                log_p_answer=torch.where(has_answer, log_p_answer, torch.nan),
                rank_answer=np.ma.array(rank.numpy(), mask=~has_answer.numpy()),
            )


def entropy(log_p: Tensor) -> Tensor:
    """Return the entropy in nats of log-probabilities [..., V]; tokens of probability 0 add nothing to it.

    >>> entropy(torch.tensor([1.0, 0.0]).log()).abs().item()
    0.0
    """
    return -(log_p.exp() * log_p.masked_fill(log_p == -torch.inf, 0)).sum(-1)


def _answer_token(run: StageRun, answer: str) -> int:
    """Return the first token of the first of several right answers, -1 where there is none."""
    if not answer:
        return -1
    token = first_token(run.encoder.tokenizer, prompt_text(run), " " + answer.split("|")[0])
    return -1 if token is None else token
