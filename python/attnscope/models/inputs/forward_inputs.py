# SPDX-License-Identifier: MIT
"""All that a forward pass takes for a text: segments, boxes, positions, images, a decoder's text.

A mapping is handed to the model as it came. Where texts are cut, chosen or repeated, every tensor that runs
along the tokens or along the texts goes with them, and what cannot go with them is refused by its name.

Example:
    >>> import torch
    >>> from attnscope.models.inputs.forward_inputs import ForwardInputs
    >>> lists = {"input_ids": [[1, 2, 3], [4, 5]], "token_type_ids": [[0, 0, 1], [0, 1]]}
    >>> texts = ForwardInputs.of("f", lists)
    >>> texts.lengths, texts.tensors["token_type_ids"].tolist()
    ([3, 2], [[0, 0, 1], [0, 1, 0]])
    >>> texts.select([1]).cut(2).tensors["input_ids"].tolist()
    [[4, 5]]
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnscope._checks import as_tensor

#: The inputs that say how long texts are, the first that is given.
MAIN = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values")
#: By-products of tokenizers and processors that no model reads.
_BY_PRODUCTS = frozenset(
    (
        *("special_tokens_mask", "offset_mapping", "overflowing_tokens", "overflow_to_sample_mapping"),
        *("num_truncated_tokens", "length", "labels", "text", "return_dict", "use_cache"),
        *("output_attentions", "output_hidden_states"),
    )
)
#: Inputs that have an axis of texts in every case.
_BATCHED = frozenset(("pixel_values", "input_features", "input_values"))
#: Beginnings of names whose axes have nothing to do with the tokens of the text, whatever their length.
_NOT_ALONG = ("pixel", "image", "video", "audio", "visual", "decoder", "entity", "input_features", "speaker")


@dataclass(frozen=True)
class ForwardInputs:
    """The inputs of one forward pass by the names of its arguments.

    Attributes:
        function: whose name errors begin with.
        tensors: by argument.
        others: what is no tensor, by argument.
        main: the argument that says how many texts there are.
    """

    function: str
    tensors: Mapping[str, Tensor]
    others: Mapping[str, Any]
    main: str

    @classmethod
    def of(cls, function: str, mapping: Mapping[str, Any], pad_id: int = 0) -> ForwardInputs:
        """Return the inputs of a mapping as tensors, lists of different lengths padded on the right.

        Args:
            function: whose name errors begin with.
            mapping: as a tokenizer or a processor gives it, or one text of it without the axis of texts.
            pad_id: fills ids behind the end of a text.

        Raises:
            ValueError: no input that says how many texts there are, an empty one, or lists that are no table.
            TypeError: names that are no text.
        """
        if unnamed := next((name for name in mapping if not isinstance(name, str)), None):
            raise TypeError(f"{function}: names of inputs must be texts, got {unnamed!r}")
        main = next((name for name in MAIN if mapping.get(name) is not None), "")
        if not main:
            raise ValueError(
                f"{function}: a mapping of inputs needs {', '.join(MAIN[:-1])} or {MAIN[-1]}, got "
                f"{', '.join(mapping) or 'nothing'}"
            )
        tensors: dict[str, Tensor] = {}
        others: dict[str, Any] = {}
        masked = False
        for name, value in mapping.items():
            if value is None or name in _BY_PRODUCTS:
                continue
            if isinstance(value, (Tensor, np.ndarray, list, tuple)):
                tensors[name], ragged = _tensor(function, name, value, pad_id)
                masked |= ragged and name == main
            else:
                others[name] = value
        if main in ("input_ids", "inputs_embeds"):
            axes = 1 if main == "input_ids" else 2
            if tensors[main].ndim == axes:  # one text without the axis of texts
                n = len(tensors[main])
                tensors = {
                    name: value[None] if value.ndim and len(value) == n and name not in _BATCHED else value
                    for name, value in tensors.items()
                }
            first = tensors[main]
            if first.ndim != axes + 1 or 0 in first.shape:
                shape = "[texts, tokens]" if axes == 1 else "[texts, tokens, width]"
                raise ValueError(f"{function}: {main} must have shape {shape}, got {tuple(first.shape)}")
            if main == "input_ids" and (first.is_floating_point() or first.dtype == torch.bool):
                raise ValueError(f"{function}: input_ids must be integers, got {first.dtype}")
            if masked and "attention_mask" not in tensors:
                ends = torch.tensor([len(row) for row in mapping[main]], device="cpu")
                tensors["attention_mask"] = (
                    torch.arange(first.shape[1], device="cpu") < ends[:, None]
                ).long()
        inputs = cls(function, tensors, others, main)
        mask = tensors.get("attention_mask")
        if inputs.n is not None and mask is not None and not _fits(mask, inputs.size, inputs.n):
            raise ValueError(
                f"{function}: attention_mask must have shape {(inputs.size, inputs.n)}, or that of queries "
                f"by keys, got {tuple(mask.shape)}"
            )
        return inputs

    @property
    def size(self) -> int:
        """Number of texts."""
        return len(self.tensors[self.main])

    @property
    def n(self) -> int | None:
        """Number of tokens of the longest text with its padding; None for inputs that are no text."""
        return self.tensors[self.main].shape[1] if self.main in ("input_ids", "inputs_embeds") else None

    @property
    def real(self) -> Tensor | None:
        """Return which entries of [texts, n] are tokens; None for inputs that are no text."""
        if self.n is None:
            return None
        mask = self.tensors.get("attention_mask")
        shape = (self.size, self.n)
        if mask is None or mask.ndim != 2:  # a mask of queries by keys is no padding
            return torch.ones(shape, dtype=torch.bool, device="cpu")
        return mask.detach().cpu().bool().expand(shape)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each text, 0 for inputs that are no text."""
        return [0] * self.size if self.real is None else [int(row.sum()) for row in self.real]

    @property
    def ids(self) -> list[list[int]] | None:
        """Token ids of each text without padding; None where there are none."""
        if self.main != "input_ids" or self.real is None:
            return None
        return [
            row[keep].tolist() for row, keep in zip(self.tensors["input_ids"].cpu(), self.real, strict=True)
        ]

    @property
    def is_plain(self) -> bool:
        """True for token ids and a padding mask alone, each text's tokens next to each other."""
        if self.others or set(self.tensors) - {"input_ids", "attention_mask"} or self.main != "input_ids":
            return False
        mask, real = self.tensors.get("attention_mask"), self.real
        if (mask is not None and mask.ndim != 2) or real is None:
            return False
        steps = torch.nn.functional.pad(real.int(), (1, 1)).diff(dim=1)
        return bool(((steps == 1).sum(1) == 1).all())

    def only(self, module: nn.Module) -> ForwardInputs:
        """Return the inputs, all of which a module's forward pass takes.

        Raises:
            ValueError: an input that is not taken and says something (zeros of segments say nothing).
        """
        names = names_taken(module)
        tensors = dict(self.tensors)
        for name in [name for name in (*tensors, *self.others) if name not in names]:
            silent = name == "token_type_ids" and not bool(tensors[name].any())
            silent |= name == "attention_mask" and bool(tensors[name].all())
            if not silent:
                raise ValueError(
                    f"{self.function}: {type(module).__name__} takes no {name}; it takes "
                    f"{', '.join(sorted(names))}"
                )
            del tensors[name]
        return replace(self, tensors=tensors)

    def along(self, name: str) -> tuple[int, ...]:
        """Return the axes of a tensor that run along the tokens of the text."""
        tensor, n = self.tensors[name], self.n
        if n is None or name.startswith(_NOT_ALONG):
            return ()
        if name in ("input_ids", "inputs_embeds"):
            return (1,)
        if name == "attention_mask":
            return tuple(axis for axis in range(1, tensor.ndim) if tensor.shape[axis] == n)[-2:]
        if name == "position_ids":  # also of several axes in front, and of all texts alike
            return (tensor.ndim - 1,) if tensor.shape[-1] == n else ()
        leading = tensor.ndim > 1 and tensor.shape[0] in (1, self.size) and tensor.shape[1] == n
        return (1,) if leading else ()

    def cut(self, length: int) -> ForwardInputs:
        """Return the inputs with at most the first `length` tokens of each text.

        Raises:
            ValueError: longer inputs of which a part stands for something else than their tokens.
        """
        if self.n is None or self.n <= length:
            return self
        loose = [name for name in self.tensors if not self.along(name)]
        loose = [name for name in loose if name.startswith(("pixel", "image", "video", "audio", "visual"))]
        if loose or self.others:
            raise ValueError(
                f"{self.function}: texts of {self.n} tokens are longer than {length} and cannot be cut with "
                f"{', '.join([*loose, *self.others])}"
            )
        tensors = dict(self.tensors)
        for name in tensors:
            for axis in self.along(name):
                tensors[name] = tensors[name].narrow(axis, 0, length)
        return replace(self, tensors=tensors)

    def texts_axis(self, name: str) -> int | None:
        """Return the axis of a tensor that runs over texts; None where all texts share it.

        Raises:
            ValueError: neither holds.
        """
        shape = self.tensors[name].shape
        if len(shape) and shape[0] == self.size:
            return 0
        if name == "position_ids" and len(shape) == 3 and shape[1] == self.size:
            return 1
        if len(shape) == 0 or (shape[0] == 1 and name in ("position_ids", "attention_mask")):
            return None
        raise ValueError(
            f"{self.function}: {name} of shape {tuple(shape)} does not belong to {self.size} texts, so it "
            "cannot go with some of them"
        )

    @property
    def is_divisible(self) -> bool:
        """True where some of the texts can be run without the others."""
        try:
            _ = [self.texts_axis(name) for name in self.tensors]
        except ValueError:
            return False
        return not self.others

    def select(self, texts: Sequence[int] | Tensor) -> ForwardInputs:
        """Return the inputs of some texts, in that order; a text may be asked for several times."""
        places = as_tensor(self.function, "texts", texts, dtype=torch.int64)
        tensors = {}
        for name, tensor in self.tensors.items():
            axis = self.texts_axis(name)
            tensors[name] = tensor if axis is None else tensor.index_select(axis, places.to(tensor.device))
        return replace(self, tensors=tensors)

    def to(self, device: Any, dtype: torch.dtype | None = None) -> dict[str, Any]:
        """Return the arguments of the forward pass on a device; numbers that are no whole ones in `dtype`."""
        arguments: dict[str, Any] = dict(self.others)
        for name, tensor in self.tensors.items():
            floats = dtype is not None and tensor.is_floating_point() and name != "attention_mask"
            arguments[name] = tensor.to(device, dtype) if floats else tensor.to(device)
        return arguments


