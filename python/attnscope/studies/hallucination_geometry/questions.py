# SPDX-License-Identifier: MIT
"""Questions of a run as one model is asked them, and what can be known of their buckets without any model."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import regex

from attnscope._nearest import nearest
from attnscope.errors import ConfigError
from attnscope.statistics.detection import detection
from attnscope.study_api.selection import where, without

if TYPE_CHECKING:
    from attnscope.models import Encoder
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions
    from attnscope.study_api.plan import Plan
    from attnscope.texts.sentence import Sentence

NAME = "hallucination_geometry"
FOLDS = 8

#: Scripts that are written without spaces between words.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
#: Letters with their marks, and numbers; without marks, words of Hindi would end at their vowels.
_OF_WORDS = r"\p{L}\p{M}\p{N}_"
_WORDS = regex.compile(rf"(?V1)[{_UNSPACED}]\p{{M}}*|[[{_OF_WORDS}]--[{_UNSPACED}]]+|[^{_OF_WORDS}\s]")


def format_questions(
    sentences: Sequence[Sentence], encoder: Encoder, model: str, plan: Plan, options: HallucinationOptions
) -> list[Sentence]:
    """Return the questions in their prompts; the note counts those that cannot be asked."""
    if encoder.tokenizer is None:
        raise ConfigError(f"{NAME}: questions need a tokenizer, and {model} has none")
    rows = [_named(sentence, options) for sentence in sentences]
    buckets = (options.reference, *options.others)
    counts = Counter(row.extra["bucket"] for row in rows)
    if options.bucket_by == "label":
        for bucket in buckets:
            if bucket not in counts:
                raise ConfigError(
                    f"{NAME}: no prompt of the bucket {bucket!r} in column {options.bucket!r}"
                    f"{nearest(bucket, counts)}; there are {_in_words(counts)}"
                )
        if all(source.samples is None for source in plan.settings.texts):
            _check_whole_pairs(rows, options)
    else:
        buckets = (options.reference,)
    rows = [row for row in rows if row.extra["bucket"] in buckets]
    _check_one_bucket(rows)
    first = {row.text: row.sample for row in reversed(rows)}
    distinct = [row for row in rows if first[row.text] == row.sample]
    if len(distinct) < len(rows):
        plan.notes.append(f"{model}: {len(rows) - len(distinct)} duplicate prompts removed")
    _check_pairs(distinct, model, plan, options)
    matched = _matched(distinct, encoder, model, plan, options)
    prompts = [replace(row, text=prompt(str(row.text), encoder, options)) for row in matched]
    _check(prompts, encoder, options)
    return prompts


def prompt(question: str, encoder: Encoder, options: HallucinationOptions) -> str:
    """Return a question inside its prompt."""
    if not options.chat:
        return options.prompt.format(question=question)
    chat: str = encoder.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    bos = encoder.tokenizer.bos_token
    # the tokenizer sets its own when the text is encoded
    return chat.removeprefix(bos) if bos else chat


def question_tokens(ids: Sequence[int], encoder: Encoder, options: HallucinationOptions) -> slice:
    """Return which tokens of an encoded prompt are of its question: those that the empty prompt lacks.

    A token that the question shares with the words around it is the question's.
    """
    frame = encoder.encode(prompt("", encoder, options)).ids.tolist()
    ids = list(ids)
    before = _equal_at_start(ids, frame)
    behind = _equal_at_start(ids[before:][::-1], frame[before:][::-1])
    return slice(before, len(ids) - behind)


def _equal_at_start(first: Sequence[int], other: Sequence[int]) -> int:
    """Return how many first numbers two sequences share."""
    return next(
        (at for at, (a, b) in enumerate(zip(first, other, strict=False)) if a != b),
        min(len(first), len(other)),
    )


def _named(sentence: Sentence, options: HallucinationOptions) -> Sentence:
    """Return a question with its columns under the study's names."""
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
    columns = {
        "bucket": cell(options.bucket, options.reference),
        "template": template,
        "pair": cell(options.pair, ""),
        "answer": cell(options.answer, ""),
        "fold": cell(options.fold, ""),
        "question": str(sentence.text),
        "candidates": cell("candidates", ""),
        "templated": options.template in extra,
    }
    return replace(sentence, extra=columns)


