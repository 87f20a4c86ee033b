# SPDX-License-Identifier: MIT
"""The attention of texts: of a model that reads them, or of a stored sentence captured again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from attnscope._tokens import readable
from attnscope._warn import warn
from attnscope.capture import capture
from attnscope.errors import ResultsError
from attnscope.metrics.support import LayerSupport
from attnscope.models.architecture import input_device
from attnscope.models.inputs.forward_inputs import ForwardInputs
from attnscope.models.inputs.media_inputs import read_media, tokenizer_in
from attnscope.models.inputs.prompt_learning import virtual_names, virtual_tokens
from attnscope.models.inputs.token_layout import NO_TEXT, MediaLayouts, TokenLayout, with_images
from attnscope.models.inputs.written_answers import check_generation, write_answers
from attnscope.models.tokens import Encoder
from attnscope.results.results import Results
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.results.summaries import in_training_order
from attnscope.view.measured import ShownText, Stack, answer_of
from attnscope.view.pictures import pictures_of
from attnscope.view.read_texts import label_of_text, read_texts
from attnscope.view.table_checks import checked_table, read_token_ids

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.config.run_config import RunConfig


def texts_of_model(
    model: Any,
    text: Any,
    tokenizer: Any,
    processor: Any = None,
    *,
    generate: Mapping[str, Any] | None = None,
    answer: Any = None,
) -> tuple[int, Iterator[ShownText]]:
    """Return the number of texts and, as they are captured, each with every layer's attention and pictures.

    With `generate` the model writes an answer first, whose span each stack holds; otherwise `answer` says it.
    """
    if text is None:
        raise ValueError('view: a model needs a text: view(model, "a sentence", tokenizer=tokenizer)')
    shown = text
    if processor is not None:
        text = read_media("view", text, processor)
        tokenizer = tokenizer_in(processor) if tokenizer is None else tokenizer
    texts = read_texts(model, text, tokenizer)
    if answer is not None and len(texts) > 1:
        raise ValueError(f"view: answer says where the answer of one text is, got {len(texts)} texts")
    has_items = isinstance(shown, (list, tuple)) and len(shown) == len(texts) > 1

    def captured() -> Iterator[ShownText]:
        for place, read in enumerate(texts):
            stacks, group = _stacks_of_text(
                model, read.inputs, tokenizer, processor, generate=generate, answer=answer
            )
            pictures = pictures_of(group.tensors, shown[place] if has_items else shown, processor)
            yield ShownText(read.label or _joined(stacks[0]), stacks, pictures)

    return len(texts), captured()


def _joined(stack: Stack) -> str:
    """Return the tokens of a stack as a text, numbers with blanks between."""
    names = [readable(token) for token in (stack.queries or stack.keys)]
    return label_of_text((" " if all(name.isdigit() for name in names) else "").join(names))


def _stacks_of_text(
    model: Any,
    group: ForwardInputs,
    tokenizer: Any,
    processor: Any,
    *,
    generate: Mapping[str, Any] | None,
    answer: Any,
) -> tuple[list[Stack], ForwardInputs]:
    """Return every layer's attention of one text, layers of one kind together, and what the model read."""
    if generate is not None:
        group, answer = _with_answer(model, group, Encoder(tokenizer), generate)
    names = _names_of(model, group, Encoder(tokenizer), processor)
    has_decoder = "decoder_input_ids" in group.tensors
    stacks: dict[str, list[tuple[Tensor, LayerSupport]]] = {}
    numbers: dict[str, list[int]] = {}
    kinds: dict[str, tuple[bool, bool]] = {}
    several: dict[str, int] = {}
    narrow: list[str] = []
    arguments = group.to(input_device(model), getattr(model, "dtype", None))
    with capture(model) as recording, torch.no_grad():
        for layer in recording.run(**arguments):
            if len(layer.valid) != 1:  # of windows, or of each of several pictures
                several.setdefault(layer.stack, len(layer.valid))
                continue
            height, width = layer.attention.shape[-2:]
            if height > width and not layer.cross:  # keys are averages over some of them
                narrow.append(f"layer {layer.index} of {layer.stack}: {height} x {width}")
                continue
            maps = layer.attention[0][..., layer.valid[0].to(layer.attention.device)]
            square = not layer.cross and layer.attention.shape[-1] == layer.attention.shape[-2]
            seen = LayerSupport.of(layer) if square else LayerSupport("auto", None)
            maps = layer.matrices()[0] if square else maps
            stacks.setdefault(layer.stack, []).append((maps.float().cpu(), seen))
            numbers.setdefault(layer.stack, []).append(layer.index)
            kinds[layer.stack] = layer.cross, "decoder" in layer.stack and has_decoder
    if narrow:
        raise ValueError(
            f"view: {type(model).__name__}: a page has no place for layers with more queries than keys: "
            f"{', '.join(narrow[:3])}; capture(model) gives them"
        )
    _refuse_several(type(model).__name__, several, has_stacks=bool(stacks))
    titled = []
    for stack, (title, part) in _one_size(stacks, kinds, has_decoder).items():
        keys, queries = _tokens(part, names, *kinds[stack], stack)
        layers, supports = [maps for maps, _ in part], [seen for _, seen in part]
        titled.append(
            Stack(
                title,
                layers,
                keys.names,
                None if queries is None else queries.names,
                supports,
                keys.grids,
                cross=kinds[stack][0],
                answer=_answer_of_stack(answer, names, kinds[stack], layers[0].shape[-2]),
                numbers=numbers[stack],
            )
        )
    return titled, group


