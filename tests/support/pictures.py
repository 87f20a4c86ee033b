# SPDX-License-Identifier: MIT
"""The sweep's tiny models of pictures and text, read with a picture: maps against eager attention.

    cd tests; python -m support.pictures --store integration/support.json

The pixels are noise in one of the shapes that processors give; the number of image tokens is what the model's
own error says. A picture counts as read where other pixels change the output.

equal · different · visibility · numbers · refused · not read (no input of a picture is known for the type) ·
not built
"""

from __future__ import annotations

import copy
import re
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from attnscope.capture import capture
from models import sharpen
from support import matrix as support_matrix
from support import sweep

KIND = "image-text"
IMAGE_TOKEN = sweep.VOCABULARY - 1
WORDS = 12
_FEATURES = re.compile(r"features:?\s*(?:torch\.Size\(\[)?(\d+)")


def outcome(config_class: Any, model_class: Any) -> dict[str, Any]:
    """Return the outcome of one type as the support matrix has it."""
    try:
        model = sweep.build(config_class, model_class)
    except ValueError as error:
        return {"result": "not built", "words": str(error)}
    sharpen(model, 3.0)
    inputs = picture_inputs(model)
    if isinstance(inputs, str):
        return {"result": "not read", "words": inputs}
    words: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with capture(model) as recording:
                layers = list(recording.run(**copy.deepcopy(inputs)))
            problem, gap = sweep._compare(layers, sweep.eager_copy(model), inputs, words)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        return {"result": "refused", "words": " ".join(str(error).split())[:160]}
    result = {"difference": None if gap is None else float(f"{gap:.1g}"), "layers": len(layers)}
    if problem:
        return {"result": problem[0], "words": problem[1], **result}
    return {"result": "equal", **result}


def picture_inputs(model: Any) -> dict[str, torch.Tensor] | str:
    """Return inputs of a text with a picture that the model reads, or the reason of the first that fails."""
    for config in (model.config, getattr(model.config, "text_config", None)):
        for name in ("image_token_id", "image_token_index"):
            if config is not None and hasattr(config, name):
                setattr(config, name, IMAGE_TOKEN)
    width = getattr(model.config.get_text_config(), "hidden_size", 64)
    reasons: list[list[str]] = []
    for pixels in pixel_choices(model):
        pending, tried = [1], set()
        reasons.append([])
        while pending:
            count = pending.pop(0)
            tried.add(count)
            inputs = {**text_inputs(model, count), **pixels}
            error = failure(model, inputs)
            if not error:
                return inputs
            reasons[-1].append(error)
            if match := _FEATURES.search(error):  # of tokens, or of all their entries
                features = int(match[1])
                counts = (features // width, features) if features % width == 0 else (features,)
                pending += [number for number in counts if 0 < number < 600 and number not in tried]
    return max(reasons, key=len)[-1]  # of the shape that came furthest


def text_inputs(model: Any, count: int) -> dict[str, torch.Tensor]:
    """Return token ids with this number of image tokens behind the first one."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(5, IMAGE_TOKEN, (1, WORDS), generator=generator)
    image = torch.full((1, count), IMAGE_TOKEN)
    ids = torch.cat([words[:, :1], image, words[:, 1:]], 1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(model.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = words[:, :5]
    return inputs


def pixel_choices(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Yield pixels in the shapes that processors of such models give."""
    vision = next(
        (
            config
            for name in ("vision_config", "vision_encoder_config", "vision_tower_config", "encoder")
            if (config := getattr(model.config, name, None)) is not None
        ),
        model.config,
    )
    size = getattr(vision, "image_size", None) or getattr(model.config, "image_size", None) or 32
    side = size if isinstance(size, int) else size[0]
    generator = torch.Generator().manual_seed(2)
    picture = torch.randn(1, 3, side, side, generator=generator)
    yield {"pixel_values": picture}
    yield {"pixel_values": picture[:, None]}
    yield {"pixel_values": picture[:, None], "image_sizes": torch.tensor([[side, side]])}
    yield {"pixel_values": picture, "image_sizes": torch.tensor([[side, side]])}
    yield {"pixel_values": picture.repeat(1, 2, 1, 1, 1).reshape(1, 2, 3, side, side)}
    patch = getattr(vision, "patch_size", 14)
    patch = patch if isinstance(patch, int) else patch[0]
    frames = getattr(vision, "temporal_patch_size", 1)
    side_in_patches = 2 * (getattr(vision, "spatial_merge_size", 1) or 1)
    flat = torch.randn(side_in_patches**2, 3 * frames * patch**2, generator=generator)
    grid = torch.tensor([[1, side_in_patches, side_in_patches]])
    yield {"pixel_values": flat, "image_grid_thw": grid}
    yield {"pixel_values": flat, "image_grid_thw": grid, "mm_token_type_ids": None}
    for name in ("token_type_ids", "mm_token_type_ids"):
        yield {"pixel_values": picture, name: None}


def failure(model: Any, inputs: dict[str, Any]) -> str:
    """Return why a model does not read these inputs, "" where it reads the picture; fills in token types."""
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in inputs:
            inputs[name] = (inputs["input_ids"] == IMAGE_TOKEN).long()
    other = {**inputs, "pixel_values": -inputs["pixel_values"]}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first, second = (
                copy.deepcopy(model)(**copy.deepcopy(arguments))[0] for arguments in (inputs, other)
            )
    except Exception as error:  # noqa: BLE001  (the reason is reported)
        return f"{type(error).__name__}: {' '.join(str(error).split())[:140]}"
    return "other pixels change nothing" if torch.equal(first, second) else ""


def main() -> None:
    """Print the outcome of every type; with `--store FILE` keep them in the rows of a support matrix."""
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="types; all without any")
    parser.add_argument("--store", type=Path, help="support.json, whose rows get the key picture")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, sweep.stop)
    counts: Counter[str] = Counter()
    for name in options.names or sweep.types(KIND):
        start = time.time()
        result = sweep.within_limit(
            KIND, name, outcome, lambda result, words: dict(result=result, words=words)
        )
        counts[result["result"]] += 1
        print(f"{name}\t{result}\t{time.time() - start:.1f}s", flush=True)
        if options.store:
            support_matrix.extend(options.store, KIND, name, "picture", result)
    print(dict(counts), flush=True)


if __name__ == "__main__":
    main()
