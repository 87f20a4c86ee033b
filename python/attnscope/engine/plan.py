# SPDX-License-Identifier: MIT
"""The plan of a run: every sentence encoded for every model, cut into units of work with stable names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from attnscope.engine.config import ConfigError, ModelSource, Study
from attnscope.engine.schema import SCHEMA_VERSION
from attnscope.engine.sources import Sentence, looks_wrapped, read_sentences
from attnscope.models import Checkpoint, Encoded, Encoder, LoadError, find_checkpoints, load_tokenizer
from attnscope.models.checkpoints import fingerprint
from attnscope.models.loading import context_length, load_config

#: Attention of one layer that a batch may hold when `max_memory` says nothing. A constant, because the
#: composition of batches must not depend on the machine's state: it decides the last bits of the numbers.
LAYER_BYTES = 128 * 1024**2
#: Padded tokens in one forward pass.
BATCH_TOKENS = 2048


@dataclass(frozen=True)
class Input:
    """A sentence as one model reads it."""

    sentence: Sentence
    encoded: Encoded

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.encoded.ids)


@dataclass(frozen=True)
class Unit:
    """The unit of work: one checkpoint and one block of sentences.

    Attributes:
        id: hash of everything that decides its numbers.
        file: name of its shard.
        checkpoint: which weights.
        source: position of the model in the study.
        inputs: the sentences.
        twin: whether a model of the same configuration with random weights reads them, as a null.
    """

    id: str
    file: str
    checkpoint: Checkpoint
    source: int
    inputs: tuple[Input, ...]
    twin: bool = False

    @property
    def tokens(self) -> int:
        """Number of tokens of all sentences."""
        return sum(one.n_tokens for one in self.inputs)


@dataclass
class Plan:
    """What a run will do.

    Attributes:
        study: the configuration.
        units: in the order in which they are done and stored.
        encoders: one per model of the study, by position.
        heads: attention heads per layer of each model.
        layers: layers of each model.
        skipped: title and reason of checkpoints that cannot be used.
        notes: what a person should know before trusting the numbers.
        twins: whether models with random weights are among the units.
        pads: whether a unit's numbers depend on the longest sentence of all.
        counts: sentences cut, of one token, empty, without BOS; per model label.
    """

    study: Study
    units: list[Unit] = field(default_factory=list)
    encoders: dict[int, Encoder] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    layers: dict[int, int] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    sentences: list[Sentence] = field(default_factory=list)
    twins: bool = False
    pads: bool = False

    @property
    def tokens(self) -> int:
        """Number of tokens of all units."""
        return sum(unit.tokens for unit in self.units)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Every checkpoint once, in order."""
        return list(dict.fromkeys(unit.checkpoint for unit in self.units))

    @property
    def digest(self) -> str:
        """Changes with anything that changes a number of the run."""
        return hashlib.sha256("".join(unit.id for unit in self.units).encode()).hexdigest()[:16]


def make_plan(study: Study, *, twins: bool = False, pads: bool = False) -> Plan:
    """Reads the sentences, finds the checkpoints, encodes, and cuts into units.

    Args:
        study: the configuration.
        twins: whether a twin of each model with random weights reads the sentences too.
        pads: whether a sentence's numbers depend on the length of the longest.

    Raises:
        ConfigError: the study cannot be done as it stands.
        LoadError: no model can be used at all.
    """
    plan = Plan(study, sentences=read_sentences(study.texts, study.seed), twins=twins, pads=pads)
    plan.notes += [
        f"{one.path}: every line is read as a sentence, but its lines look like wrapped paragraphs; "
        "--set texts.per=paragraph joins them"
        for one in study.texts
        if looks_wrapped(one)
    ]
    if short := sum(sentence.cut for sentence in plan.sentences):
        plan.notes.append(
            f"{short} of {len(plan.sentences)} sentences are cut to their source's max_characters"
        )
    labels: dict[str, int] = {}
    for position, source in enumerate(study.models):
        try:
            checkpoints = find_checkpoints(source.path, source.revisions, source.label)
        except FileNotFoundError as error:
            raise ConfigError(f"models[{position}]: {error}") from None
        if labels.setdefault(checkpoints[0].model, position) != position:
            raise ConfigError(
                f"models[{position}]: two models would be called {checkpoints[0].model!r} in the tables; "
                "give one of them a label"
            )
        try:
            inputs = _encode(plan, position, source, checkpoints)
        except LoadError as error:
            plan.skipped += [(one.title, str(error).removeprefix(f"{one.title}: ")) for one in checkpoints]
            continue
        for checkpoint in checkpoints:
            weights = fingerprint(checkpoint)
            _add_units(plan, position, source, checkpoint, weights, inputs)
        if plan.twins:
            # one for a whole series, whose checkpoints share their configuration
            _add_units(plan, position, source, checkpoints[0], "random weights", inputs, twin=True)
    if not plan.units:
        reasons = dict.fromkeys(f"{title}: {reason}" for title, reason in plan.skipped)
        raise LoadError("; ".join(reasons) or "no sentence is left to measure")
    _check_memory(plan)
    return plan


