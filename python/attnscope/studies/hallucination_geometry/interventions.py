# SPDX-License-Identifier: MIT
"""Interventions: a detector wired to a refusal, moved states, and compressed states.

Each is done to every bucket, on prompts whose templates nothing was fitted to, with controls that should
do nothing: a constant detector, a shuffled one, one of lengths, one of a model with random weights; random
directions of the same length; random subspaces of the same size.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import attnscope as asc
from attnscope.capture import Forward
from attnscope.capture.directions.steps import keeps_recurrent_states
from attnscope.capture.edits import AddDirection
from attnscope.capture.edits.edit import cache_name
from attnscope.statistics.detection import narrowed, probe_scores
from attnscope.studies.hallucination_geometry.answers import Choice, correct, decoded, ended, loops, refused
from attnscope.studies.hallucination_geometry.contrasts import Contrast, chosen_prompts, contrasts
from attnscope.studies.hallucination_geometry.direction_sensitivity import (
    KINDS,
    exchanged_directions,
    prompt_text,
    refusal_ids,
    within_buckets,
)
from attnscope.studies.hallucination_geometry.states import Stored
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions, InterventionOptions
    from attnscope.study_api.stage_run import StageRun

Array = np.ndarray[Any, Any]
#: Gains in units of the median gap between the likeliest token and the refusal's.
GAP_GAINS = (0.5, 1.0, 2.0)


@dataclass
class AskedPrompt:
    """One prompt with what the unchanged model does with it."""

    sample: int
    ids: Tensor
    answer: str
    logits: Tensor
    text: str
    forced: str
    again: str
    choice: Choice


def intervene(run: StageRun, table: pd.DataFrame, options: HallucinationOptions) -> None:
    """Write the rows of `interventions`."""
    how = options.interventions
    assert how is not False
    model = run.model().model
    try:
        words = options.sensitivity.refusal if options.sensitivity is not False else [" unknown"]
        words = [how.target] if how.target is not None else words
        target = refusal_ids(run.encoder.tokenizer, prompt_text(run), words)[0]
    except ValueError as error:
        run.note(f"hallucination_geometry: no bypass: {error}")
        target = None
    stored = Stored(run)
    if how.temperature:
        run.note(f"hallucination_geometry: answers are drawn at temperature {how.temperature}")
    blocks = [layer for layer in stored.layers() if layer >= 0]
    layers = sorted({blocks[min(len(blocks) - 1, int(depth * len(blocks)))] for depth in how.depths})
    answers: dict[int, AskedPrompt] = {}
    for contrast in contrasts(table, options, run.rng("contrasts")):
        chosen = _fitted_elsewhere(
            run, contrast, chosen_prompts(contrast, how.prompts, run.rng("interventions"))
        )
        if chosen.empty:
            continue
        for sample in chosen["sample"]:
            if int(sample) not in answers:
                answers[int(sample)] = ask(run, model, int(sample), table, target, how)
        for layer in layers:
            states = stored.layer(layer, contrast.table["sample"])
            if not bool(states.isfinite().all()):
                continue
            if how.temperature:
                prompts = [answers[int(sample)] for sample in chosen["sample"]]
                _write(
                    run,
                    contrast,
                    layer,
                    prompts,
                    [prompt.again for prompt in prompts],
                    arm="baseline",
                    control="seed",
                    draw=-1,
                    strength=how.temperature,
                    forced=np.zeros(len(prompts), bool),
                )
            if target is not None:
                _bypass(run, contrast, chosen, layer, states, answers, target, how)
            _move(run, model, contrast, chosen, layer, states, answers, how)


def _fitted_elsewhere(run: StageRun, contrast: Contrast, chosen: pd.DataFrame) -> pd.DataFrame:
    """Return the prompts whose other folds hold both buckets: nothing is fitted to the others."""
    fitted = [
        int(fold)
        for fold in np.unique(contrast.folds)
        if len(set(contrast.labels[contrast.folds != fold].tolist())) == 2
    ]
    held_out = where(chosen, sample=contrast.table["sample"][np.isin(contrast.folds, fitted)].tolist())
    if len(held_out) < len(chosen):
        run.note(
            f"hallucination_geometry: no interventions in {len(chosen) - len(held_out)} of {len(chosen)} "
            f"prompts of the contrast {contrast.name!r}: the other folds lack a bucket, so that nothing can "
            "be fitted without them (options.fold)"
        )
    return held_out


def ask(
    run: StageRun, model: Any, sample: int, table: pd.DataFrame, target: int | None, how: InterventionOptions
) -> AskedPrompt:
    """Return the prompt's next token, its answer, and the continuation of the refusal token."""
    ids = next(text.encoded.ids for text in run.unit.inputs if text.sentence.sample == sample)
    prompt = torch.tensor(ids.tolist(), device=run.model().device)[None]
    tokenizer = run.encoder.tokenizer
    seed = int(run.rng("answers", sample).integers(2**31))
    choice = Choice(how.temperature, seed)
    no_move = torch.zeros(1, dtype=torch.float32, device="cpu")
    logits, new = steered(model, prompt[0], 0, no_move, how.tokens, choice)
    again = ""
    if how.temperature:
        other = Choice(how.temperature, seed + 1)
        again = decoded(tokenizer, steered(model, prompt[0], 0, no_move, how.tokens, other)[1][0])
    forced = ""
    if target is not None and not how.every_step:
        longer = torch.cat([prompt[0], torch.tensor([target], device=prompt.device)])
        forced = decoded(tokenizer, steered(model, longer, 0, no_move, how.tokens, choice)[1][0])
    answer = str(where(table, sample=sample)["answer"].iloc[0])
    text = decoded(tokenizer, new[0])
    return AskedPrompt(sample, prompt[0], answer, logits[0], text, forced, again, choice)


