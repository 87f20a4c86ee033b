# SPDX-License-Identifier: MIT
"""Seeded inputs that a model can be tried on: tokens in three paddings, noise for pictures and sounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnscope.capture import module_tracing
from attnscope.capture.preflight import trial_inputs
from attnscope.models.architecture import input_device

#: Tokens of a text: more than the preflight tries.
_TOKENS = 48
#: Samples of a second of sound, of the rate that speech models read.
_SECOND = 16_000


def model_inputs(model: nn.Module) -> dict[str, Tensor] | None:
    """Return inputs of a model by what its configuration says; None where that says too little."""
    if (tokens := trial_inputs(model, _TOKENS)) is not None:
        return tokens
    config, main = getattr(model, "config", None), getattr(model, "main_input_name", "")
    values = {"pixel_values": _picture, "input_values": _sound, "input_features": _features}
    noise = values[main](config) if main in values else None
    if noise is None:
        return None
    inputs = {main: noise}
    if module_tracing.takes(model, "decoder_input_ids"):
        inputs["decoder_input_ids"] = torch.arange(1, 6, device="cpu").repeat(len(noise), 1)
    device, dtype = input_device(model), getattr(model, "dtype", torch.float32)
    return {
        name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
        for name, value in inputs.items()
    }


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), device="cpu")


def _integer(config: Any, *names: str) -> int | None:
    """Return the first of some settings that is a whole number, of the configuration or of its parts."""
    parts = [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))]
    values = (getattr(part, name, None) for name in names for part in parts)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)


def _picture(config: Any) -> Tensor | None:
    size = getattr(config, "image_size", None)
    sides = tuple(size) if isinstance(size, (list, tuple)) else (_integer(config, "image_size"),) * 2
    if None in sides:
        return None
    return _noise(2, _integer(config, "num_channels") or 3, *sides)


def _sound(config: Any) -> Tensor | None:
    """Return a second of sound, or a spectrogram [frames, bands] where the model reads those."""
    bands, frames = _integer(config, "num_mel_bins"), _integer(config, "max_length")
    return _noise(2, frames, bands) if bands and frames else _noise(2, _SECOND)


def _features(config: Any) -> Tensor | None:
    """Return a filter bank [bands, frames] of the one length that a speech recogniser reads."""
    bands, frames = _integer(config, "num_mel_bins"), _integer(config, "max_source_positions")
    return _noise(2, bands, 2 * frames) if bands and frames else None
