# SPDX-License-Identifier: MIT
"""The rows of a short generation, put together, against one forward pass over the same tokens."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from attnscope.capture.preflight import trial_inputs
from attnscope.capture.preservation import preserved_run
from attnscope.capture.recording import capture

#: New tokens: the first step reads the prompt, the others a token each.
STEPS = 3
_OPTIONS = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def writes_behind_its_prompt(model: Any) -> bool:
    """Return True for a decoder of token ids that has a `generate` of its own."""
    can_generate = getattr(model, "can_generate", None)
    return (
        callable(getattr(model, "generate", None))
        and callable(can_generate)
        and bool(can_generate())
        and not getattr(model.config, "is_encoder_decoder", False)
        and getattr(model, "main_input_name", "") == "input_ids"
    )


def generation_difference(model: nn.Module) -> float | str:
    """Return the largest gap between assembled maps and those of one pass, or the words of what fails."""
    inputs = trial_inputs(model)
    if inputs is None:
        return "its vocabulary is not known"
    device = next(model.parameters()).device
    prompt = {"input_ids": inputs["input_ids"][:1].to(device)}
    prompt["attention_mask"] = torch.ones_like(prompt["input_ids"])
    try:
        with warnings.catch_warnings(), capture(model) as recording:
            warnings.simplefilter("ignore")
            for _ in recording.generate(**prompt, **_OPTIONS):
                pass
            assembled = {_place(layer): layer.attention for layer in recording.assembled()}
            written = recording.output[:, :-1]
            together = {
                _place(layer): layer.attention
                for layer in recording.run(input_ids=written, attention_mask=torch.ones_like(written))
            }
    except Exception as error:  # noqa: BLE001  (a model's own code; the reason is shown)
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    gaps = [
        float((maps.double() - together[place].double()).abs().nan_to_num().max())
        for place, maps in assembled.items()
        if place in together and maps.shape == together[place].shape
    ]
    return max(gaps) if len(gaps) == len(together) else "its steps have other layers than one pass"


def own_difference(model: Any) -> float:
    """Return how far the logits of a model's steps are from those of one pass, without any capture.

    They differ where queries see later tokens, and where a cache is another computation.
    """
    inputs = trial_inputs(model)
    assert inputs is not None  # there was a generation before
    ids = inputs["input_ids"][:1].to(next(model.parameters()).device)
    options = {**_OPTIONS, "attention_mask": torch.ones_like(ids), "output_logits": True}
    with preserved_run(model), torch.no_grad():
        written = model.generate(input_ids=ids, return_dict_in_generate=True, **options)
        tokens = written.sequences[:, :-1]
        single = model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    stepwise = torch.stack(written.logits, 1).float()
    return float((stepwise - single.logits[:, -STEPS:].float()).abs().nan_to_num().max())


def _place(layer: Any) -> tuple[str, int, int]:
    """Return the place of a layer in a pass."""
    return layer.stack, layer.index, layer.call