def detectors(contrast: Contrast, states: Tensor, seed: int, random: Array | None = None) -> dict[str, Array]:
    """Return held-out chances [n] that a prompt is of the other bucket, of the probe and of its controls."""

    def chances(scores: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(-np.clip(scores, -50, 50))))

    probe = chances(probe_scores(narrowed(states.numpy()), contrast.labels, contrast.folds))
    by_name = {
        "probe": probe,
        "constant": np.full(len(probe), probe.mean()),
        "shuffled": np.random.default_rng(seed).permutation(probe),
        "length": chances(
            probe_scores(contrast.table["tokens"].to_numpy(float)[:, None], contrast.labels, contrast.folds)
        ),
    }
    if random is not None:
        by_name["random_weights"] = random
    return by_name


def bypassed(logits: Array, target: int, gains: Array) -> Array:
    """Return which targets become the likeliest token when their logit is raised: [n] of logits [n, V]."""
    raised = logits.copy()
    raised[:, target] += gains
    return np.asarray(raised.argmax(1) == target)


def _bypass(
    run: StageRun,
    contrast: Contrast,
    chosen: pd.DataFrame,
    layer: int,
    states: Tensor,
    answers: dict[int, AskedPrompt],
    target: int,
    how: InterventionOptions,
) -> None:
    place = {int(sample): at for at, sample in enumerate(contrast.table["sample"])}
    rows = [place[int(sample)] for sample in chosen["sample"]]
    prompts = [answers[int(sample)] for sample in chosen["sample"]]
    logits = np.stack([prompt.logits.numpy() for prompt in prompts])
    gap = float(np.median(logits.max(1) - logits[:, target]))
    random = _random_chances(run, contrast, layer)
    detectors_by_name = {
        name: chances
        for name, chances in detectors(contrast, states, run.settings.seed, random).items()
        if np.isfinite(chances[rows]).all()
    }
    arms = [("bypass", gain) for gain in how.gains] + [("bypass_gap", gap * factor) for factor in GAP_GAINS]
    texts = _raised_texts(run, prompts, rows, detectors_by_name, arms, layer, target, how)
    for name, chances in detectors_by_name.items():
        for arm, gain in arms:
            forced = bypassed(logits, target, gain * chances[rows]) & (gain > 0)
            answered = texts.get((name, arm, gain)) or [
                prompt.forced if force else prompt.text for prompt, force in zip(prompts, forced, strict=True)
            ]
            _write(
                run,
                contrast,
                layer,
                prompts,
                answered,
                arm=arm,
                control=name,
                draw=-1,
                strength=gain,
                forced=forced,
            )


def _raised_texts(
    run: StageRun,
    prompts: list[AskedPrompt],
    rows: list[int],
    detectors_by_name: dict[str, Array],
    arms: list[tuple[str, float]],
    layer: int,
    target: int,
    how: InterventionOptions,
) -> dict[tuple[str, str, float], list[str]]:
    """Return answers by detector, arm and gain where every token's logit is raised; {} where the first is."""
    texts: dict[tuple[str, str, float], list[str]] = {}
    if not how.every_step:
        return texts
    model = run.model().model
    for prompt, row in zip(prompts, rows, strict=True):
        keys = [(name, arm, gain) for name in detectors_by_name for arm, gain in arms]
        raised = torch.zeros(len(keys), prompt.logits.shape[-1], dtype=torch.float32, device="cpu")
        raised[:, target] = torch.tensor(
            [gain * detectors_by_name[name][row] for name, _, gain in keys], device="cpu"
        )
        new = steered(
            model,
            prompt.ids,
            layer,
            torch.zeros(len(keys), dtype=torch.float32, device="cpu"),
            how.tokens,
            prompt.choice,
            raised=raised,
        )[1]
        for key, ids in zip(keys, new, strict=True):
            left = ids[int((ids != target).long().argmax()) if bool((ids != target).any()) else len(ids) :]
            texts.setdefault(key, []).append(decoded(run.encoder.tokenizer, left))
    return texts


