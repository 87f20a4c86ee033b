# SPDX-License-Identifier: MIT
"""Sensitivity of the next token along the boundary, with the difference of means put into a state.

Every number is compared with those of random directions of the same length: isotropic ones; those of the
covariance of what the boundary is a mean of (differences of pairs, states within their templates); and
differences of labels that are exchanged over states without the means of their buckets.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import attnscope as asc
from attnscope.capture import Gradient
from attnscope.capture.directions.sensitivity import sensitivity_of
from attnscope.capture.directions.steps import PromptSteps
from attnscope.capture.edits import AddDirection
from attnscope.errors import ConfigError, LoadError
from attnscope.statistics import benjamini_hochberg, max_t
from attnscope.studies.hallucination_geometry import published_protocol
from attnscope.studies.hallucination_geometry.contrasts import Contrast, chosen_prompts, contrasts
from attnscope.studies.hallucination_geometry.evidence import exceedance, null_ends
from attnscope.studies.hallucination_geometry.states import Stored

if TYPE_CHECKING:
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions
    from attnscope.study_api.stage_run import StageRun

Array = np.ndarray[Any, Any]
KINDS: tuple[Literal["isotropic", "covariance", "labels"], ...] = ("isotropic", "covariance", "labels")


def follow(run: StageRun, table: pd.DataFrame, options: HallucinationOptions) -> None:
    """Write the tables `sensitivity` and `readout`, and the tests of `contrasts` that belong to them."""
    assert options.sensitivity is not False
    stored = Stored(run)
    all_contrasts = contrasts(table, options, run.rng("contrasts"))
    spreads: dict[tuple[str, int], Tensor] = {}
    means: dict[tuple[str, int], Tensor] = {}
    nulls: dict[tuple[str, int], dict[str, Tensor]] = {}
    layers = [layer for layer in stored.layers() if layer >= 0]
    good = []
    read = _reader(run)
    gains: dict[tuple[str, int], Array] = {}
    for layer in layers:
        states = stored.layer(layer, table["sample"])
        if not bool(states.isfinite().all()):
            continue
        good.append(layer)
        for contrast in all_contrasts:
            states_of_contrast = states[
                torch.tensor(table["sample"].isin(contrast.table["sample"]).tolist(), device="cpu")
            ]
            labels = torch.from_numpy(contrast.labels == 1)
            means[contrast.name, layer] = states_of_contrast[labels].mean(0) - states_of_contrast[
                ~labels
            ].mean(0)
            nulls[contrast.name, layer] = directions_of_chance(
                contrast, states_of_contrast, options.sensitivity.directions, run.settings.seed
            )
            spreads[contrast.name, layer] = spread(contrast, states_of_contrast)
            if read is None:
                continue
            directions = many_directions(run, spreads, contrast, layer)
            # states that do not spread have no direction to compare with, and `_readout` leaves them out
            if bool(directions.isfinite().all()):
                gains[contrast.name, layer] = read.gain(directions).numpy()
    if "ruscio2026" in run.settings.protocols:
        published_protocol.measure(run, table, all_contrasts, good, options)
    if read is not None:
        _readout(run, read, all_contrasts, good, means, nulls, gains, options)
    try:
        gradients = _sensitivity(run, table, all_contrasts, good, means, nulls, options)
    except NotImplementedError as error:
        raise LoadError(
            f"hallucination_geometry: {error} (options.sensitivity.method; options.sensitivity: false leaves "
            "derivatives out)"
        ) from None
    _refusal_tests(run, all_contrasts, good, means, gradients, spreads)


def exact_model(run: StageRun, dtype: str) -> tuple[Any, str]:
    """Return the unit's model and the dtype of its derivatives; a wider copy where it is in half
    precision.
    """
    loaded = run.model()
    kinds = {p.dtype for p in loaded.model.parameters() if p.is_floating_point()}
    if not any(kind.itemsize < 4 for kind in kinds):
        return loaded.model, str(loaded.dtype).removeprefix("torch.")
    kind = getattr(torch, dtype)
    need = sum(p.numel() for p in loaded.model.parameters()) * kind.itemsize
    bound = run.settings.max_memory
    if bound is not None and need > int(bound):
        raise ConfigError(
            f"options.sensitivity: derivatives of {loaded.checkpoint.title} need a copy in {dtype} of "
            f"{need / 1e6:.0f} MB, more than max_memory, {int(bound) / 1e6:.0f} MB; false leaves them out"
        )
    run.note(
        f"hallucination_geometry: derivatives of {loaded.checkpoint.title} are taken in {dtype}, its "
        f"states in {str(loaded.dtype).removeprefix('torch.')}"
    )
    return copy.deepcopy(loaded.model).to(kind), dtype


def many_directions(
    run: StageRun, spreads: dict[tuple[str, int], Tensor], contrast: Contrast, layer: int
) -> Tensor:
    """Return as many directions of the covariance as there are permutations [m, D]; made again, not kept."""
    draws = int(run.settings.options["permutations"])
    return asc.null_directions(
        spreads[contrast.name, layer], "covariance", draws=draws, seed=run.settings.seed
    )


def next_tokens(tokenizer: Any, prompt: str, word: str) -> list[int]:
    """Return the ids from the first at which the prompt with a word behind it differs from the prompt alone.

    A word by itself may begin with another piece: SentencePiece puts a bare space before it.
    """
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    longer = tokenizer(prompt + word, add_special_tokens=False)["input_ids"]
    start = next(
        (at for at, pair in enumerate(zip(prompt_ids, longer, strict=False)) if pair[0] != pair[1]), None
    )
    return [int(token) for token in longer[min(len(prompt_ids), len(longer)) if start is None else start :]]


def first_token(tokenizer: Any, prompt: str, word: str) -> int | None:
    """Return the id that a word behind a prompt begins with.

    None: it is white space alone, or no piece of the vocabulary.
    """
    ids = next_tokens(tokenizer, prompt, word)
    if not ids or ids[0] == tokenizer.unk_token_id or not tokenizer.decode(ids[:1]).strip():
        return None
    return ids[0]


def refusal_ids(tokenizer: Any, prompt: str, words: list[str]) -> list[int]:
    """Return the first tokens of words behind a prompt; every word must have one that says something."""
    tokens = {word: first_token(tokenizer, prompt, word) for word in words}
    if refused := [word for word, token in tokens.items() if token is None]:
        pieces = {
            word: tokenizer.convert_ids_to_tokens(next_tokens(tokenizer, prompt, word)) for word in refused
        }
        raise ValueError(
            "options.sensitivity.refusal: expected words whose first token is more than white space, got "
            f"pieces {pieces}"
        )
    return sorted({token for token in tokens.values() if token is not None})


def _sensitivity(
    run: StageRun,
    table: pd.DataFrame,
    all_contrasts: list[Contrast],
    layers: list[int],
    means: dict[tuple[str, int], Tensor],
    nulls: dict[tuple[str, int], dict[str, Tensor]],
    options: HallucinationOptions,
) -> dict[tuple[str, int], list[Tensor]]:
    """Write the rows of `sensitivity`; return the refusal's gradients of every prompt."""
    assert options.sensitivity is not False
    how = options.sensitivity
    model, kind_of = exact_model(run, how.dtype)
    device = next(model.parameters()).device
    try:
        refusal: list[int] | None = refusal_ids(run.encoder.tokenizer, prompt_text(run), how.refusal)
    except ValueError as error:
        run.note(f"hallucination_geometry: {error}")
        refusal = None
    ids = {
        text.sentence.sample: torch.tensor(text.encoded.ids.tolist(), device="cpu")
        for text in run.unit.inputs
    }
    depth = max(layers, default=-1) + 1
    sizes_of_moves: dict[tuple[str, int], list[Array]] = {}
    slopes: dict[tuple[str, int], list[Tensor]] = {}
    for contrast in all_contrasts:
        chosen = chosen_prompts(contrast, how.prompts, run.rng("sensitivity"))
        for sample, other in zip(chosen["sample"], chosen["other"], strict=True):
            steps = PromptSteps(model, ids[sample].to(device))
            gradients = _gradients(steps, refusal)
            for layer in layers:
                boundary = means[contrast.name, layer].float().double()
                norm = float(boundary.norm())
                if not norm > 0:
                    continue
                kinds, draws, directions = _directions(boundary / norm, nulls[contrast.name, layer])
                # the state moves towards the other bucket
                move = norm if other == 0 else -norm
                columns = _measure_directions(
                    steps, layer, directions, move, depth=depth, refusal=refusal, method=how.method
                )
                run.write(
                    "sensitivity",
                    sample=sample,
                    layer=layer,
                    contrast=contrast.name,
                    direction=kinds,
                    draw=draws,
                    compute_dtype=kind_of,
                    **columns,
                    **_alignments(directions, gradients, layer),
                )
                sizes = np.stack([columns["directional_fisher"], columns["transport_kl"]])
                sizes_of_moves.setdefault((contrast.name, layer), []).append(sizes)
                if gradients["refusal"] is not None:
                    slopes.setdefault((contrast.name, layer), []).append(gradients["refusal"][layer])
    _tests(run, all_contrasts, layers, sizes_of_moves, nulls)
    return slopes


