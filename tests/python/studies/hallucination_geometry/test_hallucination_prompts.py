# SPDX-License-Identifier: MIT
"""The packaged questions: what a word counter, a length or a template could know of their buckets."""

import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from attnscope.inference.detection import detection
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
        own = table[table["bucket"] == bucket]["subject"]
        assert own.str.lower().is_unique
        assert len(own) == 320
    facts, moved = (table[table["bucket"] == one] for one in ("factual", "impossible"))
    assert set(facts["subject"]) == set(moved["subject"])


def test_only_factual_questions_have_answers(table):
    assert (table[table["bucket"] == "factual"]["answer"] != "").all()
    assert (table[table["bucket"] != "factual"]["answer"] == "").all()


def test_swapped_subjects_have_no_answer_under_their_new_template():
    """No subject of the one template is a subject of the other, whatever its letters' case."""
    for one, other in PAIRS:
        mine, yours = ({name.lower() for name, _ in slots(side[2])} for side in (one, other))
        assert not mine & yours
        answers = {part.lower() for _, answer in slots(one[2]) for part in answer.split("|")}
        assert not answers & yours, answers & yours


def test_a_swap_pair_has_the_same_words_and_templates_in_both_buckets(table):
    for _, own in table.groupby("fold"):
        bags = [Counter(word for q in own[own["bucket"] == b]["question"] for word in words(q))
                for b in ("factual", "impossible")]  # fmt: skip
        assert bags[0] == bags[1]


def test_exchanged_subjects_have_like_lengths(table):
    facts, moved = (table[table["bucket"] == one].set_index("pair") for one in ("factual", "impossible"))
    gap = (facts["subject"].str.len() - moved["subject"].str.len()).abs()
    assert gap.mean() < 1.5


def test_invented_subjects_are_spelt_like_the_real_ones(table):
    own = table[table["bucket"] == "unknown"]
    real = {name.lower() for pair in PAIRS for side in pair for name, _ in slots(side[2])}
    made = [one for cell in own["candidates"] for one in cell.split("|")]
    assert len(made) == len(set(made)) == 320 * 6
    assert not {one.lower() for one in made} & (real | COMMON_WORDS)
    for row in own.itertuples():
        names = row.candidates.split("|")
        assert len(names) == 6
        assert {len(one) for one in names} == {len(row.subject)}
        assert {one[0].isupper() for one in names} == {row.subject[0].isupper()}
        assert row.question.count(names[0]) == 1


@pytest.mark.parametrize("bucket", ["impossible", "unknown"])
def test_a_bag_of_words_knows_nothing_over_folds(table, bucket):
    own = table[table["bucket"].isin(["factual", bucket])]
    vocabulary = {word: at for at, word in enumerate(sorted({w for q in own["question"] for w in words(q)}))}
    counts = np.zeros((len(own), len(vocabulary)))
    for row, question in enumerate(own["question"]):
        for word in words(question):
            counts[row, vocabulary[word]] += 1
    labels = (own["bucket"] == bucket).to_numpy().astype(int)
    found = detection(counts, labels, folds=own["fold"].to_numpy(), draws=10)
    assert found["auc"][0] == pytest.approx(0.5, abs=1e-3)
    shuffled = np.random.default_rng(0).permutation(len(own)) % 8  # folds that cut through pairs leak
    if bucket == "impossible":
        assert abs(detection(counts, labels, folds=shuffled, draws=10)["auc"][0] - 0.5) > 0.05