def _matched(
    rows: list[Sentence], encoder: Encoder, model: str, plan: Plan, options: HallucinationOptions
) -> list[Sentence]:
    """Return prompts about something unknown in as many tokens as their partners; the others are left out."""
    if options.match_tokens is None:
        return rows

    def tokens(question: str) -> int:
        return len(encoder.bare(prompt(question, encoder, options)))

    partners = {
        row.extra["pair"]: tokens(str(row.text))
        for row in rows
        if row.extra["bucket"] == options.reference and row.extra["pair"]
    }
    others = [str(row.text) for row in rows if row.extra["bucket"] != "unknown"]
    in_use = {str(row.text) for row in rows}
    matching, dropped, real = [], 0, 0
    for row in rows:
        length = partners.get(row.extra["pair"])
        if row.extra["bucket"] != "unknown" or length is None:
            matching.append(row)
            continue
        question, names = str(row.text), row.extra["candidates"].split("|")
        if names[0] not in question:
            raise ConfigError(
                f"{NAME}: the first of candidates is the name in the question, which row {row.source_row} "
                f"has not: {names[0]!r} in {question[:60]!r}"
            )
        in_use.discard(question)
        variants = {question.replace(names[0], name): name for name in names} if names[0] else {question: ""}
        fitting = [q for q in variants if abs(tokens(q) - length) <= options.match_tokens]
        invented = [q for q in fitting if q not in in_use and not _mentioned(variants[q], others)]
        if invented:
            matching.append(replace(row, text=invented[0], extra={**row.extra, "question": invented[0]}))
            in_use.add(invented[0])
        dropped += not fitting
        real += bool(fitting) and not invented
    if dropped:
        plan.notes.append(
            f"{model}: {dropped} prompts about something unknown have no name of as many tokens as their "
            "partners' and are left out (options.match_tokens)"
        )
    if real:
        plan.notes.append(
            f"{model}: {real} prompts about something unknown have no name that is in no other prompt, and "
            "are left out"
        )
    return matching


def _mentioned(name: str, questions: Sequence[str]) -> bool:
    """Return True if a name stands as whole words in one of the questions."""
    return any(mentions(question, name) for question in questions)


def _check_one_bucket(rows: Sequence[Sentence]) -> None:
    """Raise for a question that is in two buckets: which of them it belongs to nobody can say."""
    first: dict[str, Sentence] = {}
    twice = [
        (first[str(row.text)], row)
        for row in rows
        if first.setdefault(str(row.text), row).extra["bucket"] != row.extra["bucket"]
    ]
    if twice:
        earlier, later = twice[0]
        count = len({str(row.text) for _, row in twice})
        raise ConfigError(
            f"{NAME}: a question belongs to one bucket, and {count} are in two, first "
            f"{str(earlier.text)[:60]!r}: {earlier.extra['bucket']} in row {earlier.source_row}, "
            f"{later.extra['bucket']} in row {later.source_row}"
        )


def _check_whole_pairs(rows: Sequence[Sentence], options: HallucinationOptions) -> None:
    """Raise for a value of `pair` that one row of whole files has: a slip of the pen, or a wrong column."""
    counts = Counter(row.extra["pair"] for row in rows if row.extra["pair"])
    for row in rows:
        if counts[row.extra["pair"]] == 1:
            unpaired = sum(count == 1 for count in counts.values())
            raise ConfigError(
                f"options.pair: {unpaired} of {len(counts)} values are in one row each, first "
                f"{row.extra['pair']!r} in row {row.source_row} ({row.extra['bucket']}: "
                f"{str(row.text)[:60]!r}); a pair is of {options.reference!r} and another bucket, and a "
                "question without one has an empty cell"
            )


def _check_pairs(rows: Sequence[Sentence], model: str, plan: Plan, options: HallucinationOptions) -> None:
    """Raise for pairs of two prompts of one bucket, or where none is whole; note those that are not."""
    pairs: dict[str, Counter[str]] = {}
    for row in rows:
        if row.extra["pair"]:
            pairs.setdefault(row.extra["pair"], Counter())[row.extra["bucket"]] += 1
    repeated = [name for name, buckets_of_pair in pairs.items() if max(buckets_of_pair.values()) > 1]
    if repeated:
        raise ConfigError(
            f"options.pair: {repeated[0]!r} has {dict(pairs[repeated[0]])}; a pair has one prompt of "
            "each bucket"
        )
    if pairs and options.bucket_by == "label":
        unpaired = [
            name
            for name, buckets_of_pair in pairs.items()
            if options.reference not in buckets_of_pair or len(buckets_of_pair) < 2
        ]
        if len(unpaired) == len(pairs):
            raise ConfigError(
                f"options.pair: none of {len(pairs)} values is of {options.reference!r} and another bucket"
            )
        if unpaired:
            plan.notes.append(
                f"{model}: options.pair: {len(unpaired)} of {len(pairs)} values, {unpaired[0]!r} first, are "
                f"not of {options.reference!r} and another bucket; their prompts are compared with none"
            )