def _with_answer(
    model: Any, group: ForwardInputs, encoder: Encoder, options: Mapping[str, Any]
) -> tuple[ForwardInputs, int]:
    """Return the inputs with the answer that a model writes behind their prompt, and its first token."""
    check_generation("view", model, options)
    if not group.is_plain or not group.ids:
        others = ", ".join(sorted(set(group.tensors) - {"input_ids", "attention_mask"}))
        raise ValueError(f"view: generate takes a text or token ids, got inputs with {others} too")
    (prompt,) = group.ids
    tokens = write_answers(model, prompt, options, encoder.pad_id)[0]
    if len(tokens) == len(prompt):
        raise ValueError("view: the model wrote nothing; generate takes max_new_tokens, at least 1")
    return ForwardInputs.of("view", {"input_ids": [tokens]}), len(prompt)


def _answer_of_stack(answer: Any, names: _Names, kind: tuple[bool, bool], queries: int) -> Any:
    """Return the span of the answer among the queries of a stack: of an encoder-decoder the decoder's."""
    cross, of_decoder = kind
    tokens = names.texts["decoder" if names.texts["decoder"].names else "own"].names
    if not of_decoder and not cross and names.texts["decoder"].names:
        return None
    return answer_of(answer, len(tokens)) if queries == len(tokens) else None


def _refuse_several(model: str, several: Mapping[str, int], *, has_stacks: bool) -> None:
    """Warn of stacks with more than one map of a head; raise where there are no others."""
    if several:
        words = ", ".join(f"{stack} ({count} maps)" for stack, count in several.items())
        message = (
            f"view: {model}: maps of windows or of single pictures, not one for the input: {words}; "
            "capture(model) gives them"
        )
        if not has_stacks:
            raise ValueError(message)
        warn(f"{message}; these layers are left out")
    elif not has_stacks:
        raise ValueError(f"view: {model} gave no attention")


class _Names(NamedTuple):
    """The layouts of an input's tokens: by kind of text, and of what is no text."""

    texts: Mapping[str, TokenLayout]
    media: MediaLayouts


def _names_of(model: Any, group: ForwardInputs, encoder: Encoder, processor: Any) -> _Names:
    """Return the layouts of the tokens of a model's input."""
    ids = group.ids[0] if group.ids else []
    text = with_images(model, group.tensors, [ids], [encoder.names(ids)])[0]
    before = virtual_names(virtual_tokens(model).number)
    decoder = group.tensors.get("decoder_input_ids")
    of_decoder = [] if decoder is None else encoder.names(decoder[0].tolist())
    texts = {
        "own": text,
        "with virtual tokens": TokenLayout([*before, *text.names]),
        "decoder": TokenLayout(of_decoder),
    }
    return _Names(texts, MediaLayouts(model, group.tensors, processor))


def _one_size(
    stacks: Mapping[str, list[tuple[Tensor, LayerSupport]]],
    kinds: Mapping[str, tuple[bool, bool]],
    has_decoder: bool,
) -> dict[str, tuple[str, list[tuple[Tensor, LayerSupport]]]]:
    """Return the stacks with a title each: of an encoder-decoder its three kinds, of others their names."""
    titled = {}
    for stack, part in stacks.items():
        cross, of_decoder = kinds[stack]
        title = "cross" if cross else "decoder" if of_decoder else "encoder" if has_decoder else stack
        titled[stack] = ("" if len(stacks) == 1 else title, part)
    titles = [title for title, _ in titled.values()]
    # two stacks of one kind keep their own names
    return {
        stack: (title if titles.count(title) == 1 else stack, part) for stack, (title, part) in titled.items()
    }