def _directions(boundary: Tensor, drawn: dict[str, Tensor]) -> tuple[list[str], list[int], Tensor]:
    """Return kinds, numbers and vectors of the boundary, then of the finite random directions."""
    named = [("boundary", -1, boundary)]
    named += [
        (kind, number, direction)
        for kind, directions in drawn.items()
        for number, direction in enumerate(directions)
        if bool(direction.isfinite().all())
    ]
    kinds, draws, vectors = zip(*named, strict=True)
    return list(kinds), list(draws), torch.stack(vectors)


def _measure_directions(
    steps: PromptSteps,
    layer: int,
    directions: Tensor,
    move: float,
    *,
    depth: int,
    refusal: list[int] | None,
    method: Literal["jvp", "difference"],
) -> dict[str, Any]:
    """Return the columns of `sensitivity` for a prompt's state, with an entry for each direction [m, d].

    Args:
        move: signed length by which the state moves along a direction; its size scales what is transported.
    """
    measured = sensitivity_of(
        steps, layer, directions, depth=depth, refusal=refusal, method=method, curved=False
    )
    # curvature costs a pass each, and is read along the boundary alone
    curvature = sensitivity_of(
        steps, layer, directions[:1], depth=depth, refusal=refusal, method=method
    ).curvature
    state, kl = _moved(steps, layer, directions * move)
    fisher, size, norm = measured.directional_fisher.numpy(), float(state.norm()), abs(move)
    return {
        "state_norm": size,
        "directional_fisher": fisher,
        "relative_fisher": size**2 * fisher,
        "transport_fisher": norm**2 * fisher,
        "transport_kl": kl,
        "curvature": np.append(curvature.numpy(), np.full(len(directions) - 1, np.nan)),
        "entropy_slope": measured.entropy_slope.numpy() * norm,
        "refusal_slope": measured.refusal_slope.numpy() * norm,
        "amplification": measured.amplification.numpy(),
    }


