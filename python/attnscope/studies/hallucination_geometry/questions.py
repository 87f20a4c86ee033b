# SPDX-License-Identifier: MIT
"""Questions of a run as one model is asked them, and what can be known of their buckets without any model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope._nearest import nearest
from attnscope.errors import ConfigError
from attnscope.inference.detection import detection

if TYPE_CHECKING:
    from attnscope.engine.texts.sentence import Sentence
    from attnscope.models import Encoder
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions
    from attnscope.study_api.plan import Plan

NAME = "hallucination_geometry"
FOLDS = 8


def worded(
    sentences: Sequence[Sentence], encoder: Encoder, model: str, plan: Plan, options: HallucinationOptions
) -> list[Sentence]:
    """The questions in their prompts; what cannot be asked is left out and counted."""
    if encoder.tokenizer is None:
        raise ConfigError(f"{NAME}: questions need a tokenizer, and {model} has none")
    rows = [_named(one, options) for one in sentences]
    wanted = (options.reference, *options.others)
    counts = Counter(one.extra["bucket"] for one in rows)
    if options.bucket_by == "label":
        for bucket in wanted:
            if bucket not in counts:
                raise ConfigError(
                    f"{NAME}: no prompt of the bucket {bucket!r} in column {options.bucket!r}"
                    f"{nearest(bucket, counts)}; there are {dict(counts)}"
                )
        if all(one.samples is None for one in plan.settings.texts):
            _check_whole_pairs(rows, options)
    else:
        wanted = (options.reference,)
    rows = [one for one in rows if one.extra["bucket"] in wanted]
    first = {one.text: one.sample for one in reversed(rows)}
    kept = [one for one in rows if first[one.text] == one.sample]
    if len(kept) < len(rows):
        plan.notes.append(f"{model}: {len(rows) - len(kept)} prompts stand there twice and are left out")
    _check_pairs(kept, model, plan, options)
    kept = _matched(kept, encoder, model, plan, options)
    asked = [replace(one, text=prompt(str(one.text), encoder, options)) for one in kept]
    _check(asked, encoder, options)
    return asked


def prompt(question: str, encoder: Encoder, options: HallucinationOptions) -> str:
    """A question inside what is asked around it."""
    if not options.chat:
        return options.prompt.format(question=question)
    made: str = encoder.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    bos = encoder.tokenizer.bos_token
    # the tokenizer sets its own when the text is encoded
    return made.removeprefix(bos) if bos else made


def _named(sentence: Sentence, options: HallucinationOptions) -> Sentence:
    """A question with its columns under the study's names."""
    extra = sentence.extra
    if sentence.text is None:
        raise ConfigError(f"{NAME}: questions must be texts, {sentence.source} holds token ids")
    if options.bucket not in extra and options.bucket_by == "label":
        raise ConfigError(
            f"options.bucket: no column {options.bucket!r} in {sentence.source}"
            f"{nearest(options.bucket, extra)}; there are {', '.join(extra) or 'none'}"
        )

    def cell(name: str, otherwise: str) -> str:
        value = extra.get(name)
        if isinstance(value, (list, tuple)):
            value = "|".join(map(str, value))
        return otherwise if value is None or value == "" else str(value)

    template = cell(options.template, f"prompt {sentence.sample}")
    own = {
        "bucket": cell(options.bucket, options.reference),
        "template": template,
        "pair": cell(options.pair, ""),
        "answer": cell(options.answer, ""),
        "fold": cell(options.fold, ""),
        "question": str(sentence.text),
        "candidates": cell("candidates", ""),
        "templated": options.template in extra,
    }
    return replace(sentence, extra=own)


def _matched(
    rows: list[Sentence], encoder: Encoder, model: str, plan: Plan, options: HallucinationOptions
) -> list[Sentence]:
    """Prompts about something unknown in as many tokens as their partners; the others are left out."""
    if options.match_tokens is None:
        return rows

    def tokens(question: str) -> int:
        return len(encoder.bare(prompt(question, encoder, options)))

    partners = {
        one.extra["pair"]: tokens(str(one.text))
        for one in rows
        if one.extra["bucket"] == options.reference and one.extra["pair"]
    }
    kept, dropped = [], 0
    for one in rows:
        length = partners.get(one.extra["pair"])
        if one.extra["bucket"] != "unknown" or length is None:
            kept.append(one)
            continue
        names = one.extra["candidates"].split("|")
        made = [str(one.text).replace(names[0], name) for name in names] if names[0] else [str(one.text)]
        fitting = [q for q in made if abs(tokens(q) - length) <= options.match_tokens]
        if fitting:
            kept.append(replace(one, text=fitting[0], extra={**one.extra, "question": fitting[0]}))
        dropped += not fitting
    if dropped:
        plan.notes.append(
            f"{model}: {dropped} prompts about something unknown have no name of as many tokens as their "
            "partners' and are left out (options.match_tokens)"
        )
    return kept