def names_taken(module: Any) -> set[str]:
    """Return the arguments that a module's forward pass names; of a wrapper, those of the model inside."""
    parameters = inspect.signature(module.forward).parameters.values()
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = {parameter.name for parameter in parameters if parameter.kind not in loose}
    inner = getattr(module, "_orig_mod", None)  # of torch.compile
    if inner is None and hasattr(module, "get_base_model"):  # of peft
        inner = module.get_base_model()
    if inner is None and not names:  # a tuner of peft, a module for several devices
        inner = getattr(module, "model", getattr(module, "module", None))
    return names | (names_taken(inner) if isinstance(inner, nn.Module) else set())


def _tensor(function: str, name: str, value: Any, pad_id: int) -> tuple[Tensor, bool]:
    """Return a value as a tensor, and whether its rows had different lengths."""
    if isinstance(value, Tensor):
        return value, False
    if isinstance(value, (list, tuple)) and value and all(isinstance(row, Tensor) for row in value):
        value = [row.tolist() for row in value]
    rows = value if isinstance(value, (list, tuple)) else []
    sizes = {len(row) for row in rows if isinstance(row, (list, tuple, np.ndarray))}
    try:
        if len(sizes) < 2:
            return torch.from_numpy(np.asarray(value)), False
        parts = [torch.from_numpy(np.asarray(row)) for row in rows]
        fill = pad_id if name == "input_ids" else 0
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=fill), True
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{function}: {name} cannot be read as a tensor of numbers: {error}") from None


def _fits(mask: Tensor, size: int, n: int) -> bool:
    """Return True for a mask of padding, or of queries by keys."""
    if mask.ndim == 2:
        return tuple(mask.shape) == (size, n)
    return mask.ndim in (3, 4) and mask.shape[0] in (1, size) and tuple(mask.shape[-2:]) in ((n, n), (1, n))