def _add_units(
    plan: Plan,
    position: int,
    source: ModelSource,
    checkpoint: Checkpoint,
    weights: str,
    inputs: Sequence[Input],
    *,
    twin: bool = False,
) -> None:
    block = plan.study.block
    for start in range(0, len(inputs), block):
        chosen = tuple(inputs[start : start + block])
        name = _unit_id(plan, position, source, checkpoint, weights, chosen)
        file = f"{len(plan.units):06d}-{name[:12]}.parquet"
        plan.units.append(Unit(name, file, checkpoint, position, chosen, twin))


def _encode(plan: Plan, position: int, source: ModelSource, checkpoints: Sequence[Checkpoint]) -> list[Input]:
    study = plan.study
    config, tokenizer = _config_and_tokenizer(plan, source, checkpoints)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    context = context_length(config, tokenizer)
    limit = min((one for one in (context, study.max_tokens) if one is not None), default=None)
    encoder = Encoder(tokenizer, limit, study.bos, getattr(text, "vocab_size", None), study.seed)
    inputs, counts = [], {"sentences": 0, "cut": 0, "of_one_token": 0, "empty": 0, "without_bos": 0}
    for sentence in plan.sentences:
        try:
            encoded = encoder.encode(sentence.text, sentence.token_ids, sentence.sample)
        except ValueError as error:
            raise ConfigError(
                f"{checkpoints[0].model}: {sentence.source}, row {sentence.source_row}: {error}"
            ) from None
        counts["sentences"] += 1
        counts["cut"] += encoded.truncated
        counts["of_one_token"] += len(encoded.ids) == 1
        counts["empty"] += len(encoded.ids) == 0
        counts["without_bos"] += not encoded.starts_with_bos
        if len(encoded.ids):
            inputs.append(Input(sentence, encoded))
    model = checkpoints[0].model
    plan.encoders[position] = encoder
    plan.heads[position] = int(getattr(text, "num_attention_heads", None) or 1)
    plan.layers[position] = int(getattr(text, "num_hidden_layers", None) or 1)
    plan.counts[model] = counts
    if getattr(config, "is_encoder_decoder", False):
        plan.notes.append(f"{model}: an encoder-decoder; its encoder is studied, its decoder is not")
    plan.notes += _notes(model, counts, study, limit)
    return inputs


def _config_and_tokenizer(
    plan: Plan, source: ModelSource, checkpoints: Sequence[Checkpoint]
) -> tuple[Any, Any]:
    """From the first checkpoint that has them: a broken one in a series must not end the sweep."""
    reasons = []
    needs_tokenizer = any(sentence.token_ids is None for sentence in plan.sentences)
    for checkpoint in checkpoints:
        try:
            config = load_config(checkpoint, trust_remote_code=source.trust_remote_code)
        except LoadError as error:
            reasons.append(str(error))
            continue
        try:
            return config, load_tokenizer(
                checkpoint, source.tokenizer, trust_remote_code=source.trust_remote_code
            )
        except LoadError as error:
            if not needs_tokenizer and not source.tokenizer:
                return config, None
            reasons.append(str(error))
    raise LoadError(reasons[0])


