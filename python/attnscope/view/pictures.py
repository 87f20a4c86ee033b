# SPDX-License-Identifier: MIT
"""The pictures of a page: colours as the model read them, and the places of their tokens.

A processor cuts and scales a picture before the model sees it. The page shows what came out, because the
grid of patches lies over that and not over the file.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.models.inputs.media_inputs import is_picture

#: Pixels of the longer side of a stored picture.
_LONGEST = 448


def pictures_of(tensors: Mapping[str, Tensor], text: Any, processor: Any) -> list[dict[str, Any]]:
    """Return the pictures of an input for the page, none where their colours are unknown.

    Args:
        tensors: the inputs of the forward pass.
        text: what the user gave, whose pictures are shown where the model's pixels are no picture.
        processor: of the model, whose normalisation is undone; None scales from the darkest to the brightest.
    """
    pixels, spectrogram = tensors.get("pixel_values"), tensors.get("input_values")
    if pixels is not None and pixels.ndim >= 4:
        return [_stored(_colours(picture, processor)) for picture in pixels.flatten(0, -4)]
    if spectrogram is not None and spectrogram.ndim == 3:
        return [_stored(_scaled(bands.T[None].expand(3, -1, -1))) for bands in spectrogram.float()]
    return [_stored(_of_user(picture)) for picture in _pictures_in(text)]


def _pictures_in(text: Any) -> list[Any]:
    """Return the pictures in what the user gave: alone, with a text, or in the messages of a conversation."""
    if is_picture(text):
        return [text]
    if isinstance(text, Mapping):
        return [] if "input_ids" in text else _pictures_in(list(text.values()))
    if isinstance(text, (list, tuple)):
        return [picture for item in text for picture in _pictures_in(item)]
    return []


def _of_user(picture: Any) -> Tensor:
    """Return the colours [3, height, width] of a picture, from 0 to 1."""
    if hasattr(picture, "convert"):
        return torch.from_numpy(np.asarray(picture.convert("RGB")).copy()).permute(2, 0, 1).float() / 255
    array = torch.as_tensor(picture, device="cpu").float()
    array = array if array.shape[0] in (1, 3, 4) else array.permute(2, 0, 1)
    return (array / (255 if float(array.max()) > 1 else 1))[:3]


def _colours(pixels: Tensor, processor: Any) -> Tensor:
    """Return normalised pixels [channels, height, width] as colours from 0 to 1."""
    images = getattr(processor, "image_processor", processor)
    mean, deviation = (getattr(images, f"image_{name}", None) for name in ("mean", "std"))
    pixels = pixels.detach().float().cpu()
    if mean is None or deviation is None or len(mean) != len(pixels):
        return _scaled(pixels)
    if not getattr(images, "do_normalize", True):
        return pixels.clamp(0, 1)
    shape = (-1, 1, 1)
    return (
        pixels * torch.tensor(deviation, device="cpu").view(shape)
        + torch.tensor(mean, device="cpu").view(shape)
    ).clamp(0, 1)


def _scaled(pixels: Tensor) -> Tensor:
    low, high = pixels.min(), pixels.max()
    return (pixels - low) / (high - low).clamp_min(1e-12)


def _stored(colours: Tensor) -> dict[str, Any]:
    """Return colours [1 or 3, height, width] as the page holds them: three bytes a pixel, row by row."""
    longest = max(colours.shape[-2:])
    if longest > _LONGEST:
        sides = [max(1, round(side * _LONGEST / longest)) for side in colours.shape[-2:]]
        colours = torch.nn.functional.interpolate(colours[None], sides, mode="area")[0]
    _, height, width = colours.shape
    bytes_of_pixels = (colours.expand(3, -1, -1) * 255).round().to(torch.uint8).permute(1, 2, 0)
    rgb = base64.b64encode(bytes_of_pixels.contiguous().numpy().tobytes()).decode("ascii")
    return {"width": width, "height": height, "rgb": rgb}