def _in_words(counts: Mapping[str, int]) -> str:
    """Return the number of prompts of each bucket."""
    return ", ".join(f"{count} of {bucket!r}" for bucket, count in counts.items()) or "none"


def _check(rows: Sequence[Sentence], encoder: Encoder, options: HallucinationOptions) -> None:
    """Raise for prompts from which nothing could follow."""
    counts = Counter(row.extra["bucket"] for row in rows)
    if few := {name: count for name, count in counts.items() if count < options.least}:
        raise ConfigError(f"{NAME}: each bucket needs {options.least} prompts, got {_in_words(few)}")
    if options.bucket_by == "label" and (missing := {*options.others, options.reference} - set(counts)):
        names = " and ".join(map(repr, sorted(missing)))
        raise ConfigError(f"{NAME}: no prompt of {names} is left, but {_in_words(counts)}")
    if options.bucket_by == "outcome" and not any(row.extra["answer"] for row in rows):
        raise ConfigError(f"{NAME}: bucket_by outcome needs answers; the column {options.answer!r} has none")
    if options.bucket_by == "label":
        check_neighbours(compared(as_table(rows), options), options)
    endings: dict[int, str] = {}
    for row in rows:
        encoded = encoder.encode(row.text, None, row.sample)
        if encoded.truncated:
            raise ConfigError(
                f"{NAME}: the prompt of row {row.source_row} has more than {encoder.limit} tokens and would "
                f"be cut, so its last token would not be the prompt's: {str(row.text)[:60]!r}"
            )
        endings.setdefault(int(encoded.ids[-1]), str(row.text))
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
    """Return the number of prompts of each bucket that are compared: whole pairs where there are any."""
    buckets = (options.reference, *options.others)
    pairs = without(table, pair="").groupby("pair")["bucket"].nunique()
    complete_pairs = int((pairs == len(buckets)).sum())
    counts = table["bucket"].value_counts()
    return complete_pairs or int(min(counts[bucket] for bucket in buckets))


def check_neighbours(size: int, options: HallucinationOptions) -> None:
    """Raise where a cloud has no more points than the requested neighbours."""
    if max(options.dimension_k) >= size:
        raise ConfigError(
            f"options.dimension_k: must be below the prompts of each bucket that are compared, {size}, got "
            f"{options.dimension_k}"
        )


def as_table(rows: Sequence[Sentence]) -> pd.DataFrame:
    """Return questions with their columns, one row each; folds are filled in."""
    table = pd.DataFrame([{"sample": row.sample, **row.extra} for row in rows])
    has_fold = table["fold"] != ""
    names = sorted(table["template"].unique())
    fold_of_template = table["template"].map({name: f"t{at % FOLDS}" for at, name in enumerate(names)})
    table["fold"] = table["fold"].where(has_fold, fold_of_template)
    return table


def comparable(text: str) -> str:
    """Return a text in which words that read alike are equal: small letters, composed, straight apostrophes.

    >>> comparable("I DON\u2019T know Jose\u0301") == "i don't know jos\u00e9"
    True
    """
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    return folded.replace("\u2019", "'").replace("\u02bc", "'")


def mentions(text: str, name: str) -> bool:
    """Return True if a name stands in a text as whole words, in any case, letters composed or not.

    Scripts without spaces have no ends of words that a reader could see: there a name counts wherever it
    stands. A number that goes on behind a point or a comma is another number.

    >>> mentions("It is paris.", "Paris"), mentions("Parisian", "Paris"), mentions("12.5 km", "12")
    (True, False, False)
    >>> mentions("\u5b83\u662f\u5df4\u9ece\u3002", "\u5df4\u9ece")
    True
    """
    name = comparable(name.strip())
    if not name:
        return False
    start = rf"(?:(?<![{_OF_WORDS}])|(?<=[{_UNSPACED}]\p{{M}}*)|(?=[{_UNSPACED}]))(?<!\d[.,](?=\d))"
    end = rf"(?:(?![{_OF_WORDS}])|(?=[{_UNSPACED}])|(?<=[{_UNSPACED}]\p{{M}}*))(?!\p{{M}})(?!(?<=\d)[.,]\d)"
    return bool(regex.search(start + regex.escape(name) + end, comparable(text)))


def words(question: str) -> list[str]:
    """Return lower-case words and marks; of scripts without spaces every letter counts as a word.

    >>> words("What\u2019s the capital?")
    ['what', "'", 's', 'the', 'capital', '?']
    """
    return [str(word) for word in _WORDS.findall(comparable(question))]