def _check_whole_pairs(rows: Sequence[Sentence], options: HallucinationOptions) -> None:
    """Raises for a value of `pair` that one row of whole files has: a slip of the pen, or a wrong column."""
    counts = Counter(one.extra["pair"] for one in rows if one.extra["pair"])
    for one in rows:
        if counts[one.extra["pair"]] == 1:
            unpaired = sum(count == 1 for count in counts.values())
            raise ConfigError(
                f"options.pair: {unpaired} of {len(counts)} values stand in one row each, first "
                f"{one.extra['pair']!r} in row {one.source_row} ({one.extra['bucket']}: "
                f"{str(one.text)[:60]!r}); a pair is of {options.reference!r} and another bucket, and a "
                "question without one has an empty cell"
            )


def _check_pairs(rows: Sequence[Sentence], model: str, plan: Plan, options: HallucinationOptions) -> None:
    """Raises for pairs of two prompts of one bucket, or where none is whole; counts those that are not."""
    pairs: dict[str, Counter[str]] = {}
    for one in rows:
        if one.extra["pair"]:
            pairs.setdefault(one.extra["pair"], Counter())[one.extra["bucket"]] += 1
    twice = [name for name, own in pairs.items() if max(own.values()) > 1]
    if twice:
        raise ConfigError(
            f"options.pair: {twice[0]!r} has {dict(pairs[twice[0]])}; a pair has one prompt of each bucket"
        )
    if pairs and options.bucket_by == "label":
        alone = [name for name, own in pairs.items() if options.reference not in own or len(own) < 2]
        if len(alone) == len(pairs):
            raise ConfigError(
                f"options.pair: none of {len(pairs)} values is of {options.reference!r} and another bucket"
            )
        if alone:
            plan.notes.append(
                f"{model}: options.pair: {len(alone)} of {len(pairs)} values, {alone[0]!r} first, are not of "
                f"{options.reference!r} and another bucket; their prompts are compared with none"
            )


def _check(rows: Sequence[Sentence], encoder: Encoder, options: HallucinationOptions) -> None:
    """Raises for prompts from which nothing could follow."""
    counts = Counter(one.extra["bucket"] for one in rows)
    if few := {name: count for name, count in counts.items() if count < options.least}:
        raise ConfigError(f"{NAME}: each bucket needs {options.least} prompts, got {few} (of {dict(counts)})")
    if options.bucket_by == "label" and (missing := {*options.others, options.reference} - set(counts)):
        raise ConfigError(f"{NAME}: no prompt of {sorted(missing)} is left, of {dict(counts)}")
    if options.bucket_by == "outcome" and not any(one.extra["answer"] for one in rows):
        raise ConfigError(f"{NAME}: bucket_by outcome needs answers; the column {options.answer!r} has none")
    if options.bucket_by == "label":
        check_neighbours(compared(as_table(rows), options), options)
    endings: dict[int, str] = {}
    for one in rows:
        encoded = encoder.encode(one.text, None, one.sample)
        if encoded.truncated:
            raise ConfigError(
                f"{NAME}: the prompt of row {one.source_row} has more than {encoder.limit} tokens and would "
                f"be cut, so its last token would not be the prompt's: {str(one.text)[:60]!r}"
            )
        endings.setdefault(int(encoded.ids[-1]), str(one.text))
    if len(endings) > 1 and not options.allow_endings:
        shown = ", ".join(
            f"{name!r} ({text[-30:]!r})"
            for name, text in zip(encoder.names([*endings][:3]), [*endings.values()][:3], strict=True)
        )
        raise ConfigError(
            f"{NAME}: prompts end in {len(endings)} different tokens, so states differ by them: {shown}; "
            "options.allow_endings=true goes on"
        )


def compared(table: pd.DataFrame, options: HallucinationOptions) -> int:
    """Prompts of each bucket that are compared: whole pairs where there are any."""
    wanted = (options.reference, *options.others)
    pairs = table[table["pair"] != ""].groupby("pair")["bucket"].nunique()
    whole = int((pairs == len(wanted)).sum())
    counts = table["bucket"].value_counts()
    return whole or int(min(counts[one] for one in wanted))


def check_neighbours(size: int, options: HallucinationOptions) -> None:
    """Raises where a cloud has no more points than neighbours are asked for."""
    if max(options.dimension_k) >= size:
        raise ConfigError(
            f"options.dimension_k: must be below the prompts of each bucket that are compared, {size}, got "
            f"{options.dimension_k}"
        )


def as_table(rows: Sequence[Sentence]) -> pd.DataFrame:
    """Questions with their columns, one row each; folds are filled in."""
    table = pd.DataFrame([{"sample": one.sample, **one.extra} for one in rows])
    given = table["fold"] != ""
    names = sorted(table["template"].unique())
    own = table["template"].map({name: f"t{at % FOLDS}" for at, name in enumerate(names)})
    table["fold"] = table["fold"].where(given, own)
    return table


