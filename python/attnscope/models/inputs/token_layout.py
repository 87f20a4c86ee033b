# SPDX-License-Identifier: MIT
"""Names of tokens that stand for parts of a picture or a sound, and their places in it.

All of it is read from the model and its processor: the convolution that cuts patches, the parameters of
special tokens next to it, the sampling rate, the id of the token that stands for a picture in a text.
Numbers of tokens must come out exactly; where they do not, tokens have no names.

Example:
    >>> from attnscope.models.inputs.token_layout import patch_names
    >>> patch_names(1, 2)
    ['patch (0, 0)', 'patch (0, 1)']
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from torch import Tensor, nn

#: Names of parameters that hold special tokens, and the names of these tokens.
_SPECIAL = (
    (("cls_token", "class_token", "class_embedding"), "CLS"),
    (("register_tokens",), "register"),
    (("distillation_token",), "distillation"),
)
#: Parameters of tokens behind the patches.
_BEHIND = ("detection_tokens",)
#: Parts of the names of stacks that read something else than the text.
NO_TEXT = ("vision", "visual", "image", "audio", "speech")
#: Settings with the number of learned queries.
_QUERIES = ("num_queries", "num_latents", "num_query_tokens")
#: Settings with the id of the token that stands for a part of a picture.
_IMAGE_IDS = ("image_token_id", "image_token_index")
#: Seconds between two frames of a filter bank whose extractor names no hop: Kaldi's frame shift.
_KALDI_SHIFT = 0.010


@dataclass(frozen=True)
class Grid:
    """The tokens of one picture: rows run down, columns to the right.

    Attributes:
        first: place of the token of the first patch.
        rows: number of rows of patches.
        columns: number of patches of a row.
        picture: number of the picture among those of the input.
    """

    first: int
    rows: int
    columns: int
    picture: int = 0


@dataclass(frozen=True)
class TokenLayout:
    """The tokens of a sequence.

    Attributes:
        names: of each token.
        grids: of the pictures among them, whose rows are known.
        pictures: first place and number of tokens of each picture in a text.
    """

    names: Sequence[str]
    grids: Sequence[Grid] = ()
    pictures: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class MediaLayouts:
    """The layouts of the sequences that a model makes of a picture or a sound.

    Attributes:
        model: of transformers.
        tensors: the inputs of its forward pass.
        processor: of the model; None where none was given.
    """

    model: nn.Module
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    processor: Any = None

    def layout(self, n: int, stack: str = "") -> TokenLayout | None:
        """Return the layout of a sequence of n tokens; None where nothing says what they are.

        Args:
            n: number of tokens.
            stack: name of the attention modules that read them.
        """
        if "decoder" in stack and (queries := self._queries(n)):
            return queries
        return self._patches(n) or self._bands(n) or self._frames(n) or self._queries(n)

    def _patches(self, n: int) -> TokenLayout | None:
        """Return the patches of a picture [..., channels, height, width]."""
        pixels = self.tensors.get("pixel_values")
        if pixels is None or pixels.ndim < 4:
            return None
        channels, height, width = pixels.shape[-3:]
        for name, kernel, stride in _patch_convolutions(self.model, channels):
            rows, columns = _count_patches((height, width), kernel, stride)
            if layout := _with_special(self.model, name, patch_names(rows, columns), n):
                return TokenLayout(layout[0], (Grid(layout[1], rows, columns),))
        if any("backbone" in name for name, _ in self.model.named_modules()):
            for step in (4, 8, 16, 32, 64):  # of a convolutional network, whose last map is flattened
                rows, columns = math.ceil(height / step), math.ceil(width / step)
                if rows * columns == n > 1:
                    return TokenLayout(patch_names(rows, columns), (Grid(0, rows, columns),))
        return None

    def _bands(self, n: int) -> TokenLayout | None:
        """Return the patches of a spectrogram [..., frames, bands]: bands down, time to the right."""
        spectrogram = self.tensors.get("input_values")
        if spectrogram is None or spectrogram.ndim != 3:
            return None
        frames, bands = spectrogram.shape[-2:]
        for name, kernel, stride in _patch_convolutions(self.model, 1):
            rows, columns = _count_patches((bands, frames), kernel, stride)
            step = stride[1] * self._seconds_of_frame()
            names = [f"{time_name(step * c)}, band {r}" for r in range(rows) for c in range(columns)]
            if layout := _with_special(self.model, name, names, n):
                return TokenLayout(layout[0], (Grid(layout[1], rows, columns),))
        return None

    def _frames(self, n: int) -> TokenLayout | None:
        """Return the frames of a sound, named by their seconds where the sampling rate is known."""
        values, features = self.tensors.get("input_values"), self.tensors.get("input_features")
        sound = values if values is not None else features
        if sound is None:
            return None
        extractor = getattr(self.processor, "feature_extractor", self.processor)
        rate = getattr(extractor, "sampling_rate", None)
        if not rate:
            return TokenLayout([f"frame {place}" for place in range(n)])
        if sound.ndim == 2:
            strides = getattr(self.model.config, "conv_stride", None)
            step = math.prod(strides) / rate if strides else sound.shape[-1] / rate / n
            # the convolutions leave out less than a frame at the end
            if not 0 <= sound.shape[-1] / rate - step * n < 2 * step:
                return None
        else:
            bands = getattr(extractor, "feature_size", 0)
            frames = sound.shape[-1] if sound.shape[-2] == bands else sound.shape[-2]
            step = frames * self._seconds_of_frame() / n
        return TokenLayout([time_name(step * place) for place in range(n)])

    def _seconds_of_frame(self) -> float:
        """Return the time between two frames of a filter bank."""
        extractor = getattr(self.processor, "feature_extractor", self.processor)
        hop, rate = (getattr(extractor, name, None) for name in ("hop_length", "sampling_rate"))
        return hop / rate if hop and rate else _KALDI_SHIFT

    def _queries(self, n: int) -> TokenLayout | None:
        """Return the learned queries of a decoder or a resampler."""
        sizes = [getattr(getattr(self.model, "config", None), name, None) for name in _QUERIES]
        return TokenLayout([f"query {place}" for place in range(n)]) if n in sizes else None


def patch_names(rows: int, columns: int, word: str = "patch") -> list[str]:
    """Return names of the patches of a picture, row by row."""
    return [f"{word} ({row}, {column})" for row in range(rows) for column in range(columns)]


def time_name(seconds: float) -> str:
    """Return a time as the name of a frame.

    >>> time_name(0.34)
    '0.34 s'
    """
    return f"{seconds:.2f} s"


def _patch_convolutions(
    model: nn.Module, channels: int
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Yield the convolutions that cut pictures into patches: name, kernel and stride."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == channels:
            is_padded = module.padding not in ("valid", (0, 0))
            if min(module.stride) > 1 and not is_padded:
                yield name, module.kernel_size, module.stride


def _count_patches(sides: tuple[int, int], kernel: Sequence[int], stride: Sequence[int]) -> tuple[int, int]:
    """Return the number of patches down and to the right."""
    rows, columns = ((side - k) // s + 1 for side, k, s in zip(sides, kernel, stride, strict=True))
    return rows, columns


def _with_special(
    model: nn.Module, convolution: str, names: Sequence[str], n: int
) -> tuple[list[str], int] | None:
    """Return names of n tokens, patches and the special tokens around them, and the place of the first
    patch; None where the numbers do not come out.
    """
    before: list[str] = []
    behind: list[str] = []
    near = [
        (name.rpartition(".")[2], parameter)
        for name, parameter in model.named_parameters()
        if convolution.startswith(name.rpartition(".")[0])
    ]
    for words, token in _SPECIAL:
        for parameter in (parameter for name, parameter in near if name in words):
            count = parameter.shape[-2] if parameter.ndim > 1 else 1
            before += [token] if token != "register" else [f"register {place + 1}" for place in range(count)]
    for parameter in (parameter for name, parameter in near if name in _BEHIND):
        behind += [f"query {place}" for place in range(parameter.shape[-2])]
    named = [*before, *names, *behind]
    return (named, len(before)) if len(named) == n else None


def image_spans(config: Any, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first place and the number of tokens of each run of tokens that stand for a picture.

    >>> from types import SimpleNamespace
    >>> image_spans(SimpleNamespace(image_token_id=9), [1, 9, 9, 4, 9])
    [(1, 2), (4, 1)]
    """
    picture = next((value for name in _IMAGE_IDS if (value := getattr(config, name, None)) is not None), None)
    spans, place = [], 0
    for is_picture, run in groupby(ids, key=lambda token: token == picture):
        length = len(list(run))
        if is_picture and picture is not None:
            spans.append((place, length))
        place += length
    return spans


