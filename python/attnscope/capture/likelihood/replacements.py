# SPDX-License-Identifier: MIT
"""Other words in a word's place: likely ones, unlikely ones, of the same number and kinds of pieces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attnscope._nearest import nearest
from attnscope.arguments.tokenizers import tokenizer_argument
from attnscope.capture.likelihood.arguments import context_argument, spans_argument, texts_argument
from attnscope.capture.likelihood.chain import masked_from, some_texts
from attnscope.capture.likelihood.tokens import texts_a_pass
from attnscope.capture.likelihood.vocabulary import NEITHER, forms, special_ids
from attnscope.capture.likelihood.words import hashed_draw
from attnscope.metrics._named import shown_by_shape
from attnscope.models.head_rows import LastStates, head_plan

#: Modes that are a place, or a range of places, among the candidates.
MODES = ("lowest", "low", "mid", "high", "highest")
#: Fewest candidates of a piece.
FEWEST = 8
_NATS = "nats:"


@shown_by_shape
class Replacements(NamedTuple):
    """Texts with one word replaced, one variant a mode.

    Attributes:
        input_ids: the variants [B, M, n] int64; a text that cannot have them stands as it was.
        log_likelihood: L of the new word [B, M] float64, nats, by the chain rule; NaN where there is none.
        place: mean place of its pieces among their candidates [B, M], 0 the least likely, 1 the likeliest.
        modes: their names.
        reasons: for each text why it has no variants; "" where it has.
    """

    input_ids: Tensor
    log_likelihood: Tensor
    place: Tensor
    modes: tuple[str, ...]
    reasons: tuple[str, ...]


def replacements(
    model: nn.Module,
    inputs: Any,
    spans: Any,
    modes: Iterable[str],
    *,
    tokenizer: Any,
    candidates: str = "same_form",
    context: str = "auto",
    seed: int = 0,
    samples: Sequence[int] | None = None,
) -> Replacements:
    """Replace one word a text piece by piece with pieces that the model finds likely or unlikely there.

    The candidates of piece k are sorted by their likelihood q_k, ties by id, given the pieces placed before
    it; V of them. A mode takes a place: ``lowest`` 0, ``low`` one of [1, ⌊V/3⌋), ``mid`` of [⌊V/3⌋, ⌊2V/3⌋),
    ``high`` of [⌊2V/3⌋, V − 1), ``highest`` V − 1, ``nats:X`` the one whose −log q_k is nearest X. Places in
    a range are drawn by SHA-256 of "seed:sample:mode:k", so they depend on no order. Length never changes.

    Args:
        model: of transformers with a vocabulary head; run in evaluation mode.
        inputs: as `token_likelihood` takes them.
        spans: first piece and one past the last of each text's word [B, 2]; (−1, −1) where there is none.
        modes: names, each once.
        tokenizer: says which ids begin a word, go on, or are special, and which masks.
        candidates: "same_form": ids that begin a word as the real piece does, or go on as it does, of letters
            alone. "all": any id below `len(tokenizer)` that is not special. Never one that stands outside
            the word.
        context: what q_k conditions on: "left" (causal), "masked" (masked-language models), or "auto".
        seed: of the draws.
        samples: numbers of the texts in the draws; None counts them.

    Returns:
        `Replacements`. A piece with fewer than 8 candidates, or of no form, leaves its text out with a
        reason.

    Raises:
        TypeError: inputs without input_ids; what is no tokenizer of transformers.
        ValueError: an unknown mode, ``nats:`` without a positive number, a mode given twice; spans outside
            their text; as `token_likelihood`.
        NotImplementedError: an encoder-decoder, a model without a vocabulary head.

    Example:
        Where all tokens are equally likely ties go by id: ``lowest`` is the first letter that is not in the
        text.

        >>> import torch, attnscope as asc
        >>> from attnscope.demo.texts import byte_tokenizer
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=257, hidden_size=4, intermediate_size=4, num_hidden_layers=1,
        ...                      num_attention_heads=1)
        >>> model, tokenizer = LlamaForCausalLM(config).eval(), byte_tokenizer()
        >>> _ = model.lm_head.weight.data.zero_()
        >>> inputs = tokenizer("A cat sat", return_tensors="pt")
        >>> found = asc.replacements(model, inputs, [[3, 6]], ["lowest"], tokenizer=tokenizer)
        >>> tokenizer.decode(found.input_ids[0, 0], skip_special_tokens=True), found.place.tolist()
        ('A BBB sat', [[0.0]])

    References:
        Kauf and Ivanova, A better way to do masked language model scoring, arXiv 2305.10588, 2023.
    """
    name = "replacements"
    tokenizer_argument(name, tokenizer, needs_vocabulary=True)
    ids, real, extras = texts_argument(name, model, inputs, tokenizer)
    span = spans_argument(name, spans, real)
    chosen_modes = modes_argument(name, modes)
    _check_words(name, candidates, context)
    _, mask_id = context_argument(name, context, model, tokenizer)
    numbers = _sample_numbers(name, samples, len(ids))
    plan = head_plan(model, name)
    pool = _Pool(tokenizer, candidates, plan.vocabulary)
    first = 0 if mask_id >= 0 else 1
    chosen = [
        pool.of_word(row[keep], start, stop, first)
        for row, keep, (start, stop) in zip(ids, real, span.tolist(), strict=True)
    ]
    reasons = tuple(reason for _, reason in chosen)
    variants = _Variants(ids, len(chosen_modes))
    usable = torch.tensor([not reason for reason in reasons], device="cpu")
    pieces = torch.where(usable, span[:, 1] - span[:, 0], 0)
    for k in range(int(pieces.max())):
        # before the first piece nothing tells the modes apart
        apart = 1 if k == 0 else len(chosen_modes)
        for texts in torch.split((pieces > k).nonzero()[:, 0], texts_a_pass(plan, ids.shape[1], apart)):
            place, stop = (
                ends.repeat_interleave(apart)[:, None] for ends in (span[texts, 0] + k, span[texts, 1])
            )
            read = variants.ids[texts, :apart].flatten(0, 1)
            if mask_id >= 0:
                read = masked_from(read, place, stop, torch.arange(ids.shape[1], device="cpu"), mask_id)
            rows = place if mask_id >= 0 else place - 1
            sources = texts.repeat_interleave(apart)
            states = LastStates(model, read, real[sources], name, some_texts(extras, sources))
            logits = states.logits(rows)[:, 0].double().cpu()
            for text, text_logits in zip(texts.tolist(), torch.split(logits, apart), strict=True):
                order, log_q = _ranked(text_logits, chosen[text][0][k])
                for m, mode in enumerate(chosen_modes):
                    row = m if apart > 1 else 0
                    rank = _rank(mode, log_q[row], (seed, numbers[text], mode, k))
                    column, place_of_rank = int(span[text, 0]) + k, rank / (len(order[row]) - 1)
                    variants.set(text, m, column, order[row, rank], log_q[row, rank], place_of_rank)
    undefined = ~usable[:, None]
    return Replacements(
        variants.ids,
        variants.log_likelihood.masked_fill(undefined, torch.nan),
        (variants.place / pieces[:, None]).masked_fill(undefined, torch.nan),
        chosen_modes,
        reasons,
    )


def _check_words(function: str, candidates: str, context: str) -> None:
    """Raise ValueError if the candidates or their context are none of a replacement."""
    if candidates not in ("same_form", "all"):
        raise ValueError(
            f"{function}: unknown candidates {candidates!r}{nearest(str(candidates), ('same_form', 'all'))}"
        )
    if context == "own":
        raise ValueError(
            f"{function}: context must be 'left' or 'masked', got 'own', which says nothing of other words"
        )


def _sample_numbers(function: str, samples: Sequence[int] | None, count: int) -> list[int]:
    """Return the numbers of the texts in the draws, counted where none are given."""
    numbers = list(range(count)) if samples is None else [int(sample) for sample in samples]
    if len(numbers) != count:
        raise ValueError(f"{function}: samples must be {count} numbers, got {len(numbers)}")
    return numbers


def modes_argument(function: str, modes: Any) -> tuple[str, ...]:
    """Return the names of modes, checked."""
    names = tuple(modes) if not isinstance(modes, str) else (modes,)
    for mode in names:
        if isinstance(mode, str) and mode.startswith(_NATS):
            try:
                nats = float(mode.removeprefix(_NATS))
            except ValueError:
                nats = math.nan
            if not (nats > 0 and math.isfinite(nats)):
                raise ValueError(f"{function}: mode nats:X needs a positive number X, got {mode!r}")
        elif mode not in MODES:
            raise ValueError(f"{function}: unknown mode {mode!r}{nearest(str(mode), (*MODES, 'nats:3'))}")
    if len(set(names)) != len(names) or not names:
        raise ValueError(f"{function}: modes must be names, each once, got {list(names)}")
    return names


class _Variants:
    """The variants of the texts, as far as their pieces are placed."""

    def __init__(self, ids: Tensor, modes: int) -> None:
        self.ids = ids[:, None].repeat(1, modes, 1)
        self.log_likelihood = torch.zeros(len(ids), modes, dtype=torch.float64, device="cpu")
        self.place = torch.zeros(len(ids), modes, dtype=torch.float64, device="cpu")
        # single entries of an array are set much faster than those of a tensor
        self._arrays = self.ids.numpy(), self.log_likelihood.numpy(), self.place.numpy()

    def set(self, text: int, mode: int, column: int, token: int, log_q: float, place: float) -> None:
        """Place one piece."""
        ids, log_likelihood, places = self._arrays
        ids[text, mode, column] = token
        log_likelihood[text, mode] += log_q
        places[text, mode] += place


class _Pool:
    """The ids that may replace a piece."""

    def __init__(self, tokenizer: Any, candidates: str, vocabulary: int) -> None:
        size = min(len(tokenizer), vocabulary)
        self.same_form = candidates == "same_form"
        if self.same_form:
            self.forms = forms(tokenizer)[:size]
        else:
            self.forms = np.ones(size, np.int8)
            self.forms[[token_id for token_id in special_ids(tokenizer) if token_id < size]] = NEITHER

    def of_word(
        self, ids: Tensor, start: int, stop: int, first: int
    ) -> tuple[list[npt.NDArray[np.int64]], str]:
        """Return the candidates of each piece of a text's word, at `first` or later, or why there are
        none.
        """
        if start < first:
            return [], "no word" if start < 0 else "nothing before the word"
        word = ids[start:stop].tolist()
        outside = torch.cat([ids[:start], ids[stop:]]).numpy()
        candidates = []
        for piece in word:
            form = self.forms[piece] if piece < len(self.forms) else NEITHER
            if self.same_form and form == NEITHER:
                return [], "a piece is no text of letters"
            allowed = self.forms == (form if self.same_form else 1)
            allowed[outside[outside < len(allowed)]] = False
            candidates.append(np.flatnonzero(allowed))
        return ([], "few candidates") if min(map(len, candidates)) < FEWEST else (candidates, "")


def _ranked(logits: Tensor, candidates: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the candidates of each row of [r, V] from the least to the most likely, ties by id, and their
    log q.
    """
    values, order = logits[:, torch.from_numpy(candidates)].sort(stable=True)
    return candidates[order.numpy()], (values - logits.logsumexp(-1, keepdim=True)).numpy()


def _rank(mode: str, log_q: npt.NDArray[Any], key: tuple[object, ...]) -> int:
    """Return the place of a mode among sorted candidates."""
    count = len(log_q)
    if mode.startswith(_NATS):
        return int(np.abs(-log_q - float(mode.removeprefix(_NATS))).argmin())
    bounds = {
        "lowest": (0, 1),
        "low": (1, count // 3),
        "mid": (count // 3, 2 * count // 3),
        "high": (2 * count // 3, count - 1),
        "highest": (count - 1, count),
    }
    return hashed_draw(*bounds[mode], *key)
