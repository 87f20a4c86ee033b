# SPDX-License-Identifier: MIT
"""Texts of a call in memory as a model reads them, and the forward passes that read them.

Token ids alone are grouped by length and padded here. Everything else that a forward pass takes goes to the
model as it came, some texts at a time where its tensors can be divided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.models import Checkpoint, Encoded, Encoder
from attnscope.models.architecture import input_device, largest_setting, text_config
from attnscope.models.inputs.forward_inputs import ForwardInputs, names_taken
from attnscope.models.inputs.prompt_learning import virtual_names, virtual_tokens
from attnscope.models.inputs.text_inputs import Chat, Entry, Pair, encode_text
from attnscope.models.inputs.token_layout import NO_TEXT, MediaLayouts, with_images
from attnscope.study_api.batches import BATCH_TOKENS, LAYER_BYTES, batches
from attnscope.study_api.forward import Batch, attention_body, batch_of, padded
from attnscope.study_api.samples import samples_table
from attnscope.study_api.units import Input, Unit
from attnscope.texts.sentence import Sentence

if TYPE_CHECKING:
    import pyarrow as pa

    from attnscope.capture import Layer
    from attnscope.capture.lazy.lazy_layer import LazyLayer

#: Texts of one pass whose number of tokens is not known beforehand.
_OTHERS_A_PASS = 8


@dataclass(frozen=True)
class ForwardPass:
    """One forward pass.

    Attributes:
        batch: its texts; of inputs that are no text their tokens are unknown before the pass.
        arguments: of the model.
        virtual: number of virtual tokens before each text.
        decoder: tokens of the decoder's texts, where there is a decoder.
        names: takes the tokens of samples that are no text, by sample.
        media: the layouts of pictures and sounds among the arguments; None without any.
    """

    batch: Batch
    arguments: Mapping[str, Any]
    virtual: int = 0
    decoder: Sequence[Sequence[str]] = ()
    names: dict[int, list[str]] = field(default_factory=dict)
    media: MediaLayouts | None = None

    @property
    def has_decoder(self) -> bool:
        """True for an encoder-decoder both parts of which read something."""
        return any(name.startswith("decoder_") for name in self.arguments)

    def is_of(self, layer: Layer | LazyLayer) -> bool:
        """Return True for a layer with a map for each sample: windows and pictures of a text have others."""
        return len(layer.valid) == len(self.batch.samples)

    def batch_of(self, layer: Layer | LazyLayer) -> Batch:
        """Return the batch as a layer sees it: its lengths, and the tokens that are its keys.

        Layers that read no text, or that of a decoder, have no token ids.
        """
        lengths = layer.lengths.tolist()
        of_decoder = self.decoder and "decoder" in layer.stack and not layer.cross
        tokens = self.decoder if of_decoder else self.batch.tokens
        before = virtual_names(self.virtual)
        tokens = [
            [*before, *names] if len(names) + self.virtual == n else names
            for names, n in zip(tokens, lengths, strict=True)
        ]
        reader = "" if layer.cross else layer.stack  # the keys of cross attention are another stack's
        other = any(part in reader.lower() for part in NO_TEXT)
        tokens = [
            self._other_names(n, reader) if other or len(names) != n else list(names)
            for names, n in zip(tokens, lengths, strict=True)
        ]
        for sample, token_names, names in zip(self.batch.samples, self.batch.tokens, tokens, strict=True):
            if not token_names:
                self.names.setdefault(sample, list(names))
        is_text = not (other or layer.cross or (self.has_decoder and "decoder" in layer.stack))
        return replace(
            self.batch,
            lengths=lengths,
            tokens=tokens,
            token_ids=self.batch.token_ids if is_text else [[] for _ in lengths],
            query_mask=self._query_mask(layer),
        )

    def _query_mask(self, layer: Layer | LazyLayer) -> Tensor | None:
        """Return the queries of a layer of cross attention that are no padding, None of self-attention."""
        if not layer.cross:
            return None
        mask = self.arguments.get("decoder_attention_mask" if self.has_decoder else "attention_mask")
        queries = (len(layer.valid), layer.attention.shape[-2])
        if mask is None or tuple(mask.shape) != queries:
            return torch.ones(queries, dtype=torch.bool, device="cpu")
        return mask.bool().cpu()

    def _other_names(self, n: int, stack: str) -> list[str]:
        """Return names of n tokens that are no text."""
        layout = self.media.layout(n, stack) if self.media else None
        return [str(place) for place in range(n)] if layout is None else list(layout.names)


@dataclass(frozen=True)
class PreparedTexts:
    """The texts of a call.

    Attributes:
        inputs: every text, in the order of its samples.
        plain: the places of those that are token ids alone.
        groups: the others: the first sample of each mapping, and its inputs.
        encoder: that made their tokens.
        processor: of pictures and sounds; None where none was given.
        answer_starts: by sample the number of tokens before its generated answer, where there is one.
    """

    inputs: Sequence[Input]
    plain: Sequence[int]
    groups: Sequence[tuple[int, ForwardInputs]]
    encoder: Encoder
    processor: Any = None
    answer_starts: Mapping[int, int] = field(default_factory=dict)
    _names: dict[int, list[str]] = field(default_factory=dict)
    _pictures: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of all arguments that some forward pass gets beside ids and their mask."""
        plain = {"input_ids", "attention_mask"}
        return sorted({name for _, group in self.groups for name in (*group.tensors, *group.others)} - plain)

    @property
    def arguments(self) -> dict[int, Callable[[], ForwardInputs] | None]:
        """Functions that give inputs of samples that are more than ids; None where a pass needs others."""
        inputs_of_samples: dict[int, Callable[[], ForwardInputs] | None] = {}
        for first, group in self.groups:
            for row in range(group.size):
                select_all = partial(replace, group) if group.size == 1 else None
                inputs_of_samples[first + row] = (
                    partial(group.select, [row]) if group.is_divisible else select_all
                )
        return inputs_of_samples

    def passes(self, label: str, model: Any, layer_bytes: int | None = None) -> Iterator[ForwardPass]:
        """Yield the forward passes, as many texts in each as the attention of a layer has room for.

        Args:
            label: of the model.
            model: of transformers.
            layer_bytes: bound for the attention of a layer; None takes `LAYER_BYTES`.
        """
        heads = largest_setting(text_config(model.config), "num_attention_heads", 1)
        virtual = virtual_tokens(model).number
        unit = _unit(label, [self.inputs[place] for place in self.plain])
        for inputs in batches(unit, heads, layer_bytes):
            batch = batch_of(inputs, self.encoder)
            arguments = padded(batch, self.encoder.pad_id, input_device(model))
            yield ForwardPass(batch, arguments, virtual, media=MediaLayouts(model))
        dtype = next((weights.dtype for weights in model.parameters() if weights.is_floating_point()), None)
        for first, group in self.groups:
            for rows in _divided(group, heads, layer_bytes or LAYER_BYTES):
                part = _trimmed(group.select(rows)) if group.is_divisible else group
                batch = batch_of([self.inputs[first + row] for row in rows], self.encoder)
                layouts = with_images(model, part.tensors, batch.token_ids, batch.tokens)
                for sample, layout in zip(batch.samples, layouts, strict=True):
                    if layout.pictures:
                        self._names[sample] = list(layout.names)
                        self._pictures[sample] = list(layout.pictures)
                batch = replace(batch, tokens=[layout.names for layout in layouts])
                yield ForwardPass(
                    batch,
                    part.to(input_device(model), dtype),
                    virtual,
                    self._of_decoder(part),
                    self._names,
                    MediaLayouts(model, part.tensors, self.processor),
                )

    def _of_decoder(self, part: ForwardInputs) -> list[list[str]]:
        """Return the tokens of the decoder's texts, none without a decoder."""
        ids = part.tensors.get("decoder_input_ids")
        if ids is None:
            return []
        mask = part.tensors.get("decoder_attention_mask", torch.ones_like(ids)).bool()
        return [self.encoder.names(row[keep].tolist()) for row, keep in zip(ids, mask, strict=True)]

    def _with_pictures(self, table: pa.Table) -> pa.Table:
        """Return the table with the first token and the number of tokens of each text's pictures."""
        import pyarrow as pa

        if not self._pictures:
            return table
        spans = [self._pictures.get(sample, []) for sample in table["sample"].to_pylist()]
        kind = pa.list_(pa.int64())
        for name, at in (("image_start", 0), ("image_tokens", 1)):
            table = table.append_column(name, pa.array([[span[at] for span in row] for row in spans], kind))
        return table

    def first_equal(self, parts: Sequence[Hashable]) -> list[int]:
        """Return the number of the first text of which the model reads the same and the same is measured.

        A text that cannot go through the model without the others of its pass is equal to none.

        Args:
            parts: what tells the measured parts of equal texts apart, one for each text.
        """
        read: list[Hashable] = [text.encoded.ids.tobytes() for text in self.inputs]
        for first, group in self.groups:
            for row in range(group.size):
                read[first + row] = _content(group, row) if group.is_divisible else (first, row)
        numbers: dict[Hashable, int] = {}
        return [numbers.setdefault(key, at) for at, key in enumerate(zip(read, parts, strict=True))]

    def samples_table(self, label: str, parts: Sequence[Hashable]) -> pa.Table:
        """Return the table `samples`; inputs that are no text have numbers for tokens, and no ids.

        Args:
            label: of the model.
            parts: as `first_equal` takes them.
        """
        import pyarrow as pa

        extras = {}
        if self.answer_starts:
            extras["answer_start"] = pa.array(
                [self.answer_starts[at] for at in range(len(self.inputs))], pa.int64()
            )
        equal = self.first_equal(parts)
        inputs = [replace(text, first_equal=at) for text, at in zip(self.inputs, equal, strict=True)]
        table = samples_table(_unit(label, inputs), self.encoder, extras, {}, "analyze")
        table = self._with_pictures(table)
        if not self._names:
            return table
        samples = table["sample"].to_pylist()
        tokens = [
            self._names.get(at, text_tokens)
            for at, text_tokens in zip(samples, table["tokens"].to_pylist(), strict=True)
        ]
        # lists that are all empty have no type of their own
        columns = {
            "tokens": pa.array(tokens, pa.list_(pa.string())),
            "token_ids": pa.array(table["token_ids"].to_pylist(), pa.list_(pa.int64())),
            "n_tokens": pa.array(
                [len(text_tokens) for text_tokens in tokens], table.schema.field("n_tokens").type
            ),
        }
        for name, values in columns.items():
            place = table.column_names.index(name)
            table = table.set_column(place, table.schema.field(name).with_type(values.type), values)
        return table