def with_images(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    ids: Sequence[Sequence[int]],
    names: Sequence[Sequence[str]],
) -> list[TokenLayout]:
    """Return the layouts of texts, the tokens of their pictures named by their places.

    A picture's patches are merged by the same factor k downwards and to the right, so that k² patches are a
    token. The pictures of all texts are in the order of the texts; where their number is not that of the
    runs of tokens, the tokens of a picture are numbered.

    Args:
        model: of transformers.
        tensors: the inputs of these texts.
        ids: of the tokens of each text.
        names: of the tokens of each text.
    """
    spans_of_texts = [image_spans(getattr(model, "config", None), ids_of_text) for ids_of_text in ids]
    patches = _patches_of_pictures(model, tensors) if any(spans_of_texts) else []
    spans_of_texts = _split_runs(spans_of_texts, patches)
    count = sum(map(len, spans_of_texts))
    sizes = iter(patches if len(patches) == count else [None] * count)
    layouts = []
    for spans, names_of_text in zip(spans_of_texts, names, strict=True):
        renamed, grids = list(names_of_text), []
        for picture, (first, length) in enumerate(spans):
            patches_of_picture = next(sizes)
            size = patches_of_picture and _merged(patches_of_picture, length)
            if size:
                grids.append(Grid(first, *size, picture))
            renamed[first : first + length] = (
                patch_names(*size, "image") if size else [f"image {place}" for place in range(length)]
            )
        layouts.append(TokenLayout(renamed, grids, spans))
    return layouts