def _notes(model: str, counts: dict[str, int], study: Study, limit: int | None) -> list[str]:
    notes, total = [], counts["sentences"]
    if counts["cut"]:
        notes.append(
            f"{model}: {counts['cut']} of {total} sentences were longer than {limit} tokens and are cut"
        )
    if counts["of_one_token"]:
        notes.append(
            f"{model}: {counts['of_one_token']} of {total} sentences have one token: most metrics say nothing"
        )
    if counts["empty"]:
        notes.append(f"{model}: {counts['empty']} of {total} sentences have no token and are left out")
    if study.bos == "keep" and counts["without_bos"]:
        who = (
            "no sentence starts"
            if counts["without_bos"] == total
            else f"{counts['without_bos']} do not start"
        )
        notes.append(f"{model}: {who} with a BOS token; their first key is an ordinary token")
    return notes


def _unit_id(
    plan: Plan,
    position: int,
    source: ModelSource,
    checkpoint: Checkpoint,
    weights: str,
    block: Sequence[Input],
) -> str:
    from attnscope import __version__

    study = plan.study
    decisive = study.model_dump(
        include={"study", "metrics", "protocols", "thresholds", "layers", "bos", "bars", "max_memory", "seed"}
    )
    head = [__version__, SCHEMA_VERSION, decisive, study.options, source.dtype, source.device]
    head += [checkpoint.model, checkpoint.revision, checkpoint.step, weights]
    head += [plan.encoders[position].longest] if plan.pads else []
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for one in block:
        sentence = one.sentence
        about = [
            sentence.sample,
            sentence.group,
            sentence.text,
            sentence.source,
            sentence.source_row,
            sentence.extra,
        ]
        digest.update(json.dumps(about, sort_keys=True, default=str).encode())
        digest.update(one.encoded.ids.tobytes())
    return digest.hexdigest()


def _check_memory(plan: Plan) -> None:
    """Refuses a study whose longest sentence cannot fit into `max_memory`.

    Args:
        plan: of the run.

    Raises:
        ConfigError: naming the sentence, what it needs and what would help.
    """
    bound = plan.study.max_memory
    if bound is None:
        return
    worst = max(
        ((one.n_tokens, unit) for unit in plan.units for one in unit.inputs), key=lambda pair: pair[0]
    )
    n, unit = worst
    # two layers' attention, the head means in float64, and the metrics' own copies
    need = 4 * plan.heads[unit.source] * n * n * 4
    if need > int(bound):
        raise ConfigError(
            f"max_memory: a sentence of {n} tokens needs {megabytes(need)} for its attention in "
            f"{unit.checkpoint.model}, {megabytes(int(bound))} are allowed: raise it or set max_tokens"
        )


def batches(unit: Unit, heads: int, layer_bytes: int | None = None) -> list[list[Input]]:
    """Sentences of similar length, padded together as far as the memory allows.

    Args:
        unit: whose sentences.
        heads: attention heads of the model.
        layer_bytes: bound for the attention of one layer; a single sentence may exceed it.
    """
    bound = layer_bytes or LAYER_BYTES
    groups: list[list[Input]] = []
    for one in sorted(unit.inputs, key=lambda item: (item.n_tokens, item.sentence.sample)):
        n = one.n_tokens
        group = groups[-1] if groups else []
        size = len(group) + 1
        fits = size * heads * n * n * 4 <= bound and size * n <= BATCH_TOKENS
        if group and fits and n <= 1.25 * group[0].n_tokens + 8:
            group.append(one)
        else:
            groups.append([one])
    return groups


def megabytes(count: int) -> str:
    """Bytes for people.

    >>> megabytes(3 * 1024**3), megabytes(40 * 1024**2), megabytes(1500), megabytes(5)
    ('3.0 GB', '40 MB', '1.5 kB', '5 bytes')
    """
    for size, unit, places in ((1024**3, "GB", 1), (1024**2, "MB", 0), (1024, "kB", 1)):
        if count >= size:
            return f"{count / size:.{places}f} {unit}"
    return f"{count} bytes"