def prepare_texts(
    function: str, model: Any, entries: Sequence[Entry], encoder: Encoder, processor: Any = None
) -> PreparedTexts:
    """Return the entries of inputs as a model reads them, cut to its context.

    Args:
        function: whose name errors begin with.
        model: of transformers.
        entries: as `read_inputs` gives them.
        encoder: of the model.
        processor: of the model, which says what the parts of a picture or a sound are.

    Raises:
        ValueError: a text without a tokenizer, an entry without a token, an input that the model does not
            take or that cannot be cut.
    """
    inputs: list[Input] = []
    plain: list[int] = []
    groups: list[tuple[int, ForwardInputs]] = []
    for entry in _with_more(function, model, entries, encoder):
        first = len(inputs)
        if isinstance(entry, Mapping):
            group = ForwardInputs.of(function, entry, encoder.pad_id)
            group = group.only(attention_body(model, entry))
            if group.is_plain:
                rows: list[str | list[int]] = list(group.ids or ())
            else:
                group, of_group = _cut(group, encoder, first)
                groups.append((first, group))
                inputs += of_group
                continue
        else:
            rows = [entry] if isinstance(entry, (str, list)) else []
        for row in rows:
            place = len(inputs)
            text, ids = (row, None) if isinstance(row, str) else (None, tuple(row))
            encoded = encoder.encode(text, ids, place)
            if not len(encoded.ids):
                raise ValueError(f"{function}: input {place} has no token")
            plain.append(place)
            inputs.append(Input(_sentence(place, text, ids), encoded))
    return PreparedTexts(inputs, plain, groups, encoder, processor)


