# SPDX-License-Identifier: MIT
"""Texts of a plan as each of its models reads them, and what was cut or left out on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnscope.config.run_config import RunConfig
from attnscope.errors import ConfigError
from attnscope.models import Encoder, LoadError, load_tokenizer
from attnscope.models.architecture import largest_setting, text_config
from attnscope.models.inputs.context_length import context_length
from attnscope.models.loading import load_config
from attnscope.study_api.units import Input
from attnscope.texts.sentence import Sentence
from attnscope.texts.windows import windows

if TYPE_CHECKING:
    from attnscope.study_api.plan import Plan
    from attnscope.study_api.study import Study


def encode(plan: Plan, study: Study, position: int) -> list[Input]:
    """Return the texts of a run as one model reads them; notes about them go into the plan."""
    settings, model = plan.settings, plan.series[position][0].model
    config, tokenizer = _config_and_tokenizer(plan, position)
    if getattr(config, "is_encoder_decoder", False):
        if study.causal:
            raise LoadError(f"{config.model_type} has an encoder; {study.name} needs a causal map")
        plan.notes.append(f"{model}: an encoder-decoder; its encoder is studied, its decoder is not")
    text_settings, context = text_config(config), context_length(config, tokenizer)
    _require_layers(model, settings.layers, largest_setting(text_settings, "num_hidden_layers"))
    limit = min((bound for bound in (context, settings.max_tokens) if bound is not None), default=None)
    encoder = Encoder(
        tokenizer, limit, settings.bos, largest_setting(text_settings, "vocab_size"), settings.seed
    )
    read: list[Input] = []
    windowed = any(source.per == "window" for source in settings.texts)
    sentences: Sequence[Sentence] = plan.sentences
    if windowed:
        sentences = windows(plan.sentences, settings, encoder, model, plan.notes)
    sentences = study.prepare_texts(sentences, encoder, model, plan)
    for sentence in sentences:
        try:
            if windowed:
                encoded = encoder.window(sentence.token_ids or (), sentence.sample)
            else:
                encoded = encoder.encode(sentence.text, sentence.token_ids, sentence.sample)
        except ValueError as error:
            raise ConfigError(f"{model}: {sentence.source}, row {sentence.source_row}: {error}") from None
        read.append(Input(sentence, encoded))
    read = _with_first_equal(read) if study.joins_equal_texts else read
    counts = {
        "sentences": len(read),
        "cut": sum(text.encoded.truncated for text in read),
        "of_one_token": sum(text.n_tokens == 1 for text in read),
        "empty": sum(text.n_tokens == 0 for text in read),
        "without_bos": sum(not text.encoded.starts_with_bos for text in read),
    }
    if study.joins_equal_texts:
        counts["repeated"] = sum(text.is_repeated for text in read if text.n_tokens)
    plan.encoders[position] = encoder
    # heads whose maps are in memory together
    heads = largest_setting(text_settings, "num_attention_heads", 1)
    plan.heads[position] = heads if study.holds_maps else 0
    plan.layers[position] = len(settings.layers) or largest_setting(text_settings, "num_hidden_layers", 1)
    width = largest_setting(text_settings, "hidden_size", 1)
    plan.widths[position] = width, largest_setting(text_settings, "intermediate_size", 4 * width)
    plan.counts[model] = counts
    plan.notes += _notes(model, counts, settings, limit)
    return [text for text in read if text.n_tokens]


def _with_first_equal(texts: Sequence[Input]) -> list[Input]:
    """Return the texts with the number of the first of those that are equal: in words, or as they are read.

    A tokenizer or a limit of tokens can make two texts one; a BOS token that is drawn for each text, one two.
    """
    first: dict[str | bytes, int] = {}
    read = []
    for text in texts:
        spelled = text.sentence.text
        names: list[str | bytes] = [text.encoded.ids.tobytes()]
        names += [spelled] if spelled is not None else []
        equal = min([first[name] for name in names if name in first], default=text.sentence.sample)
        for name in names:
            first.setdefault(name, equal)
        read.append(replace(text, first_equal=equal))
    return read


def _require_layers(model: str, layers: Sequence[int], depth: int | None) -> None:
    """Raise ConfigError for a layer that a model, whose configuration names its depth, does not have."""
    if depth is not None and (outside := [layer for layer in layers if layer >= depth]):
        raise ConfigError(f"layers: {model} has layers 0 to {depth - 1}, got {outside}")


def _config_and_tokenizer(plan: Plan, position: int) -> tuple[Any, Any]:
    """Return the configuration and tokenizer of the first checkpoint that has them: a broken one in a
    series must not end the sweep.
    """
    reasons = []
    source = plan.settings.models[position]
    trust = source.trust_remote_code
    needs_tokenizer = any(sentence.token_ids is None for sentence in plan.sentences)
    for checkpoint in plan.series[position]:
        config = None
        try:
            config = load_config(checkpoint, trust_remote_code=trust)
            return config, load_tokenizer(checkpoint, source.tokenizer, trust_remote_code=trust)
        except LoadError as error:
            if config is not None and not needs_tokenizer and not source.tokenizer:
                return config, None
            reasons.append(str(error))
    raise LoadError(reasons[0])


def _notes(model: str, counts: dict[str, int], settings: RunConfig, limit: int | None) -> list[str]:
    total, without = counts["sentences"], counts["without_bos"] if settings.bos == "keep" else 0
    who = "no sentence starts" if without == total else f"{without} do not start"
    notes = (
        ("cut", f"sentences were longer than {limit} tokens and are cut"),
        ("of_one_token", "sentences have one token: most metrics say nothing"),
        ("empty", "sentences have no token and are left out"),
        ("repeated", "sentences are read as an earlier one is: exact tests and intervals take equal as one"),
    )
    sentences = [f"{model}: {counts[key]} of {total} {words}" for key, words in notes if counts.get(key)]
    if without:
        sentences.append(f"{model}: {who} with a BOS token; their first key is an ordinary token")
    return sentences