def _split_runs(
    spans_of_texts: Sequence[list[tuple[int, int]]], patches: Sequence[tuple[int, int]]
) -> list[list[tuple[int, int]]]:
    """Return the spans of pictures: pictures of one size that follow each other directly make one run.

    >>> _split_runs([[(3, 8)]], [(2, 2), (2, 2)])
    [[(3, 4), (7, 4)]]
    """
    runs = [length for spans in spans_of_texts for _, length in spans]
    length = sum(runs) // max(len(patches), 1)
    is_several = len(patches) > len(runs) > 0 and len(set(patches)) == 1 and _merged(patches[0], length)
    if not is_several or any(run % length for run in runs) or sum(runs) != length * len(patches):
        return list(spans_of_texts)
    return [
        [(place, length) for first, run in spans for place in range(first, first + run, length)]
        for spans in spans_of_texts
    ]


def _patches_of_pictures(model: nn.Module, tensors: Mapping[str, Tensor]) -> list[tuple[int, int]]:
    """Return rows and columns of the patches of each picture; none where nothing says them."""
    sizes = tensors.get("image_grid_thw")
    if sizes is not None:
        return [(int(rows), int(columns)) for _, rows, columns in sizes.reshape(-1, 3).tolist()]
    pixels = tensors.get("pixel_values")
    if pixels is None or pixels.ndim < 4:
        return []
    channels, height, width = pixels.shape[-3:]
    for _, kernel, stride in _patch_convolutions(model, channels):
        rows, columns = _count_patches((height, width), kernel, stride)
        return [(rows, columns)] * math.prod(pixels.shape[:-3])
    return []


def _merged(size: tuple[int, int], length: int) -> tuple[int, int] | None:
    """Return rows and columns of that many tokens, of patches merged by one factor in both directions.

    >>> _merged((4, 6), 6), _merged((4, 6), 5)
    ((2, 3), None)
    """
    rows, columns = size
    factor = math.isqrt(rows * columns // max(length, 1))
    fits = factor and rows % factor == 0 and columns % factor == 0
    return (rows // factor, columns // factor) if fits and rows * columns == length * factor**2 else None