def _with_more(
    function: str, model: Any, entries: Sequence[Entry], encoder: Encoder
) -> Iterator[str | list[int] | Mapping[str, Any]]:
    """Yield the entries with pairs and conversations encoded, and texts whose tokens alone are not all."""
    tokenizer = encoder.tokenizer
    for entry in entries:
        if isinstance(entry, (str, Pair, Chat)) and tokenizer is None:
            raise ValueError(
                f"{function}: a text needs a tokenizer: {function}(model, inputs, metrics, tokenizer=...)"
            )
        if isinstance(entry, (Pair, Chat)):
            # a conversation longer than the context is cut with the ids
            yield encode_text(function, entry, tokenizer, encoder.limit)
        elif isinstance(entry, str) and _says_more(model, tokenizer):
            encoding = encode_text(function, entry, tokenizer, encoder.limit)
            silent = all(
                not np.any(encoding[name]) for name in set(encoding) - {"input_ids", "attention_mask"}
            )
            yield entry if silent else encoding
        else:
            yield entry


def _says_more(model: Any, tokenizer: Any) -> bool:
    """Return True where a tokenizer may give more than ids that the model takes."""
    names = set(getattr(tokenizer, "model_input_names", ())) - {"input_ids", "attention_mask"}
    if not names:
        return False
    return bool(names & names_taken(attention_body(model, ("input_ids",))))