def _alignments(directions: Tensor, gradients: dict[str, Any], layer: int) -> dict[str, Array]:
    """Return the cosine of each direction with the gradients of refusal and loss; NaN without a gradient."""
    return {
        f"{name}_alignment": np.full(len(directions), np.nan)
        if gradient is None
        else (directions @ gradient[layer] / gradient[layer].norm().clamp_min(1e-300)).numpy()
        for name, gradient in gradients.items()
    }


def prompt_text(run: StageRun) -> str:
    """Return the text of the unit's first prompt, behind which words are tokenised."""
    return str(run.unit.inputs[0].sentence.text)


def _refusal_tests(
    run: StageRun,
    all_contrasts: list[Contrast],
    layers: list[int],
    means: dict[tuple[str, int], Tensor],
    gradients: dict[tuple[str, int], list[Tensor]],
    spreads: dict[tuple[str, int], Tensor],
) -> None:
    """Write the mean cosine of the refusal's gradient with the boundary, among random directions."""
    for contrast in all_contrasts:
        for layer in layers:
            slopes = gradients.get((contrast.name, layer))
            if not slopes:
                continue
            stacked = torch.stack(slopes)
            unit = (stacked / stacked.norm(dim=-1, keepdim=True).clamp_min(1e-300)).mean(0)
            v = means[contrast.name, layer].double()
            value = abs(float(unit @ v / v.norm()))
            drawn = (many_directions(run, spreads, contrast, layer).double() @ unit).abs().numpy()
            drawn = drawn[np.isfinite(drawn)]
            below, above = int((drawn <= value).sum()), int((drawn >= value).sum())
            is_tested = len(drawn) > 0 and math.isfinite(value)
            p_value = min(1.0, 2 * (1 + min(below, above)) / (1 + len(drawn))) if is_tested else math.nan
            ends = null_ends(drawn)
            run.write(
                "contrasts",
                layer=layer,
                contrast=contrast.name,
                quantity="refusal_alignment",
                k=0,
                protocol="exact",
                value=value,
                null_mean=float(drawn.mean()) if len(drawn) else math.nan,
                null_low=ends[0],
                null_high=ends[1],
                p_value=p_value,
                correction="",
                n_pairs=contrast.n,
                labellings=float(len(drawn)),
            )


