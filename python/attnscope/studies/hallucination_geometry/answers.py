# SPDX-License-Identifier: MIT
"""Answers of a model without interventions, and their evaluation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnscope.capture.edits.edit import cache_name
from attnscope.studies.hallucination_geometry.options import REFUSALS
from attnscope.studies.hallucination_geometry.questions import comparable, mentions

if TYPE_CHECKING:
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Unit

_REFUSAL = re.compile("|".join(REFUSALS), re.IGNORECASE)


def refused(text: str) -> bool:
    """Return True if the first sentence of an answer refuses one.

    >>> refused(" I don't know."), refused(" I don\u2019t know."), refused(" Paris. I am not sure.")
    (True, True, False)
    """
    first = re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0]
    return bool(_REFUSAL.search(comparable(first)))


def correct(text: str, aliases: str) -> bool:
    r"""Return True if the first line holds one of the answer's names as whole words, in any case.

    >>> correct(" It is Paris, I think.\nQuestion: ...", "Paris"), correct("Parisian", "Paris")
    (True, False)
    """
    line = text.strip().split("\n", 1)[0]
    return any(mentions(line, name) for name in aliases.split("|"))


def loops(text: str) -> bool:
    """Return True if three words in a row are repeated three times in a row.

    >>> loops("on and on it goes on and on"), loops("no one knows no one knows no one knows")
    (False, True)
    """
    words = text.split()
    return any(
        words[at : at + 3] == words[at + 3 : at + 6] == words[at + 6 : at + 9] for at in range(len(words) - 8)
    )


def answer(unit: Unit, run: StageRun, options: HallucinationOptions) -> None:
    """Write greedy answers to every prompt, prompts of one length together."""
    assert options.answers is not False
    right = {text.sentence.sample: text.sentence.extra["answer"] for text in unit.inputs}
    lengths: dict[int, list[Any]] = {}
    for text in unit.inputs:
        lengths.setdefault(text.n_tokens, []).append(text)
    model = run.model().model
    for _, group in sorted(lengths.items()):
        for start in range(0, len(group), 64):
            texts = group[start : start + 64]
            ids = torch.tensor([text.encoded.ids.tolist() for text in texts], device=run.model().device)
            for text, new in zip(texts, continued(model, ids, options.answers.tokens), strict=True):
                sample = text.sentence.sample
                words = decoded(run.encoder.tokenizer, new)
                run.write(
                    "answers",
                    sample=sample,
                    text=words,
                    refused=refused(words),
                    correct=correct(words, right[sample]) if right[sample] else None,
                )


def continued(model: Any, ids: Tensor, tokens: int) -> Tensor:
    """Return the likeliest next tokens [B, tokens] of prompts of one length [B, n].

    Nothing else that a model's generation settings ask for takes part, such as a penalty on repetition:
    interventions start from the same answers.
    """
    cache_argument = cache_name(model)
    mask, outputs, new = torch.ones_like(ids), None, []
    with torch.no_grad():
        for _ in range(tokens):
            if outputs is None:
                outputs = model(input_ids=ids, attention_mask=mask, use_cache=True)
            else:
                mask = torch.cat([mask, mask[:, :1]], 1)
                cache = {cache_argument: getattr(outputs, cache_argument)}
                outputs = model(input_ids=new[-1][:, None], attention_mask=mask, use_cache=True, **cache)
            new.append(outputs.logits[:, -1].argmax(-1))
    return ended(torch.stack(new, 1), model)


def ended(new: Tensor, model: Any) -> Tensor:
    """Return tokens in which all behind the first that ends an answer are that token, which is not shown."""
    ends = model.generation_config.eos_token_id
    if ends is None:
        return new
    stops = torch.isin(new, torch.tensor(ends, device=new.device).reshape(-1))
    behind = stops.long().cumsum(1) > 0
    first = torch.tensor(ends, device="cpu").reshape(-1)[0].to(new)
    return torch.where(behind, first, new)


@dataclass(frozen=True)
class Choice:
    """The rule by which next tokens are chosen.

    Attributes:
        temperature: 0 takes the likeliest.
        seed: of what is drawn; rows of one step share nothing.
    """

    temperature: float = 0.0
    seed: int = 0

    def generator(self) -> torch.Generator:
        """Return the random generator of one generation."""
        return torch.Generator().manual_seed(self.seed)

    def tokens(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Return one token for each row of logits [B, V]; equal rows draw alike."""
        if not self.temperature:
            return logits.argmax(-1)
        p = (logits.double().cpu() / self.temperature).softmax(-1).cumsum(-1)
        drawn = torch.rand(1, generator=generator, dtype=torch.float64, device="cpu")
        return torch.searchsorted(p, drawn.expand(len(p), 1) * p[:, -1:])[:, 0].to(logits.device)


def decoded(tokenizer: Any, ids: Tensor) -> str:
    """Return the text of an answer, without its ending."""
    return tokenizer.decode(ids.tolist(), skip_special_tokens=True)