def bag_of_words(questions: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return how often each word occurs in each question, one row a question."""
    bags = [Counter(words(question)) for question in questions]
    places = {word: at for at, word in enumerate(sorted({word for bag in bags for word in bag}))}
    counts = np.zeros((len(bags), len(places)))
    for row, bag in enumerate(bags):
        for word, count in bag.items():
            counts[row, places[word]] = count
    return counts


@dataclass(frozen=True)
class Confound:
    """Areas of what words and lengths tell of two buckets."""

    contrast: str
    auc_length: float
    auc_words: float
    nested: bool
    pairs: int


def confounds(table: pd.DataFrame, tokens: Sequence[int], options: HallucinationOptions) -> list[Confound]:
    """Return, of each contrast, the areas of words and lengths without a model."""
    areas_of_contrasts = []
    table = table.assign(tokens=list(tokens))
    for other in options.others if options.bucket_by == "label" else ():
        prompts = where(table, bucket=[options.reference, other])
        labels = (prompts["bucket"] == other).to_numpy().astype(int)
        nested = apart(prompts)
        folds = np.random.default_rng(0).permutation(len(prompts)) % FOLDS if nested else prompts["fold"]
        scores = detection(
            prompts["tokens"].to_numpy()[:, None],
            labels,
            folds=folds,
            draws=1,
            baselines={"auc_words": bag_of_words(prompts["question"].tolist())},
        ).set_index("score")["auc"]
        pairs = without(prompts, pair="").groupby("pair")["bucket"].nunique()
        areas_of_contrasts.append(
            Confound(other, _either(scores["auc"]), scores["auc_words"], nested, int((pairs == 2).sum()))
        )
    return areas_of_contrasts


def apart(rows: pd.DataFrame) -> bool:
    """Return True if no template is in two buckets."""
    return bool((rows.groupby("template")["bucket"].nunique() == 1).all())


def _either(value: float) -> float:
    """Return an area of one feature, whichever way it points."""
    return max(value, 1 - value) if np.isfinite(value) else value


def expectations(plan: Plan, options: HallucinationOptions) -> list[str]:
    """Return the dry run's lines on the questions, before any weight is read."""
    lines = []
    for position in plan.encoders:
        inputs = [
            text
            for unit in plan.units
            if unit.source == position and unit.stage == "states" and not unit.variant
            for text in unit.inputs
        ]
        if not inputs:
            continue
        inputs = list({text.sentence.sample: text for text in inputs}.values())
        table = as_table([text.sentence for text in inputs])
        tokens = [text.n_tokens for text in inputs]
        counts = table["bucket"].value_counts().to_dict()
        model = plan.settings.models[position].label or plan.settings.models[position].path
        lines.append(f"{model}: {counts} prompts of {table['template'].nunique()} templates")
        if not table["templated"].any():
            starts = table["question"].map(lambda q: " ".join(words(q)[:3])).nunique()
            lines.append(
                f"  no column {options.template!r}: every prompt counts as a template of its own; "
                f"{starts} different first three words suggest fewer"
            )
        for confound in confounds(table, tokens, options):
            lines.append(
                f"  {confound.contrast} against {options.reference}: length alone AUC "
                f"{confound.auc_length:.2f}, words alone {confound.auc_words:.2f} (held out); templates "
                f"{'nested in' if confound.nested else 'crossed with'} buckets; {confound.pairs} pairs"
            )
        means = table.assign(tokens=tokens).groupby("bucket")["tokens"].mean()
        lines.append("  mean tokens: " + ", ".join(f"{name} {mean:.1f}" for name, mean in means.items()))
        ends = Counter(int(text.encoded.ids[-1]) for text in inputs)
        names = plan.encoders[position].names([*ends])
        shown = zip(names[:8], ends.values(), strict=False)
        lines.append(f"  last tokens: {len(ends)} ({', '.join(f'{name!r} {n}' for name, n in shown)})")
        if options.interventions is not False or options.answers is not False:
            lines.append(f"  tokens to generate: {generated(len(inputs), counts, options):,}")
    return lines


def generated(prompts: int, counts: dict[Any, int], options: HallucinationOptions) -> int:
    """Return the number of tokens that answers and interventions generate."""
    total = 0 if options.answers is False else prompts * options.answers.tokens
    how = options.interventions
    if how is not False:
        bypass = len(how.gains) * 5
        steering = 2 * (len(how.alphas) + len(how.relative_alphas)) * (1 + 3 * how.controls)
        compression = len(how.lambdas) * 3
        prompts_asked = sum(min(count, how.prompts) for count in counts.values())
        total += prompts_asked * how.tokens * (1 + len(how.depths) * (bypass + steering + compression))
    return total