def _gradients(steps: PromptSteps, refusal: list[int] | None) -> dict[str, Any]:
    """Return gradients of the logit of refusal and of the likeliest token's loss, by layer, at the last
    token.
    """

    def refused(out: Any) -> Tensor:
        log_p = out.logits[0, -1].double().log_softmax(-1)
        inside = torch.zeros_like(log_p, dtype=torch.bool)
        inside[refusal] = True
        return log_p[inside].logsumexp(0) - log_p[~inside].logsumexp(0)

    def loss(out: Any) -> Tensor:
        log_p = out.logits[0, -1].double().log_softmax(-1)
        return -log_p[log_p.argmax().detach()]

    gradients: dict[str, Any] = {"refusal": None, "loss": None}
    for name, of in (("refusal", refused), ("loss", loss)):
        if name == "refusal" and refusal is None:
            continue
        layers, _ = steps.step(1, sites=("logits",), gradient=Gradient(of, ("block_output",)))
        gradients[name] = [layer.gradients["block_output"][0, -1].double().cpu() for layer in layers]
    return gradients


def _moved(steps: PromptSteps, layer: int, moves: Tensor) -> tuple[Tensor, Array]:
    """Return the state, and half the symmetric divergence of the next token when it moves [m]."""
    layers, outputs = steps.step(1, sites=("block_output", "logits"), layers=[layer])
    state = layers[0].block_output[0, -1].double().cpu()
    p = outputs.logits[0, -1].double().log_softmax(-1)
    edit = AddDirection(layer, moves[:, None].to(steps.ids.device), "last", steps="all")
    _, moved = steps.step(len(moves), (edit,))
    q = moved.logits[:, -1].double().log_softmax(-1)
    return state, (0.5 * ((p.exp() - q.exp()) * (p - q)).sum(-1)).cpu().numpy()


def _tests(
    run: StageRun,
    all_contrasts: list[Contrast],
    layers: list[int],
    sizes_of_moves: dict[tuple[str, int], list[Array]],
    nulls: dict[tuple[str, int], dict[str, Tensor]],
) -> None:
    """Write the boundary's mean log sensitivity with those of random directions."""
    for contrast in all_contrasts:
        measured = [layer for layer in layers if (contrast.name, layer) in sizes_of_moves]
        if not measured:
            continue
        logs: dict[int, Array] = {}
        places: dict[int, dict[str, slice]] = {}
        for layer in measured:
            with np.errstate(divide="ignore"):
                logs[layer] = np.log(np.stack(sizes_of_moves[contrast.name, layer])).mean(0)
            sizes = [
                int(directions.isfinite().all(1).sum()) for directions in nulls[contrast.name, layer].values()
            ]
            ends = np.cumsum([1, *sizes])
            places[layer] = {kind: slice(ends[at], ends[at + 1]) for at, kind in enumerate(KINDS)}
        drawn = {layer: logs[layer][0, places[layer]["covariance"]] for layer in measured}
        spreading = [layer for layer in measured if len(drawn[layer])]
        if spreading:
            fisher = np.array([logs[layer][0, 0] for layer in spreading])
            others = np.stack([drawn[layer] for layer in spreading], 1)
            _rows(run, contrast, "log_fisher_ratio", spreading, fisher, others)
        _transport_rows(run, contrast, measured, logs, places)


