# SPDX-License-Identifier: MIT
"""Capture and measure in one call, in memory: a model and some inputs in, results out.

No study, no files: every quantity whose sites can be captured is measured, under its name in stored tables.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from attnscope._precision import Precision, count_fallbacks
from attnscope._warn import collect_warnings, summarize, warn
from attnscope.analysis.answers import append_answers
from attnscope.analysis.named_models import open_model
from attnscope.analysis.prepared_texts import PreparedTexts, prepare_texts
from attnscope.analysis.recipe import Recipe, complete_recipe, named_recipe
from attnscope.analysis.text_measurement import InputRequest, TextMeasurement
from attnscope.analysis.text_sites import TextSites
from attnscope.arguments import scalars
from attnscope.capture.module_tracing import indices_argument, resolve_indices
from attnscope.config.run_config import parse_bytes
from attnscope.errors import LoadError, SitesRefused
from attnscope.metrics.request import Metrics
from attnscope.models import Encoder
from attnscope.models.architecture import depth, largest_setting, text_config
from attnscope.models.inputs.context_length import context_length
from attnscope.models.inputs.media_inputs import read_media, tokenizer_in
from attnscope.models.inputs.prompt_learning import virtual_tokens
from attnscope.models.inputs.text_inputs import Entry, read_inputs
from attnscope.results.results import Results


def analyze(
    model: Any,
    inputs: Any,
    metrics: Metrics | None = None,
    *,
    tokenizer: Any = None,
    processor: Any = None,
    layers: Sequence[int] | int | None = None,
    stack: str = "",
    answer: Any = None,
    answer_unit: str = "tokens",
    generate: Mapping[str, Any] | None = None,
    queries: Any = None,
    name: str = "",
    column: str = "",
    vectors: bool = False,
    precision: Precision | None = None,
    progress: bool = True,
    max_memory: int | str | None = None,
    **options: Any,
) -> Results:
    """Measure the attention of a model on some inputs, one layer at a time, without writing anything.

    Every layer is measured while it is alive; no more than two layers' maps are in memory.

    Args:
        model: a transformers model in evaluation mode, or a folder or hub id.
        inputs: a sentence, sentences, a tensor of token ids [batch, n], a column of pandas, a table with a
            column of texts, pairs of texts, messages of a conversation, or a mapping of what the model's
            forward pass takes, as a tokenizer or a processor returns it: all of it reaches the model.
        metrics: names of metrics or of columns, or a mapping from names of columns to options, as `measure`
            takes them; None takes every quantity with a number per map, or per map and threshold, that the
            model can give.
        tokenizer: of the model, for sentences and for readable tokens, or its folder or hub id; None: of a
            model that is a folder or hub id, its own.
        processor: of the model, for pictures, sounds, either with a text (a pair), and conversations with
            pictures as inputs; tokens are then called by their places: `CLS`, `patch (2, 3)`, `0.34 s`.
        layers: only these layers.
        stack: only layers of stacks whose name contains this, such as "vision" for the tower of pictures.
        answer: of each text the first token of its answer and one past its last, or None, for metrics of
            answers (`lookback`, `prompt_divergence`).
        answer_unit: "tokens"; or "characters", of texts under a fast tokenizer.
        generate: options of the model's `generate`, such as {"max_new_tokens": 32}: each text is a prompt,
            the model writes its answer, and both are measured in one pass. `samples` gets `answer_start`.
        queries: "answer", "prompt", a slice of each text's tokens, or booleans, one for each token (a row for
            each text, where they differ): means over rows are over these queries only. Numbers per query, of
            columns and of the map's spectrum or graph stay those of all queries. Layers that read other
            tokens (a decoder's, a picture's) have no answer and no prompt.
        name: of the model in the tables; empty takes its own.
        column: of a table, the one that holds the texts; empty takes text, sentence, content, or the only
            column of texts.
        vectors: also numbers per query, key or rank, of metrics that have numbers per map. Those of a metric
            that has no others are always given.
        precision: "fast" measures in float32 what holds its accuracy there, as each metric's docstring says;
            `provenance["precision"]` counts the maps that were measured exactly after all. None is exact for
            maps, and what `capture(lazy=True)` takes where attention is measured from queries and keys.
        progress: a bar after two seconds, on a terminal or in a notebook; elsewhere a line every ten seconds.
        max_memory: bound for the attention alive at a time, such as "4GB": fewer texts go into a pass.
        options: given to every metric that takes an option of that name. Metrics that compare attention with
            states (`geometric_semantic_alignment`, `reference_influence`) take `space`: "value", the head's
            own value vectors (the head mean has none: NaN), or "hidden", the residual stream entering the
            layer; without it alignment takes both and influence values. The reference is the head's own
            `sink_tokens`. `bars=True` adds the table of bars.

    Returns:
        Results with `samples`, and as the metrics need them: `heads` (a number per map, means over queries),
        `layers` (per layer), `graphs` (per map and threshold), `vectors` (per map and query, key or rank),
        `bars` (persistence). Columns are called as the quantities, in the stored tables of studies too.
        Every text has its rows; `text_unit` of `samples` is the first text that is equal, in what the model
        reads and in what of it is measured, and reports, figures and comparisons take equal texts once.
        The same of each layer's mean over its heads: `head_means`, `head_mean_graphs`, `head_mean_vectors`,
        `head_mean_bars`. Sample, layer and head count from 0; what has no value is null. Columns that got no
        value at all are in `results.left_out`, each with the reason; with metrics=None the tables lack them.
        Ctrl-C in a notebook or at a prompt gives the results of the texts that are measured; in a script the
        KeyboardInterrupt has them as `results`.
        Of an encoder-decoder the encoder is measured; where the mapping holds `decoder_input_ids`, its
        decoder and its cross attention too, whose layers count on behind the encoder's. The key `attention`
        is then "encoder", "decoder" or "cross". A row of cross attention is of a head's map of the decoder's
        tokens (`n_queries`) by the encoder's (`n_tokens`); what needs a graph, distances between queries and
        keys, or states is null there.

    Raises:
        ValueError: inputs of the wrong kind, an input that the model does not take, an unknown metric, a
            layer that is not there, an answer that is empty or outside its text.
        TypeError: an object that is no model, no tokenizer or no names of metrics.
        LoadError: the model or the tokenizer cannot be loaded, or the model not captured.

    Example:
        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        ...                      num_attention_heads=4, num_key_value_heads=2)
        >>> results = asc.analyze(LlamaForCausalLM(config).eval(), torch.arange(6)[None], ["fiedler_value"])
        >>> dict(results.to_xarray().sizes)
        {'model': 1, 'revision': 1, 'sample': 1, 'layer': 2, 'head': 4}

        The model writes three tokens behind four, and the entropy is that of the answer's queries alone:

        >>> model, prompt = LlamaForCausalLM(config).eval(), torch.arange(3, 7)[None]
        >>> answered = asc.analyze(model, prompt, "attention_entropy", queries="answer",
        ...                        generate={"max_new_tokens": 3, "eos_token_id": None})
        >>> answered["samples"][["answer_start", "n_tokens"]].values.tolist()
        [[4, 7]]
    """
    if isinstance(queries, (int, np.integer)) and not isinstance(queries, bool):
        # so many last ones, an option of `sink_share`
        options, queries = {**options, "queries": int(queries)}, None
    for argument, text in (("stack", stack), ("name", name), ("column", column)):
        if not isinstance(text, str):
            raise TypeError(f"analyze: {argument} must be a text, got {text!r}")
    request = InputRequest(
        "analyze",
        name,
        column,
        answer,
        answer_unit,
        processor=processor,
        stack=stack,
        generate=generate,
        queries=queries,
        cross=True,
        vectors=scalars.flag("analyze", "vectors", vectors),
        precision=precision,
        progress=scalars.flag("analyze", "progress", progress),
        layer_bytes=None if max_memory is None else _bytes_argument(max_memory) // 4,
        keep_partial=True,
    )
    return measure_inputs(request, model, inputs, metrics, tokenizer, layers, options)


def measure_inputs(
    request: InputRequest,
    model: Any,
    inputs: Any,
    metrics: Metrics | None,
    tokenizer: Any,
    layers: Sequence[int] | int | None,
    options: Mapping[str, Any],
) -> Results:
    """Measure the attention of a model on some inputs; arguments and result are those of `analyze`."""
    function = request.function
    _check_first_arguments(model, metrics)
    recipe = _recipe(request, metrics, options)._replace(precision=request.checked_precision)
    inputs, tokenizer = _read_processor(function, inputs, tokenizer, request.processor)
    loaded, tokenizer, own_name = open_model(function, model, tokenizer)
    label = request.name or own_name
    layers = indices_argument(function, "layers", layers)
    resolve_indices(layers, depth(loaded), f"layers of {type(loaded).__name__}")
    texts = _prepared(function, loaded, read_inputs(function, inputs, request.column), tokenizer, request)
    spans = request.spans(texts, tokenizer)
    text_sites = TextSites(loaded, spans, virtual_tokens(loaded).number, request.region)
    # without named metrics: all sites that the model gives
    sites = ((), recipe.states()) if metrics is None else (recipe.states(), ())
    measurement = TextMeasurement(request, recipe, label, sites, layers)
    with collect_warnings() as undefined, count_fallbacks(measurement.fallbacks):
        try:
            stop = measurement.run(loaded, texts, text_sites)
        except LoadError as error:
            words = f"{function}: {str(error).removeprefix('capture: ')}"
            if isinstance(error, SitesRefused):
                words += f"; or leave out {' and '.join(recipe.metrics_of_states())}"
            raise type(error)(words) from None
    summarize(undefined)
    if stop is not None and not (request.keep_partial and measurement.measured):
        raise stop
    results = measurement.results(loaded, texts, spans, undefined, is_complete=metrics is None)
    if stop is None:
        return results
    return _stopped(function, stop, results, len(measurement.measured), len(texts.inputs))


def _recipe(request: InputRequest, metrics: Metrics | None, options: Mapping[str, Any]) -> Recipe:
    """Return what is measured; errors begin with the function that was called, whatever it calls."""
    answered = request.has_answers
    for option in options:
        if close := difflib.get_close_matches(option, _ARGUMENTS, n=1, cutoff=0.8):
            raise TypeError(f"{request.function}: no argument {option!r}; did you mean {close[0]!r}?")
    try:
        if metrics is None:
            return complete_recipe(options, with_answers=answered)
        return named_recipe(metrics, options, with_answers=answered, with_vectors=request.vectors)
    except (ValueError, TypeError) as error:
        function, colon, words = str(error).partition(": ")
        if not colon or function not in ("measure", "analyze") or function == request.function:
            raise
        raise type(error)(f"{request.function}: {words}") from error


#: Arguments that are no options of metrics, by the names that a slip of the pen may come near to.
_ARGUMENTS = ("tokenizer", "processor", "layers", "answer", "generate", "column", "progress", "max_memory")


def _stopped(function: str, stop: KeyboardInterrupt, results: Results, measured: int, texts: int) -> Results:
    """Return the results of a call that somebody stopped at a prompt or in a notebook.

    Raises:
        KeyboardInterrupt: the stop of a script, which has the results as `results`.
    """
    if not hasattr(sys, "ps1"):
        stop.results = results  # type: ignore[attr-defined]
        raise stop
    warn(f"{function}: stopped; {measured} of {texts} texts are measured and in the results")
    return results


def _prepared(
    function: str, model: Any, entries: Sequence[Entry], tokenizer: Any, request: InputRequest
) -> PreparedTexts:
    """Return the entries of inputs as a model reads them, with its answers; warn of those that are cut."""
    limit = context_length(model.config, tokenizer, model)
    encoder = Encoder(tokenizer, limit, "keep", largest_setting(text_config(model.config), "vocab_size"))
    texts = prepare_texts(function, model, entries, encoder, request.processor)
    if cut := sum(text.encoded.truncated for text in texts.inputs):
        warn(f"{function}: {cut} of {len(texts.inputs)} texts were longer than {limit} tokens and are cut")
    return texts if request.generate is None else append_answers(function, model, texts, request.generate)


def _bytes_argument(max_memory: int | str) -> int:
    try:
        return parse_bytes(max_memory)
    except ValueError as error:
        raise ValueError(f"analyze: max_memory: {error}") from None


def _read_processor(function: str, inputs: Any, tokenizer: Any, processor: Any) -> tuple[Any, Any]:
    """Return the inputs as a processor reads them, and its tokenizer where no other is named."""
    if processor is None:
        return inputs, tokenizer
    tokenizer = tokenizer_in(processor) if tokenizer is None else tokenizer
    return read_media(function, inputs, processor), tokenizer


def _check_first_arguments(model: Any, metrics: Any) -> None:
    """Raise for an argument in the place of another."""
    if isinstance(model, (Tensor, np.ndarray)):
        raise TypeError(
            "analyze: the first argument must be a model, got "
            f"{'a tensor' if isinstance(model, Tensor) else 'an array'} of shape {tuple(model.shape)}; "
            "measure(attention, metrics) takes attention"
        )
    if metrics is not None and (
        hasattr(metrics, "convert_tokens_to_ids") or not isinstance(metrics, Iterable)
    ):
        raise TypeError(
            f"analyze: metrics must be names, got a {type(metrics).__name__}; a tokenizer is given as "
            "tokenizer=..."
        )
