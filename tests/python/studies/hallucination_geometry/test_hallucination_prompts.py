# SPDX-License-Identifier: MIT
"""The packaged questions: what a word counter, a length or a template could know of their buckets."""

import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from attnscope.statistics.detection import detection
from attnscope.studies.hallucination_geometry.prompts import make
from attnscope.studies.hallucination_geometry.prompts.known import COMMON_WORDS
from attnscope.studies.hallucination_geometry.prompts.subjects import PAIRS, slots

BUCKETS = ("factual", "impossible", "unknown")


@pytest.fixture(scope="module")
def table():
    return pd.read_csv(make.FILE, keep_default_na=False)


def words(question):
    return re.findall(r"\w+|\?", question.lower())


def test_the_script_makes_the_file():
    assert make.text() == make.FILE.read_text("utf-8")


def test_every_template_has_twenty_questions_of_each_bucket(table):
    counts = table.groupby(["template", "bucket"]).size()
    assert len(counts) == 16 * 3
    assert set(counts) == {20}
    assert set(table.groupby("pair").size()) == {3}
    assert set(table.groupby("fold")["template"].nunique()) == {2}
    assert table["question"].is_unique
    assert (table["question"].str.endswith("?")).all()


def test_each_subject_stands_once_in_a_bucket(table):
    for bucket in ("factual", "impossible"):
        subjects = table[table["bucket"] == bucket]["subject"]
        assert subjects.str.lower().is_unique
        assert len(subjects) == 320
    facts, moved = (table[table["bucket"] == bucket_name] for bucket_name in ("factual", "impossible"))
    assert set(facts["subject"]) == set(moved["subject"])


def test_only_factual_questions_have_answers(table):
    assert (table[table["bucket"] == "factual"]["answer"] != "").all()
    assert (table[table["bucket"] != "factual"]["answer"] == "").all()


def test_swapped_subjects_have_no_answer_under_their_new_template():
    """No subject of the one template is a subject of the other, whatever its letters' case."""
    for first, second in PAIRS:
        subjects, swapped = ({name.lower() for name, _ in slots(side[2])} for side in (first, second))
        assert not subjects & swapped
        answers = {part.lower() for _, answer in slots(first[2]) for part in answer.split("|")}
        assert not answers & swapped, answers & swapped


def test_a_swap_pair_has_the_same_words_and_templates_in_both_buckets(table):
    for _, fold in table.groupby("fold"):
        bags = [
            Counter(word for q in fold[fold["bucket"] == b]["question"] for word in words(q))
            for b in ("factual", "impossible")
        ]
        assert bags[0] == bags[1]


def test_exchanged_subjects_have_like_lengths(table):
    facts, moved = (
        table[table["bucket"] == bucket].set_index("pair") for bucket in ("factual", "impossible")
    )
    gap = (facts["subject"].str.len() - moved["subject"].str.len()).abs()
    assert gap.mean() < 1.5


def test_invented_subjects_are_spelt_like_the_real_ones(table):
    unknown = table[table["bucket"] == "unknown"]
    real = {name.lower() for pair in PAIRS for side in pair for name, _ in slots(side[2])}
    invented = [name for cell in unknown["candidates"] for name in cell.split("|")]
    assert len(invented) == len(set(invented)) == 320 * 6
    assert not {name.lower() for name in invented} & (real | COMMON_WORDS)
    for row in unknown.itertuples():
        names = row.candidates.split("|")
        assert len(names) == 6
        assert {len(name) for name in names} == {len(row.subject)}
        assert {name[0].isupper() for name in names} == {row.subject[0].isupper()}
        assert row.question.count(names[0]) == 1


@pytest.mark.parametrize("bucket", ["impossible", "unknown"])
def test_a_bag_of_words_knows_nothing_over_folds(table, bucket):
    prompts = table[table["bucket"].isin(["factual", bucket])]
    vocabulary = {
        word: at for at, word in enumerate(sorted({w for q in prompts["question"] for w in words(q)}))
    }
    counts = np.zeros((len(prompts), len(vocabulary)))
    for row, question in enumerate(prompts["question"]):
        for word in words(question):
            counts[row, vocabulary[word]] += 1
    labels = (prompts["bucket"] == bucket).to_numpy().astype(int)
    detected = detection(counts, labels, folds=prompts["fold"].to_numpy(), draws=10)
    assert detected["auc"][0] == pytest.approx(0.5, abs=1e-3)
    shuffled = np.random.default_rng(0).permutation(len(prompts)) % 8  # folds that cut through pairs leak
    if bucket == "impossible":
        assert abs(detection(counts, labels, folds=shuffled, draws=10)["auc"][0] - 0.5) > 0.05