def _transport_rows(
    run: StageRun,
    contrast: Contrast,
    layers: list[int],
    logs: dict[int, Array],
    places: dict[int, dict[str, slice]],
) -> None:
    """Write how much more the output moves along the difference than along random directions.

    The value is that over isotropic directions. Its p is the larger of two, among isotropic directions and
    among differences of exchanged labels, and 1 where the two disagree about the side; over layers by
    Bonferroni.
    """
    rows = []
    for layer in layers:
        value = float(logs[layer][1, 0])
        drawn = {kind: logs[layer][1, places[layer][kind]] for kind in ("isotropic", "labels")}
        # labels of states that do not spread give no direction
        sides = {value > float(np.mean(null)) for null in drawn.values() if len(null)}
        p_values = [exceedance(value, null) for null in drawn.values()]
        p_value = 1.0 if len(sides) > 1 else float(np.max(p_values))
        rows.append((layer, value, drawn["isotropic"], math.nan if np.isnan(p_values).any() else p_value))
    tested = sum(not math.isnan(p_value) for *_, p_value in rows)
    for layer, value, null, p_value in rows:
        centre = float(np.mean(null))
        low, high = null_ends(null - centre)
        run.write(
            "contrasts",
            layer=layer,
            contrast=contrast.name,
            quantity="log_transport_ratio",
            k=0,
            protocol="exact",
            value=value - centre,
            null_mean=0.0,
            null_low=low,
            null_high=high,
            p_value=p_value,
            p_adjusted=min(1.0, tested * p_value),
            correction="" if math.isnan(p_value) else "Bonferroni over layers",
            n_pairs=contrast.n,
            labellings=float(len(null)),
        )


def directions_of_chance(contrast: Contrast, states: Tensor, draws: int, seed: int) -> dict[str, Tensor]:
    """Return random directions [draws, D] of each kind."""
    return {
        "isotropic": asc.null_directions(states, "isotropic", draws=draws, seed=seed),
        "covariance": asc.null_directions(spread(contrast, states), "covariance", draws=draws, seed=seed),
        "labels": exchanged_directions(contrast, states, draws, seed),
    }


def exchanged_directions(
    contrast: Contrast, states: Tensor, draws: int, seed: int, rows: Array | None = None
) -> Tensor:
    """Return unit differences of means of exchanged labels [draws, D], exchanged as in the contrast's tests.

    The states are taken without the means of their buckets. With them, a large difference is most of nearly
    every exchanged one, so that these lie along the boundary themselves.

    Args:
        contrast: of the two buckets.
        states: [n, D] of its prompts, or of `rows` of them.
        draws: number of directions.
        seed: of the draws.
        rows: the prompts that the states are of; None: all.
    """
    rows = np.ones(len(contrast.labels), dtype=bool) if rows is None else rows
    centred = within_buckets(states, contrast.labels[rows]).double().numpy()

    def differences(labellings: Array) -> Array:
        weights = labellings / labellings.sum(1, keepdims=True)
        return (weights - ~labellings / (~labellings).sum(1, keepdims=True)) @ centred

    part = contrast.of_rows(rows)
    if part.nested:  # of templates that lie in one bucket each there are too few labellings
        part = dataclasses.replace(part, templates=np.zeros_like(part.templates))
    drawn = torch.from_numpy(part.exchange(differences, draws, seed).drawn)
    return drawn / drawn.norm(dim=-1, keepdim=True)


def within_buckets(states: Tensor, labels: Array) -> Tensor:
    """Return states [n, D] less the mean of their bucket; labels: [n], 1 and another value."""
    centred = states.clone()
    first = torch.from_numpy(labels == 1)
    for rows in (first, ~first):
        centred[rows] -= states[rows].mean(0)
    return centred


def spread(contrast: Contrast, states: Tensor) -> Tensor:
    """Return the sample that the boundary's chance part is made of.

    It is differences of pairs, or states without the means of their buckets and templates.
    """
    if contrast.pairs is not None:
        order = np.lexsort([contrast.labels, contrast.pairs])
        pairs = states[torch.from_numpy(order)].reshape(-1, 2, states.shape[1])
        return pairs[:, 1] - pairs[:, 0]
    states = within_buckets(states, contrast.labels)
    if contrast.nested:
        return states
    groups = torch.from_numpy(contrast.templates)
    sums = torch.zeros(int(groups.max()) + 1, states.shape[1], dtype=states.dtype, device="cpu").index_add(
        0, groups, states
    )
    return states - (sums / groups.bincount()[:, None])[groups]


