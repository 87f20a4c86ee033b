# SPDX-License-Identifier: MIT
"""Windows and learned sinks in the study of likelihood: words against loops over visible keys."""

import numpy as np
import pytest
import torch
from scipy import stats

from attnscope.capture import capture
from attnscope.engine.run_study import run
from folders import tokenizer
from likelihood_study import settings, texts_of
from models import LAYER_KINDS, tiny

SIDES = {"causal": (99, 0), "full": (99, 99), "window 7": (6, 0), "window 7+7": (7, 7)}


@pytest.fixture(
    scope="module",
    params=[
        "mistral",
        "gpt_oss",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3", "modernbert")),
    ],
)
def case(request, tmp_path_factory):
    """The name, the model and a run over twelve texts."""
    home = tmp_path_factory.mktemp(request.param)
    model = tiny(request.param)
    model.save_pretrained(home / "model")
    words = tokenizer()
    if request.param == "modernbert":
        words.add_special_tokens({"mask_token": "<mask>"})
    words.save_pretrained(home / "model")
    options = {"nulls": [], "modes": ["lowest", "highest"], "swap": False}
    options["survey"] = request.param != "modernbert"
    texts = texts_of(home / "texts.txt")
    return request.param, model, run(settings(home / "model", texts, home, **options), progress=False)


def layers_of(case):
    """Sample, layer, who sees whom, maps [h, n, n], learned mass [h, n], and the rows of the word."""
    name, model, results = case
    spans = results.table("spans")
    spans = spans[(spans["mode"] == "real") & (spans["protocol"] == "exact")]
    for sample in (0, 5):
        ids = results.table("samples").set_index("sample")["token_ids"][sample]
        with capture(model) as recording:
            for layer in recording.run(input_ids=torch.tensor(list(ids))[None]):
                before, after = SIDES[LAYER_KINDS[name][layer.index]]
                n = len(ids)
                seen = np.array([[-after <= i - j <= before for j in range(n)] for i in range(n)])
                maps, mass = layer.matrices()[0].double().numpy(), layer.sink_mass[0].double().numpy()
                rows = spans[(spans["sample"] == sample) & (spans["layer"] == layer.index)]
                yield sample, layer.index, seen, maps, mass, rows.set_index("head")


def test_uniform_shares_are_of_what_each_query_sees(case):
    targets = case[2].table("targets").set_index("sample")
    for sample, _, seen, maps, mass, rows in layers_of(case):
        word = range(int(targets["start"][sample]), int(targets["stop"][sample]))
        outside = [i for i in range(len(seen)) if i not in word and seen[i, word].any()]
        uniform = np.mean([seen[i, word].sum() / seen[i].sum() for i in word])
        received = np.mean([seen[i, word].sum() / seen[i].sum() for i in outside])
        for head, row in rows.iterrows():
            share = np.mean([maps[head, i, word].sum() for i in word])
            assert row["span_share"] == pytest.approx(share, rel=1e-5)
            assert row["span_uniform"] == pytest.approx(uniform, rel=1e-12)
            assert row["span_boost"] == pytest.approx(share / uniform, rel=1e-5)
            assert row["span_received_uniform"] == pytest.approx(received, rel=1e-12)
            mean_received = np.mean([maps[head, i, word].sum() for i in outside])
            assert row["span_received"] == pytest.approx(mean_received, rel=1e-5)
            if case[0] == "gpt_oss":
                assert row["learned_sink_mass"] == pytest.approx(mass[head, word].mean(), rel=1e-5)
                total = row[["span_share", "span_special", "span_context", "learned_sink_mass"]].sum()
                assert total == pytest.approx(1, abs=1e-5)
            else:
                assert np.isnan(row["learned_sink_mass"])


def test_the_survey_holds_tokens_against_uniform_attention_of_what_they_see(case):
    if case[0] == "modernbert":
        pytest.skip("the survey is of causal models")
    table = case[2].table("surveys")
    words = case[2].table("versions")
    for sample, layer, seen, maps, _, _ in layers_of(case):
        row = table[(table["sample"] == sample) & (table["layer"] == layer)]
        word_row = words[(words["sample"] == sample) & (words["mode"] == "real")].iloc[0]
        tokens = np.array(word_row["token_log_likelihood"], dtype=float)
        boost = maps.mean(0).diagonal() * seen.sum(1)
        is_finite = np.isfinite(tokens)
        expected = stats.spearmanr(tokens[is_finite], boost[is_finite])[0]
        assert row["correlation"].iloc[0] == pytest.approx(expected, abs=1e-4)