def words(question: str) -> list[str]:
    """Lower-case words and marks."""
    return re.findall(r"\w+|[^\w\s]", question.lower())


def bag_of_words(questions: Sequence[str]) -> np.ndarray[Any, Any]:
    """How often each word stands in each question."""
    bags = [Counter(words(one)) for one in questions]
    known = {word: at for at, word in enumerate(sorted({word for bag in bags for word in bag}))}
    counts = np.zeros((len(bags), len(known)))
    for row, bag in enumerate(bags):
        for word, count in bag.items():
            counts[row, known[word]] = count
    return counts


@dataclass(frozen=True)
class Confound:
    """What words and lengths know of two buckets."""

    contrast: str
    auc_length: float
    auc_words: float
    nested: bool
    pairs: int


def confounds(table: pd.DataFrame, tokens: Sequence[int], options: HallucinationOptions) -> list[Confound]:
    """Of each contrast, what words alone say without a model."""
    found = []
    table = table.assign(tokens=list(tokens))
    for other in options.others if options.bucket_by == "label" else ():
        own = table[table["bucket"].isin([options.reference, other])]
        labels = (own["bucket"] == other).to_numpy().astype(int)
        nested = apart(own)
        folds = np.random.default_rng(0).permutation(len(own)) % FOLDS if nested else own["fold"]
        scores = detection(
            own["tokens"].to_numpy()[:, None], labels, folds=folds, draws=1,
            baselines={"auc_words": bag_of_words(own["question"].tolist())},
        ).set_index("score")["auc"]  # fmt: skip
        pairs = own[own["pair"] != ""].groupby("pair")["bucket"].nunique()
        found.append(
            Confound(other, _either(scores["auc"]), scores["auc_words"], nested,
                     int((pairs == 2).sum()))
        )  # fmt: skip
    return found


def apart(rows: pd.DataFrame) -> bool:
    """Whether no template stands in two buckets."""
    return bool((rows.groupby("template")["bucket"].nunique() == 1).all())


def _either(value: float) -> float:
    """An area of one feature, whichever way it points."""
    return max(value, 1 - value) if np.isfinite(value) else value


def expectations(plan: Plan, options: HallucinationOptions) -> list[str]:
    """What a dry run says of the questions before any weight is read."""
    lines = []
    for position in plan.encoders:
        inputs = [one for unit in plan.units if unit.source == position and unit.stage == "states"
                  and not unit.variant for one in unit.inputs]  # fmt: skip
        if not inputs:
            continue
        inputs = list({one.sentence.sample: one for one in inputs}.values())
        table = as_table([one.sentence for one in inputs])
        tokens = [one.n_tokens for one in inputs]
        counts = table["bucket"].value_counts().to_dict()
        model = plan.settings.models[position].label or plan.settings.models[position].path
        lines.append(f"{model}: {counts} prompts of {table['template'].nunique()} templates")
        if not table["templated"].any():
            starts = table["question"].map(lambda q: " ".join(words(q)[:3])).nunique()
            lines.append(
                f"  no column {options.template!r}: every prompt counts as a template of its own; "
                f"{starts} different first three words suggest fewer"
            )
        for one in confounds(table, tokens, options):
            lines.append(
                f"  {one.contrast} against {options.reference}: length alone AUC {one.auc_length:.2f}, words "
                f"alone {one.auc_words:.2f} (held out); templates "
                f"{'nested in' if one.nested else 'crossed with'} buckets; {one.pairs} pairs"
            )
        means = table.assign(tokens=tokens).groupby("bucket")["tokens"].mean()
        lines.append("  mean tokens: " + ", ".join(f"{name} {mean:.1f}" for name, mean in means.items()))
        ends = Counter(int(one.encoded.ids[-1]) for one in inputs)
        names = plan.encoders[position].names([*ends])
        shown = zip(names[:8], ends.values(), strict=False)
        lines.append(f"  last tokens: {len(ends)} ({', '.join(f'{name!r} {n}' for name, n in shown)})")
        if options.interventions is not False or options.answers is not False:
            lines.append(f"  tokens to generate: {generated(len(inputs), counts, options):,}")
    return lines


def generated(prompts: int, counts: dict[Any, int], options: HallucinationOptions) -> int:
    """Tokens that answers and interventions generate."""
    total = 0 if options.answers is False else prompts * options.answers.tokens
    how = options.interventions
    if how is not False:
        bypass = len(how.gains) * 5
        steering = 2 * (len(how.alphas) + len(how.relative_alphas)) * (1 + 3 * how.controls)
        compression = len(how.lambdas) * 3
        asked = sum(min(count, how.prompts) for count in counts.values())
        total += asked * how.tokens * (1 + len(how.depths) * (bypass + steering + compression))
    return total