def p_values_of_layers(observed: Array, others: Array) -> tuple[Array, Array]:
    """Return the p of values [L] among those of random directions [m, L], two-sided, and p over layers by
    max-T.

    All are centred at the mean of all, the observed one among them: so that it is one of m + 1 that none
    tells apart where there is no effect.
    """
    centred = np.concatenate([observed[None], others])
    centred = np.abs(centred - centred.mean(0))
    reached = ~(centred[1:] < centred[0] * (1 - 1e-12))
    p = np.where(np.isfinite(centred[0]), (1 + reached.sum(0)) / (1 + len(others)), math.nan)
    return p, max_t(centred[0], centred[1:]).p_adjusted


def _rows(
    run: StageRun, contrast: Contrast, name: str, layers: list[int], observed: Array, others: Array
) -> None:
    """Write logarithms of a number of the boundary [L] over the mean of random directions [m, L]."""
    centre = others.mean(0)
    p_values, adjusted = p_values_of_layers(observed, others)
    for at, layer in enumerate(layers):
        low, high = null_ends(others[:, at] - centre[at])
        run.write(
            "contrasts",
            layer=layer,
            contrast=contrast.name,
            quantity=name,
            k=0,
            protocol="exact",
            value=observed[at] - centre[at],
            null_mean=0.0,
            null_low=low,
            null_high=high,
            p_value=p_values[at],
            p_adjusted=adjusted[at],
            correction="max-T over layers" if np.isfinite(p_values[at]) else "",
            n_pairs=contrast.n,
            labellings=float(len(others)),
        )


def _reader(run: StageRun) -> Any:
    """Return the model's readout with its Gram matrix; None where it has none, which is noted."""
    try:
        read = asc.readout(run.model().model)
        len(read.gram)
    except NotImplementedError as error:
        run.note(f"hallucination_geometry: no readout: {error}")
        return None
    return read


def _readout(
    run: StageRun,
    read: Any,
    all_contrasts: list[Contrast],
    layers: list[int],
    means: dict[tuple[str, int], Tensor],
    nulls: dict[tuple[str, int], dict[str, Tensor]],
    gains: dict[tuple[str, int], Array],
    options: HallucinationOptions,
) -> None:
    """Write the share of the boundary in what the logits read; `gains` are those of directions of the
    covariance.
    """
    rows: list[dict[str, Any]] = []
    for contrast in all_contrasts:
        values, drawn, measured = [], [], []
        for layer in layers:
            v, random = means[contrast.name, layer], nulls[contrast.name, layer]["covariance"]
            if not float(v.norm()) > 0 or not bool(random.isfinite().all()):
                continue
            measured.append(layer)
            gain, others = float(read.gain(v)), gains[contrast.name, layer]
            values.append(math.log(gain))
            drawn.append(np.log(others))
            ends = null_ends(others)
            for k in (size for size in options.readout_k if size <= len(read.gram)):
                top, bottom = read.share(v, k), read.share(v, k, "bottom")
                shares = [
                    [read.share(direction, k, which).share for direction in random]
                    for which in ("top", "bottom")
                ]
                named = {"layer": layer, "contrast": contrast.name, "k": k, "chance": top.chance}
                rows.append(
                    {
                        **named,
                        "direction": "boundary",
                        "readout_gain": gain,
                        "top_share": top.share,
                        "bottom_share": bottom.share,
                        "p_value": top.p_value,
                        "low": np.nan,
                        "high": np.nan,
                    }
                )
                rows.append(
                    {
                        **named,
                        "direction": "covariance",
                        "readout_gain": float(others.mean()),
                        "top_share": float(np.mean(shares[0])),
                        "bottom_share": float(np.mean(shares[1])),
                        "p_value": np.nan,
                        "low": ends[0],
                        "high": ends[1],
                    }
                )
        if measured:
            _rows(run, contrast, "log_gain_ratio", measured, np.array(values), np.stack(drawn, 1))
    for row, value in zip(rows, benjamini_hochberg([row["p_value"] for row in rows]), strict=True):
        correction = "" if np.isnan(value) else "benjamini_hochberg"
        run.write("readout", **row, p_adjusted=value, correction=correction)
