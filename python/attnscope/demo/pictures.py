# SPDX-License-Identifier: MIT
"""Drawn shapes, and a small vision transformer that learns to tell them apart in half a minute.

Example:
    >>> from attnscope.demo.pictures import SHAPES, draw_shapes
    >>> pixels, kinds = draw_shapes(3, seed=0)
    >>> pixels.shape, [SHAPES[kind] for kind in kinds]
    (torch.Size([3, 3, 32, 32]), [...])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: Kinds of shapes, in the order of their numbers.
SHAPES = ("disc", "square", "cross", "ring")
#: Pixels of a side of a picture, and of a patch.
SIDE, PATCH = 32, 4
_BATCH, _RATE = 64, 2e-3


def draw_shapes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of one shape each, of random size, place and colour on a dim noisy ground.

    Args:
        count: number of pictures.
        seed: of the random numbers.

    Returns:
        pixels [count, 3, 32, 32] from −1 to 1, below −0.4 outside of the shape, and the number of each shape.
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(len(SHAPES), (count,), generator=generator, device="cpu")
    radius = 4 + 3 * torch.rand(count, 1, 1, generator=generator, device="cpu")
    centre = radius + (SIDE - 2 * radius) * torch.rand(count, 2, 1, generator=generator, device="cpu")
    place = torch.arange(SIDE, device="cpu") + 0.5
    down = (place[None, :, None] - centre[:, :1]).abs()
    right = (place[None, None, :] - centre[:, 1:]).abs()
    distance, side = (down**2 + right**2).sqrt(), torch.maximum(down, right)
    masks = torch.stack(
        [
            distance < radius,
            side < 0.85 * radius,
            (side < radius) & (torch.minimum(down, right) < radius / 3),
            (distance < radius) & (distance > 0.55 * radius),
        ]
    )
    shape = masks[kinds, torch.arange(count, device="cpu")][:, None]
    colour = 0.5 + 0.5 * torch.rand(count, 3, 1, 1, generator=generator, device="cpu")
    ground = 0.25 * torch.rand(count, 3, SIDE, SIDE, generator=generator, device="cpu")
    return torch.where(shape, colour, ground) * 2 - 1, kinds


def shape_model(registers: int, *, steps: int = 350, seed: int = 0) -> Any:
    """Return a vision transformer of three layers with CLS and registers, trained to name drawn shapes.

    Args:
        registers: number of register tokens, 0 for none.
        steps: of training, 64 new pictures each; 0 leaves the random weights.
        seed: of the weights.
    """
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersForImageClassification

    torch.manual_seed(seed)
    config = Dinov2WithRegistersConfig(
        image_size=SIDE,
        patch_size=PATCH,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        mlp_ratio=2,
        num_register_tokens=registers,
        num_labels=len(SHAPES),
        layerscale_value=1.0,
    )
    model = Dinov2WithRegistersForImageClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.05)
    for step in range(steps):
        pixels, kinds = draw_shapes(_BATCH, seed=1000 + step)
        loss = model(pixel_values=pixels, labels=kinds).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = _RATE * (1 - step / steps)
    return model.eval()