def _cut(group: ForwardInputs, encoder: Encoder, first: int) -> tuple[ForwardInputs, list[Input]]:
    """Return a mapping's inputs within the context, and a text for each of them."""
    lengths = group.lengths
    limit = encoder.limit
    if limit is not None and group.n is not None and group.n > limit:
        group = group.cut(limit)
    rows = group.ids if group.ids is not None else [[] for _ in range(group.size)]
    inputs = []
    for row, (ids, length) in enumerate(zip(rows, lengths, strict=True)):
        if group.ids is not None:
            if not ids:
                raise ValueError(f"{group.function}: input {first + row} has no token")
            encoder.encode(None, ids, first + row)  # ids outside of the vocabulary are refused there
        starts = bool(ids) and encoder.bos_id is not None and ids[0] == encoder.bos_id
        cut = limit is not None and length > limit
        encoded = Encoded(np.asarray(ids, dtype=np.int32), cut, starts)
        inputs.append(Input(_sentence(first + row, None, tuple(ids)), encoded))
    return group, inputs


def _divided(group: ForwardInputs, heads: int, layer_bytes: int) -> Iterator[list[int]]:
    """Yield the rows of a mapping that one pass reads: texts of similar length together."""
    if not group.is_divisible:
        yield list(range(group.size))
        return
    lengths = group.lengths
    rows: list[int] = []
    for row in sorted(range(group.size), key=lambda row: (lengths[row], row)):
        n, size = lengths[row], len(rows) + 1
        room = size * heads * n * n * 4 <= layer_bytes and size * n <= BATCH_TOKENS
        if rows and not (room and (n or size <= _OTHERS_A_PASS)):
            yield rows
            rows = []
        rows.append(row)
    yield rows


def _content(group: ForwardInputs, row: int) -> bytes:
    """Return the hash of all that the model reads of a mapping's text, whatever padding stands behind it."""
    digest = hashlib.sha256()
    for name, tensor in sorted(_trimmed(group.select([row])).tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _trimmed(part: ForwardInputs) -> ForwardInputs:
    """Return the inputs without padding that all texts have at their end, where every tensor has it."""
    longest = max(part.lengths, default=0)
    if part.n is None or part.real is None or not longest or longest == part.n:
        return part
    padded_right = not bool(part.real[:, longest:].any())
    return part.cut(longest) if padded_right and all(part.along(name) for name in part.tensors) else part


def _sentence(sample: int, text: str | None, ids: tuple[int, ...] | None) -> Sentence:
    return Sentence(sample, "text", text, ids, "", sample)


def _unit(label: str, inputs: Sequence[Input]) -> Unit:
    return Unit("", "", "analyze", Checkpoint(label, "", -1, "", False), inputs=tuple(inputs))
