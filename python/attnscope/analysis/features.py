# SPDX-License-Identifier: MIT
"""A table of features for classifiers, from a model and texts, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attnscope._precision import Precision
from attnscope.analysis.analyze import measure_inputs
from attnscope.analysis.text_measurement import InputRequest
from attnscope.arguments.scalars import flag
from attnscope.metrics.request import Metrics
from attnscope.results.features import Features, features_of


def features(
    model: Any,
    texts: Any,
    metrics: Metrics | None = None,
    *,
    answers: Any = None,
    answer_unit: str = "tokens",
    answer_only: bool = False,
    generate: Mapping[str, Any] | None = None,
    labels: Any = None,
    groups: Any = None,
    layers: Sequence[int] | int | None = None,
    tokenizer: Any = None,
    column: str = "",
    precision: Precision | None = None,
    progress: bool = True,
    **options: Any,
) -> Features:
    """Measure the attention of a model on some texts and return a row of numbers for each text.

    The numbers are those of `analyze`, turned: a feature is a column of a head, of a layer, or of a layer's
    mean over heads, under a stable name such as `lookback__l03h11__answer`. Left out are positions, constants
    and numbers per token; numbers by rank stay.

    Length alone predicts many labels, and most metrics depend on it: show a probe of `index[["n_tokens",
    "n_answer"]]` next to every result.

    Args:
        model: a transformers model in evaluation mode, or a folder or hub id.
        texts: as `analyze` takes them.
        metrics: names of metrics or of columns, or a mapping, as `analyze` takes them; columns that are
            positions or constants only where they are named. None takes everything that the model gives.
        answers: of each text the first token of its answer and one past its last. Maps are then measured up
            to the answer's end, as if the text ended there, and names end in `__answer`.
        answer_unit: "tokens", or "characters" of texts under a fast tokenizer.
        answer_only: measure the block of the answer's queries and keys as it is, whose rows sum to less than
            1 (LLM-Check, spectral-trust).
        generate: options of the model's `generate`, such as {"max_new_tokens": 32}: each text is a prompt,
            the model writes its answer, and the features are of prompt and answer, as `answers` of the same
            tokens would give. Not together with `answers`.
        labels: of each text, for `index`; never a feature.
        groups: of each text, for `index`: texts that share words or a question.
        layers: only these layers.
        tokenizer: of the model, for texts; its folder or hub id, or None for a model that is one.
        column: of a table, the one that holds the texts.
        precision: "exact" or "fast", as `analyze` takes it.
        progress: a bar after two seconds, as `analyze` shows it.
        options: given to every metric that takes an option of that name.

    Returns:
        Features: `X` (float64, NaN where a metric has no value), `index`, `about`, `facts`.

    Raises:
        ValueError: `answer_only` without answers, a text without one, answers of the caller and of
            `generate`, another number of labels or groups,
            thresholds in words, and as `analyze`.

    Example:
        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> ids = torch.arange(12).reshape(2, 6)
        >>> model = LlamaForCausalLM(config).eval()
        >>> table = asc.features(model, ids, ["lookback"], answers=[(2, 6), (3, 5)])
        >>> list(table.X)
        ['lookback__l00h00__answer', 'lookback__l00h01__answer', 'lookback__l00mean__answer']
        >>> table.index[["n_tokens", "n_answer"]].to_numpy().tolist()
        [[6, 4], [6, 2]]
    """
    name = "features"
    if isinstance(metrics, Iterator):
        metrics = list(metrics)  # they are looked at twice
    answer_only = flag(name, "answer_only", answer_only)
    has_answers = answers is not None or generate is not None
    if answer_only and not has_answers:
        raise ValueError(f"{name}: answer_only needs answers, got None")
    _check_thresholds(options, metrics)
    region: Any = "text" if not has_answers else "answer" if answer_only else "prefix"
    request = InputRequest(
        name,
        "",
        column,
        answers,
        answer_unit,
        region,
        keep_empty=True,
        generate=generate,
        precision=precision,
        progress=flag(name, "progress", progress),
    )
    results = measure_inputs(request, model, texts, metrics, tokenizer, layers, options)
    count = len(results.table("samples", ["sample"]))
    index = {}
    for key, values in (("label", labels), ("group", groups)):
        if values is None:
            continue
        array = np.asarray(values)
        if array.shape != (count,):
            raise ValueError(f"{name}: {key}s must be one for each of {count} texts, got shape {array.shape}")
        index[key] = array
    named_columns = _named_columns(metrics, results.provenance["columns"])
    return features_of(results, also=named_columns, index=index)


def _named_columns(metrics: Metrics | None, columns: Mapping[str, Any]) -> list[str]:
    """Return the columns that are named themselves, which are features whatever their kind."""
    if metrics is None:
        return []
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    return [name for name in names if name in columns]


def _check_thresholds(options: Mapping[str, Any], metrics: Metrics | None) -> None:
    """Raise for thresholds that differ by the length of a text: a feature is of one threshold."""
    of_metrics = metrics.values() if isinstance(metrics, Mapping) else ()
    for settings in (options, *of_metrics):
        # options that are no mapping are refused where metrics are read
        thresholds = settings.get("thresholds", ()) if isinstance(settings, Mapping) else ()
        is_single = isinstance(thresholds, str) or not isinstance(thresholds, Iterable)
        is_single = is_single or getattr(thresholds, "ndim", 1) == 0
        for threshold in [thresholds] if is_single else thresholds:
            if isinstance(threshold, str):
                raise ValueError(
                    f"features: thresholds must be numbers, because {threshold!r} differs by text"
                )
