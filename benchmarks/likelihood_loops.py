# SPDX-License-Identifier: MIT
"""The likelihood study as one would write it at first: one text a forward pass, full logits, loops.

Nothing of attnscope is used, so that what it computes can stand beside it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

MODES = ("lowest", "low", "mid", "high", "highest", "nats:3", "nats:6")
MARK = "\u2581"


@dataclass
class Text:
    """A text, its word, and what was put in its place."""

    sample: int
    ids: list[int]
    start: int
    stop: int
    word: str
    versions: dict[str, list[int]] = field(default_factory=dict)
    likelihood: dict[str, float] = field(default_factory=dict)
    share: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    partner: int = -1

    @property
    def pieces(self) -> list[int]:
        """Ids of the word."""
        return self.ids[self.start : self.stop]


def forms_of(tokenizer: Any) -> list[str]:
    """Of each id: it begins a word, goes on, or neither."""
    special = set(tokenizer.all_special_ids)
    result = []
    for at in range(len(tokenizer)):
        name = tokenizer.convert_ids_to_tokens(at)
        rest = name.removeprefix(MARK)
        letters = bool(rest) and all(re.fullmatch(r"[^\W\d_]", piece) for piece in rest)
        form = "neither"
        if at not in special and letters and not re.fullmatch(r"<0x[0-9A-F]{2}>", name):
            form = "begins" if name.startswith(MARK) else "goes on"
        result.append(form)
    return result


def word_of(tokenizer: Any, text: str, ids: list[int], forms: list[str]) -> tuple[int, int, str] | None:
    """Span and letters of the usable word nearest to the middle."""
    special = set(tokenizer.all_special_ids)
    encoded = tokenizer(text, truncation=True, max_length=len(ids), return_offsets_mapping=True)
    if encoded["input_ids"] != ids:
        return None
    offsets = encoded["offset_mapping"]
    runs = [run for run in re.finditer(r"[^\W_]+", text) if re.search(r"[^\W\d_]", run[0])]
    n, best = len(ids), None
    for place, run in enumerate(runs):
        if (
            place in (0, len(runs) - 1)
            or not re.fullmatch(r"[^\W\d_]{3,}", run[0])
            or sum(other_run[0] == run[0] for other_run in runs) != 1
        ):
            continue
        inside = [
            at
            for at, (low, high) in enumerate(offsets)
            if ids[at] not in special and max(low, run.start()) < min(high, run.end())
        ]
        if not inside or len(inside) > 4:
            continue
        a, b = inside[0], inside[-1] + 1
        outside = "".join(
            text[low : max(low, min(high, run.start()))] + text[min(high, max(low, run.end())) : high]
            for low, high in offsets[a:b]
        )
        covered = {at for low, high in offsets[a:b] for at in range(low, high)} >= set(range(*run.span()))
        before = sum(token_id not in special for token_id in ids[:a])
        after = sum(token_id not in special for token_id in ids[b:])
        if outside.strip() or not covered or before < 4 or after < 1:
            continue
        if any(forms[token_id] == "neither" for token_id in ids[a:b]):
            continue
        key = (abs(a + b - n), a)
        if best is None or key < best[0]:
            best = key, (a, b, run[0])
    return best and best[1]


def log_probabilities(
    model: Any, ids: Sequence[int], at: int, stop: int, mask: int | None
) -> np.ndarray[Any, Any]:
    """Of the token at a place [V] float64, from the full logits of one text.

    Args:
        model: causal, or a masked-language model.
        ids: of the text.
        at: place of the token.
        stop: behind the word.
        mask: id of the mask token, None for a causal model.
    """
    read = list(ids)
    if mask is not None:
        read[at:stop] = [mask] * (stop - at)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([read])).logits
    row = at if mask is not None else at - 1
    result: np.ndarray[Any, Any] = logits[0].double().log_softmax(-1)[row].numpy()
    return result


def place_of(mode: str, values: np.ndarray[Any, Any], key: str) -> int:
    """Which candidate of those sorted by log-likelihood."""
    count = len(values)
    if mode.startswith("nats:"):
        return int(np.abs(-values - float(mode[5:])).argmin())
    bounds = {
        "lowest": (0, 1),
        "low": (1, count // 3),
        "mid": (count // 3, 2 * count // 3),
        "high": (2 * count // 3, count - 1),
        "highest": (count - 1, count),
    }
    low, high = bounds[mode]
    u = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    return low + int(u * (high - low))


def replace(model: Any, text: Text, forms: list[str], seed: int, mask: int | None) -> None:
    """Every mode's pieces, one after the other."""
    outside = {*text.ids[: text.start], *text.ids[text.stop :]}
    for mode in MODES:
        ids = list(text.ids)
        for k, piece in enumerate(text.pieces):
            at = text.start + k
            candidates = np.array(
                [
                    candidate
                    for candidate, form in enumerate(forms)
                    if form == forms[piece] and candidate not in outside
                ]
            )
            q = log_probabilities(model, ids, at, text.stop, mask)[candidates]
            order = np.lexsort([candidates, q])
            key = f"{seed}:{text.sample}:{mode}:{k}"
            ids[at] = int(candidates[order][place_of(mode, q[order], key)])
        text.versions[mode] = ids


def pair(texts: Sequence[Text], forms: list[str]) -> list[tuple[Text, Text]]:
    """Texts that exchange words."""

    def holds(ids: list[int], pieces: list[int]) -> bool:
        return any(ids[at : at + len(pieces)] == pieces for at in range(len(ids) - len(pieces) + 1))

    waiting: list[Text] = []
    result = []
    for text in texts:
        for other in waiting:
            same_forms = [forms[piece] for piece in text.pieces] == [forms[piece] for piece in other.pieces]
            if same_forms and not holds(text.ids, other.pieces) and not holds(other.ids, text.pieces):
                waiting.remove(other)
                result.append((other, text))
                text.partner, other.partner = other.sample, text.sample
                for target, its in ((text, other), (other, text)):
                    target.versions["swap"] = (
                        target.ids[: target.start] + its.pieces + target.ids[target.stop :]
                    )
                break
        else:
            waiting.append(text)
    return result


def measure(model: Any, text: Text, mask: int | None) -> None:
    """Likelihood of every version and attention of its word to itself, mean over heads, by layer."""
    a, b = text.start, text.stop
    for mode, ids in text.versions.items():
        text.likelihood[mode] = float(
            sum(log_probabilities(model, ids, at, b, mask)[ids[at]] for at in range(a, b))
        )
        with torch.no_grad():
            maps = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
        text.share[mode] = np.array(
            [attention_map[0].double().mean(0)[a:b, a:b].sum().item() / (b - a) for attention_map in maps]
        )


def study(
    model: Any, tokenizer: Any, sentences: Sequence[str], *, max_tokens: int, seed: int = 0
) -> tuple[list[Text], list[tuple[Text, Text]]]:
    """Every text with its versions, likelihoods and shares, and the pairs."""
    forms = forms_of(tokenizer)
    mask = tokenizer.mask_token_id if "MaskedLM" in type(model).__name__ else None
    texts = []
    for sample, sentence in enumerate(sentences):
        ids = tokenizer(sentence, truncation=True, max_length=max_tokens)["input_ids"]
        result = word_of(tokenizer, sentence, ids, forms)
        if result is not None:
            texts.append(Text(sample, ids, *result, versions={"real": ids}))
    pairs = pair(texts, forms)
    for text in texts:
        replace(model, text, forms, seed, mask)
        measure(model, text, mask)
    return texts, pairs