def _tokens(
    part: Sequence[tuple[Tensor, LayerSupport]], names: _Names, cross: bool, of_decoder: bool, stack: str
) -> tuple[TokenLayout, TokenLayout | None]:
    """Return the layout of keys, and of queries where they are others."""
    queries, keys = part[0][0].shape[-2:]

    def layout_of(size: int, *kinds: str, reader: str = stack) -> TokenLayout:
        texts = [names.texts[kind] for kind in kinds]
        fitting = next((text for text in texts if len(text.names) == size > 0), None)
        layout = fitting or names.media.layout(size, reader)
        return layout or TokenLayout([str(place) for place in range(size)])

    if cross:  # the keys are the encoder's
        of_queries = "decoder" if names.texts["decoder"].names else "own"
        return layout_of(keys, "own", reader=""), layout_of(queries, of_queries)
    is_other = any(word in stack.lower() for word in NO_TEXT)
    kinds_of_names = () if is_other else ("decoder",) if of_decoder else ("own", "with virtual tokens")
    if queries != keys:  # keys of a learned prefix attend to nothing
        return layout_of(keys, "with virtual tokens"), layout_of(queries, *kinds_of_names)
    return layout_of(keys, *kinds_of_names), None


def captured_sentence(
    results: Results, sample: int, model: Any = None, *, trust_remote_code: bool = False
) -> pd.DataFrame:
    """Return every head's matrix of one sentence, at the last checkpoint that read it.

    Results of `analyze` remember their model while that is alive. Python code that comes with a model of the
    stored study runs with `trust_remote_code` only.
    """
    import pandas as pd

    from attnscope.config.run_config import RunConfig, refuse_stored_trust
    from attnscope.errors import ConfigError
    from attnscope.study_api.forward import self_attention

    samples = checked_table(results, "samples")
    rows = samples[samples["sample"] == sample]
    if rows.empty:
        raise ResultsError(f"view: the run has no sample {sample}, only 0 to {samples['sample'].max()}")
    model = results.model() if model is None and results.model is not None else model
    if not results.study and model is None:
        raise ResultsError(
            "view: these results name no study and their model is gone: view(results, sample=0, model=model)"
        )
    row = in_training_order(rows).iloc[-1]
    checkpoint = tuple(row[[*CHECKPOINT_KEYS]])
    layers = None
    if model is None:
        study = RunConfig(**results.study)
        if not trust_remote_code:
            try:
                refuse_stored_trust(study, "view")
            except ConfigError as error:
                raise ResultsError(str(error)) from error
        model, layers = _loaded(study, checkpoint), study.layers or None
    ids = read_token_ids(row.get("token_ids"), sample)
    arguments = {"input_ids": torch.tensor([ids], device=input_device(model))}
    stored_inputs = results.provenance.get("inputs")
    if group := results.inputs.get(sample):
        arguments = group().to(input_device(model), getattr(model, "dtype", None))
    elif stored_inputs and (sample in results.inputs or not results.inputs):
        raise ResultsError(
            f"view: sample {sample} was read with {', '.join(stored_inputs)}, which stored results do not "
            "hold; view "
            "the results of analyze themselves, or view(model, inputs)"
        )
    rows_of_heads = [
        {
            "layer": number,
            "head": head,
            "attention": matrix.numpy().ravel(),
            "n_tokens": len(matrix),
            "support": layer.visibility.name,
        }
        for number, layer in self_attention(model, arguments, layers=layers, cross=True)
        if not layer.cross  # its numbers are those of analyze; a page of samples shows squares
        for head, matrix in zip(layer.heads, layer.matrices()[0].float().cpu(), strict=True)
    ]
    return pd.DataFrame(rows_of_heads).assign(**row[[*CHECKPOINT_KEYS, "sample"]])


def _loaded(study: RunConfig, checkpoint: tuple[str, str, int]) -> Any:
    """Return the model of a checkpoint of a run."""
    from attnscope.models import LoadError, find_checkpoints, load_model

    try:
        for source in study.models:
            for candidate in find_checkpoints(source.path, source.revisions, source.label):
                if (candidate.model, candidate.revision, candidate.step) == checkpoint:
                    return load_model(
                        candidate, dtype=source.dtype, trust_remote_code=source.trust_remote_code
                    ).model
        raise LoadError(f"no checkpoint of it has revision {checkpoint[1]!r} and step {checkpoint[2]}")
    except (FileNotFoundError, LoadError) as error:
        raise ResultsError(
            f"view: the model {checkpoint[0]} of the run cannot be loaded again: {error}"
        ) from error