def _random_chances(run: StageRun, contrast: Contrast, layer: int) -> Array | None:
    """Return the probe's scores on states of a model with random weights; None where the control is off."""
    if not run.settings.options["nulls"] or "random_weights" not in run.settings.options["nulls"]:
        return None
    from attnscope.models.loading import random_weights_model

    checkpoint = run.unit.checkpoint
    assert checkpoint is not None
    source = run.settings.models[run.unit.source]
    model = random_weights_model(
        checkpoint,
        seed=run.settings.seed,
        dtype=source.dtype,
        device=source.device,
        trust_remote_code=source.trust_remote_code,
    ).model
    samples = set(contrast.table["sample"])
    states_by_sample: dict[int, Tensor] = {}
    for batch in run.batches():
        if not samples & set(batch.samples):
            continue
        with run.forward(batch, Forward(sites=("block_output",), layers=[layer]), model=model) as layers:
            states = next(iter(layers)).block_output
            for row, (sample, n) in enumerate(zip(batch.samples, batch.lengths, strict=True)):
                states_by_sample[sample] = states[row, n - 1].double().cpu()
    data = torch.stack([states_by_sample[int(sample)] for sample in contrast.table["sample"]]).numpy()
    scores = probe_scores(narrowed(data), contrast.labels, contrast.folds)
    return np.asarray(1 / (1 + np.exp(-np.clip(scores, -50, 50))))


def _move(
    run: StageRun,
    model: Any,
    contrast: Contrast,
    chosen: pd.DataFrame,
    layer: int,
    states: Tensor,
    answers: dict[int, AskedPrompt],
    how: InterventionOptions,
) -> None:
    """Write what steering and compression add to the state, on the folds that it was not fitted to."""
    place = {int(sample): at for at, sample in enumerate(contrast.table["sample"])}
    fitted: dict[int, _Fitted] = {}
    for sample in chosen["sample"]:
        prompt, at = answers[int(sample)], place[int(sample)]
        fold = int(contrast.folds[at])
        if fold not in fitted:
            fitted[fold] = _Fitted(states, contrast, contrast.folds != fold, how, run.settings.seed)
        named, moves = fitted[fold].moves(states[at], how)
        always = [how.every_step and key["arm"] != "compression" for key in named]
        logits, new = steered(
            model,
            prompt.ids,
            layer,
            moves,
            how.tokens,
            prompt.choice,
            always=torch.tensor(always, device="cpu"),
        )
        base = prompt.logits.log_softmax(-1)
        kl = (base.exp() * (base - logits.log_softmax(-1))).sum(-1).numpy()
        texts = [decoded(run.encoder.tokenizer, ids) for ids in new]
        columns = {name: [key[name] for key in named] for name in ("arm", "control", "draw", "strength")}
        _write(
            run,
            contrast,
            layer,
            [prompt] * len(texts),
            texts,
            forced=np.zeros(len(texts), bool),
            kl=kl,
            **columns,
        )


class _Fitted:
    """Directions of the training folds: differences of means, random ones, main directions."""

    def __init__(
        self, states: Tensor, contrast: Contrast, train: Array, how: InterventionOptions, seed: int
    ) -> None:
        states_of_folds, labels = states[train], torch.from_numpy(contrast.labels[train] == 1)
        v = states_of_folds[labels].mean(0) - states_of_folds[~labels].mean(0)
        self.directions = [("boundary", -1, v)]
        without_difference = within_buckets(states_of_folds, contrast.labels[train])
        for kind in KINDS:
            drawn = (
                exchanged_directions(contrast, states_of_folds, how.controls, seed, train)
                if kind == "labels"
                else asc.null_directions(without_difference, kind, draws=how.controls, seed=seed)
            )
            # states that do not spread have no such direction, and a move of length 0 is no control
            self.directions += [
                (kind, at, v.norm() * direction)
                for at, direction in enumerate(drawn)
                if bool(direction.isfinite().all())
            ]
        self.centre = states_of_folds[~labels].mean(0)
        main = _main(states_of_folds[~labels] - self.centre)
        other = _main(states_of_folds[labels] - states_of_folds[labels].mean(0))[:, : main.shape[1]]
        generator = torch.Generator().manual_seed(seed)
        self.subspaces = [("reference", -1, main), ("other", -1, other)]
        for draw in range(how.controls):
            haar = torch.linalg.qr(
                torch.randn(main.shape, generator=generator, dtype=torch.float64, device="cpu")
            )[0]
            self.subspaces.append(("haar", draw, haar))

    def moves(self, state: Tensor, how: InterventionOptions) -> tuple[list[dict[str, Any]], Tensor]:
        """Return the moves that are added to a state, with their names."""
        named, added = [], []
        size = state.norm()
        for control, draw, v in self.directions:
            steps = [("steering", size, size * v) for size in how.alphas]
            steps += [
                ("steering_relative", share, share * size * v / v.norm()) for share in how.relative_alphas
            ]
            for arm, strength, move in steps:
                for sign in (1, -1):
                    named.append({"arm": arm, "control": control, "draw": draw, "strength": sign * strength})
                    added.append(sign * move)
        for control, draw, basis in self.subspaces:
            rest = state - self.centre
            for strength in how.lambdas:
                named.append({"arm": "compression", "control": control, "draw": draw, "strength": strength})
                added.append(strength * (basis @ (basis.T @ rest) - rest))
        moves = torch.stack(added)
        return named, torch.where(moves.isfinite(), moves, 0.0)


