# SPDX-License-Identifier: MIT
"""The reader of pictures, sounds and conversations with pictures: a model's processor makes inputs of them.

Example:
    >>> from attnscope.models.inputs.media_inputs import is_picture, is_sound
    >>> import numpy as np
    >>> is_picture(np.zeros((8, 6, 3), np.uint8)), is_sound(np.zeros(16000, np.float32)), is_sound("a cat")
    (True, True, False)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor


def is_picture(value: Any) -> bool:
    """Return True for a picture: an image of Pillow, or an array of three colours."""
    if hasattr(value, "getbands") and hasattr(value, "convert"):
        return True
    colours = (1, 3, 4)
    return (
        isinstance(value, (np.ndarray, Tensor))
        and value.ndim == 3
        and (value.shape[0] in colours or value.shape[-1] in colours)
    )


def is_sound(value: Any) -> bool:
    """Return True for a sound: an array of samples, or such an array with its sampling rate by name."""
    if isinstance(value, Mapping):
        return "array" in value and "sampling_rate" in value
    return isinstance(value, (np.ndarray, Tensor)) and value.ndim == 1 and "float" in str(value.dtype)


def tokenizer_in(processor: Any) -> Any:
    """Return the tokenizer of a processor; None for one of pictures or sounds alone."""
    return getattr(processor, "tokenizer", None)


def read_media(function: str, inputs: Any, processor: Any) -> Any:
    """Return inputs with mappings of what the forward pass takes in the place of pictures and sounds.

    Everything else is returned as it is.

    Args:
        function: whose name errors begin with.
        inputs: a picture, a sound, either with a text (a pair), a conversation with pictures, several of
            these, or anything else.
        processor: of transformers, for pictures, sounds, or several kinds of input.

    Raises:
        TypeError: an object that is no processor.
        ValueError: inputs that the processor cannot read, or sounds of another sampling rate.
    """
    if not callable(processor):
        raise TypeError(f"{function}: processor must be one of transformers, got {processor!r:.60}")
    is_single = is_picture(inputs) or is_sound(inputs) or _is_pair(inputs) or _is_conversation(inputs)
    items = [inputs] if is_single else list(inputs) if isinstance(inputs, (list, tuple)) else []
    if not items:
        return inputs
    if all(is_picture(item) for item in items):
        part = getattr(processor, "image_processor", processor)
        return _called(function, part, images=[_readable(item) for item in items])
    if all(is_sound(item) for item in items):
        return _of_sounds(function, processor, items)
    if not all(_is_pair(item) or _is_conversation(item) for item in items):
        return inputs
    return [
        _of_pair(function, processor, *item)
        if _is_pair(item)
        else _of_conversation(function, processor, item)
        for item in items
    ]


def _is_pair(value: Any) -> bool:
    """Return True for a picture, pictures or a sound with a text."""
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not isinstance(value[1], str):
        return False
    first = value[0]
    several = isinstance(first, (list, tuple)) and bool(first) and all(is_picture(item) for item in first)
    return is_picture(first) or is_sound(first) or several


def _is_conversation(value: Any) -> bool:
    """Return True for messages, of which one is made of parts."""
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(message, Mapping) and "role" in message for message in value)
        and any(isinstance(message.get("content"), (list, tuple)) for message in value)
    )


def _readable(picture: Any) -> Any:
    """Return a picture as image processors take it: grey ones of Pillow in three colours."""
    return picture.convert("RGB") if hasattr(picture, "getbands") and picture.mode != "RGB" else picture


def _called(function: str, processor: Any, *values: Any, **named: Any) -> dict[str, Any]:
    """Return what a processor makes of its inputs."""
    try:
        return dict(processor(*values, **named, return_tensors="pt"))
    except (TypeError, ValueError, KeyError, IndexError) as error:
        kinds = ", ".join(named) or "inputs"
        raise ValueError(
            f"{function}: {type(processor).__name__} makes nothing of these {kinds}: {error}"
        ) from error


def _of_sounds(function: str, processor: Any, sounds: Sequence[Any]) -> dict[str, Any]:
    """Return the inputs that a processor makes of sounds."""
    extractor = getattr(processor, "feature_extractor", processor)
    rate = getattr(extractor, "sampling_rate", None)
    arrays = []
    for place, sound in enumerate(sounds):
        if isinstance(sound, Mapping):
            if rate and sound["sampling_rate"] != rate:
                raise ValueError(
                    f"{function}: sound {place} has a sampling rate of {sound['sampling_rate']}, "
                    f"{type(extractor).__name__} needs {rate}; resample it first"
                )
            sound = sound["array"]
        arrays.append(np.asarray(sound, dtype=np.float32))
    options: dict[str, Any] = {"sampling_rate": rate} if rate else {}
    if len({len(array) for array in arrays}) > 1:
        options["padding"] = True
    return _called(function, extractor, arrays, **options)


def _of_pair(function: str, processor: Any, first: Any, text: str) -> dict[str, Any]:
    """Return the inputs of a picture with a text, or of a sound with the decoder's text."""
    if is_sound(first):
        inputs = _of_sounds(function, processor, [first])
        tokenizer = tokenizer_in(processor)
        if tokenizer is None:
            raise ValueError(f"{function}: {type(processor).__name__} has no tokenizer for the text {text!r}")
        return {**inputs, "decoder_input_ids": tokenizer(text, return_tensors="pt")["input_ids"]}
    pictures = [_readable(item) for item in (first if isinstance(first, (list, tuple)) else [first])]
    token = getattr(processor, "image_token", None)
    if isinstance(token, str) and token not in text:
        text = token * len(pictures) + text
    return _called(function, processor, images=pictures, text=text)


def _of_conversation(function: str, processor: Any, messages: Sequence[Any]) -> dict[str, Any]:
    """Return the inputs of a conversation by the chat template of the processor."""
    if not getattr(processor, "chat_template", None):
        raise ValueError(
            f"{function}: {type(processor).__name__} has no chat template for a conversation of "
            f"{len(messages)} messages"
        )
    try:
        return dict(
            processor.apply_chat_template(
                list(messages), tokenize=True, return_dict=True, return_tensors="pt"
            )
        )
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"{function}: {type(processor).__name__} makes nothing of the conversation: {error}"
        ) from error
