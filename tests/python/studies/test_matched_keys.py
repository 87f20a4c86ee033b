# SPDX-License-Identifier: MIT
"""Controls of sets of keys: of the same size, near them, and none where there is nothing to compare."""

import numpy as np
import pytest
import torch

from attnscope.studies.attention_sinks.matched_keys import matched_keys
from attnscope.studies.attention_sinks.questions import questions


def test_every_control_has_the_size_of_its_set_and_none_of_its_keys():
    draw = np.random.default_rng(0)
    lengths = [40, 25, 40, 8, 12]
    keys = torch.zeros(5, 40, dtype=torch.bool)
    for text, count in enumerate((1, 3, 0, 4, 7)):  # none; half of the keys; more than half
        keys[text, draw.choice(lengths[text], count, replace=False)] = True
    seeds = [[3, text] for text in range(5)]
    result, has_control = matched_keys(keys, lengths, seeds)
    assert has_control.tolist() == [True, True, False, True, False]
    for text, n in enumerate(lengths):
        expected = int(keys[text].sum()) if has_control[text] else 0
        assert (result[:, text].sum(-1) == expected).all()
        assert not (result[:, text] & keys[text]).any()
        assert not result[:, text, n:].any()
    assert torch.equal(result, matched_keys(keys, lengths, seeds)[0])
    assert len({tuple(row.nonzero().flatten().tolist()) for row in result[:, 1]}) > 1


def test_a_key_is_stood_for_by_one_nearby():
    first = torch.eye(1, 64) > 0
    places = [
        int(matched_key.nonzero()[0, 1])
        for seed in range(40)
        for matched_key in matched_keys(first, [64], [[seed]])[0]
    ]
    assert set(places) <= set(range(1, 17))
    assert len(set(places)) > 10


def test_a_text_in_which_nothing_is_masked_is_in_no_test():
    import pandas as pd

    rows = []
    for sample in range(6):
        for kind, kl, count in (
            ("sinks", 0.4 + 0.01 * sample, sample % 2),
            ("control_sinks", 0.1, sample % 2),
            ("first", 0.3, 1),
            ("control_first", 0.2 + 0.01 * sample, 1),
        ):
            value = kl if count else (np.nan if kind.startswith("control") else 0.0)
            rows.append(
                {
                    "model": "m",
                    "revision": "",
                    "step": -1,
                    "sample": sample,
                    "keys": kind,
                    "key_count": count,
                    "output_kl": value,
                    "loss_change": value,
                }
            )
    table = pd.DataFrame(rows)
    (question,) = [question for question in questions({"ablation": table}, None) if "sinks" in question.title]
    sentences = question.frame.set_index("compared")["n"]
    assert sentences.to_dict() == {"m: sinks − other keys": 3, "m: first key − other keys": 6}
    without = table.assign(key_count=table["key_count"].where(~table["keys"].str.contains("sinks"), 0))
    (question,) = [
        question for question in questions({"ablation": without}, None) if "sinks" in question.title
    ]
    none = question.frame["compared"] == "m: sinks − other keys"
    assert set(question.frame[none][["n", "p", "Holm"]].itertuples(index=False, name=None)) == {(0, "–", "–")}
    assert not none[list(question.certain)].any()
    assert set(question.frame[~none]["n"]) == {6}


def test_seeds_are_asked_for():
    with pytest.raises(ValueError, match="zip"):
        matched_keys(torch.ones(2, 3, dtype=torch.bool), [3, 3], [[0]])