def _main(centred: Tensor) -> Tensor:
    """Return the directions [D, k] that hold 95 % of the variance."""
    _, values, turned = torch.linalg.svd(centred, full_matrices=False)
    share = values.square().cumsum(0) / values.square().sum().clamp_min(1e-300)
    return turned[: int((share < 0.95).sum()) + 1].T


def steered(
    model: Any,
    ids: Tensor,
    layer: int,
    moves: Tensor,
    tokens: int,
    choice: Choice | None = None,
    *,
    always: Tensor | None = None,
    raised: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return next-token logits [m, V] and continuations [m, tokens] of a prompt whose last state moves.

    The moves are a batch on one cache.

    Args:
        ids: [n], the prompt.
        moves: [m, D]; [m] zeros move nothing.
        always: [m], which moves go to every generated token too; None: none.
        raised: [m, V], added to the logits of every step.
    """
    size = len(moves)
    choice = Choice() if choice is None else choice
    generator = choice.generator()
    rows_of_ids = ids[None].expand(size, -1)
    mask = torch.ones_like(rows_of_ids)
    later = torch.zeros(size, dtype=torch.bool, device="cpu") if always is None else always

    def moved(moves_of_rows: Tensor) -> AbstractContextManager[Any]:
        if moves_of_rows.ndim == 1 or not bool((moves_of_rows != 0).any()):
            return nullcontext()
        return asc.edit(
            model, AddDirection(layer, moves_of_rows[:, None].to(ids.device), "last", steps="all")
        )

    with torch.no_grad():
        cache, cache_argument = None, cache_name(model)
        if len(ids) > 1:
            cache = getattr(model(input_ids=ids[None, :-1], use_cache=True), cache_argument)
            if keeps_recurrent_states(cache):
                cache = getattr(model(input_ids=rows_of_ids[:, :-1], use_cache=True), cache_argument)
            else:
                cache.batch_repeat_interleave(size)
            rows_of_ids = rows_of_ids[:, -1:]
        with moved(moves):
            outputs = model(
                input_ids=rows_of_ids, attention_mask=mask, use_cache=True, **{cache_argument: cache}
            )
        logits = outputs.logits[:, -1].double().cpu()
        new = []
        for at in range(tokens):
            seen = outputs.logits[:, -1]
            seen = seen if raised is None else seen + raised.to(seen)
            new.append(choice.tokens(seen, generator))
            if at + 1 < tokens:
                mask = torch.cat([mask, mask[:, :1]], 1)
                with moved(torch.where(later[:, None], moves, 0.0) if moves.ndim > 1 else moves):
                    outputs = model(
                        input_ids=new[-1][:, None],
                        attention_mask=mask,
                        use_cache=True,
                        **{cache_argument: getattr(outputs, cache_argument)},
                    )
    return logits, ended(torch.stack(new, 1), model)


def _write(
    run: StageRun,
    contrast: Contrast,
    layer: int,
    prompts: list[AskedPrompt],
    texts: list[str],
    **columns: Any,
) -> None:
    right = [prompt.answer for prompt in prompts]
    run.write(
        "interventions",
        sample=[prompt.sample for prompt in prompts],
        layer=layer,
        contrast=contrast.name,
        refused=[refused(text) for text in texts],
        loop=[loops(text) for text in texts],
        text=list(texts),
        correct=np.array([correct(t, a) if a else None for t, a in zip(texts, right, strict=True)], object),
        changed=[text != prompt.text for text, prompt in zip(texts, prompts, strict=True)],
        **columns,
    )
