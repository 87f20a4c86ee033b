# SPDX-License-Identifier: MIT
"""Position 0 as a dynamical system: each block maps its state to the next one, whatever follows in the text.

Tokens are read alone. The distance of their states from block to block tells if the system forgets
which token is first (contraction); the step of a state in a block tells if it has come to a fixed
point; the Jacobian along the path, what a small change of the state becomes. All are relative to the norm of
the states, since the residual stream grows.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.capture import Forward, edit, forward
from attnscope.capture.edits import AddDirection
from attnscope.statistics.groups import jackknife
from attnscope.studies.absolute_position.arms import draw_tokens, imposed, ordinary_tokens

if TYPE_CHECKING:
    from attnscope.study_api.stage_run import StageRun

Array = np.ndarray[Any, Any]
#: Size of the disturbance of a state, as a share of its norm.
_STEP = 1e-3
#: Fewest tokens whose distances have an interval.
FEWEST = 5
#: What is raised for models whose blocks cannot be captured or changed.
OUT_OF_REACH = (NotImplementedError, RuntimeError, KeyError)


def first_states(run: StageRun, tokens: list[int], options: Any) -> Tensor:
    """Return the states of tokens read alone, [L + 1, tokens, D] float64: entry, then every block."""
    model = run.model().model
    ids = torch.tensor(tokens, device=run.model().device)[:, None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    states: list[Tensor] = []
    spec = Forward(("hidden", "block_output"), edits=imposed(options))
    with forward(model, inputs, spec) as layers:
        for layer in layers:
            if not states:
                states.append(layer.hidden[:, 0].double().cpu())
            states.append(layer.block_output[:, 0].double().cpu())
    return torch.stack(states)


def log_distances(states: Array) -> Array:
    """Return the mean over pairs of log ‖a − b‖/√(‖a‖‖b‖), of states [..., tokens, D].

    >>> bool(abs(log_distances(np.eye(3)) - 0.5 * np.log(2)) < 1e-12)
    True
    """
    norms = np.linalg.norm(states, axis=-1)
    apart = np.linalg.norm(states[..., :, None, :] - states[..., None, :, :], axis=-1)
    first, second = np.triu_indices(states.shape[-2], 1)
    with np.errstate(divide="ignore"):
        relative = apart[..., first, second] / np.sqrt(norms[..., first] * norms[..., second])
        return np.asarray(np.log(relative).mean(-1))


def contraction(states: Array) -> float:
    """Return the mean change of log distance a block, of states [L + 1, tokens, D]; negative where they
    approach.

    >>> halves = np.stack([np.eye(3) + 10, np.eye(3) / 2 + 10, np.eye(3) / 4 + 10])
    >>> bool(abs(contraction(halves) + np.log(2)) < .05)
    True
    """
    path = log_distances(states)
    return float((path[-1] - path[0]) / (len(path) - 1))


def gains(run: StageRun, token: int, states: Tensor, options: Any) -> Array:
    """Return the relative gain of small random disturbances in each block along one token's path, [L].

    The root mean square over directions of ‖J u‖/‖u‖, times the norm before the block over that behind it:
    the size of the Jacobian J, below 1 where the block contracts. NaN in half precision, whose rounding is
    larger.
    """
    blocks = len(states) - 1
    if run.model().dtype not in ("float32", "float64", torch.float32, torch.float64):
        return np.full(blocks, np.nan)
    model, count = run.model().model, options.vectors
    ids = torch.full((2 * count, 1), token, device=run.model().device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    drawn = torch.from_numpy(run.rng("disturbances").standard_normal((count, states.shape[-1])))
    drawn = drawn / drawn.norm(dim=-1, keepdim=True)
    gains_of_blocks = np.full(blocks, np.nan)
    around = imposed(options)
    with edit(model, *around) if around else nullcontext():
        for block in range(blocks):
            size = _STEP * float(states[block].norm())
            value = torch.cat([drawn, -drawn]) * size
            change = AddDirection(block, value, positions=[0], site="hidden")
            with forward(
                model, inputs, Forward(("block_output",), layers=[block], edits=(change,))
            ) as layers:
                ends = next(iter(layers)).block_output[:, 0].double().cpu()
            moved = (ends[:count] - ends[count:]).norm(dim=-1) / (2 * size)
            relative = float(states[block].norm() / states[block + 1].norm())
            gains_of_blocks[block] = float(moved.square().mean().sqrt()) * relative
    return gains_of_blocks


def control(run: StageRun, options: Any) -> None:
    """Add the contraction of a model with random weights, for the same tokens, to the sum `contractions`."""
    first = int(run.unit.inputs[0].encoded.ids[0])
    tokens = list(dict.fromkeys([first, *ordinary_tokens(run, options)]))
    assert run.unit.checkpoint is not None
    if len(tokens) < 2:
        return
    try:
        states = first_states(run, tokens, options)
    except OUT_OF_REACH:
        return  # said of the model itself
    value = [contraction(states.numpy())]
    run.reduce("contractions", value, model=run.unit.checkpoint.model, seed=run.unit.seed)


def follow(run: StageRun, options: Any) -> None:
    """Write the tables `ordinary_tokens` and `dynamics` of a checkpoint, and its `overall` contraction."""
    tokens = draw_tokens(run, options)
    for draw, token in enumerate(tokens):
        run.write("ordinary_tokens", draw=draw, token=token)
    first = int(run.unit.inputs[0].encoded.ids[0])
    distinct_tokens = list(dict.fromkeys([first, *tokens]))
    try:
        states = first_states(run, distinct_tokens, options)
        gained = gains(run, first, states[:, 0], options)
    except OUT_OF_REACH as error:
        run.note(f"absolute_position: no dynamics of position 0: {error}")
        return
    states_of_tokens = np.moveaxis(states.numpy(), 1, 0)
    path = states[:, 0]
    distances = (
        np.exp(log_distances(states.numpy())) if len(distinct_tokens) >= 2 else np.full(len(states), np.nan)
    )
    blocks = len(states) - 1
    steps = ((path[1:] - path[:-1]).norm(dim=-1) / path[:-1].norm(dim=-1)).numpy()
    for at in range(blocks + 1):
        run.write(
            "dynamics",
            layer=at - 1,
            distance=distances[at],
            relative_step=steps[at - 1] if at else np.nan,
            gain=gained[at - 1] if at else np.nan,
            tokens=len(distinct_tokens),
        )
    if len(distinct_tokens) >= FEWEST:
        contraction_of_tokens = jackknife(
            states_of_tokens, lambda states: contraction(np.moveaxis(states, 0, 1))
        )
        run.write(
            "overall",
            statistic="contraction",
            estimate=contraction_of_tokens.estimate,
            low=contraction_of_tokens.low,
            high=contraction_of_tokens.high,
            n=len(distinct_tokens),
        )
