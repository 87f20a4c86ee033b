# SPDX-License-Identifier: MIT
"""Stored columns of layers of different kinds, against loops over the keys that each query sees."""

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
import models
from attnscope.capture import capture
from attnscope.config.run_config import RunConfig
from attnscope.engine.run_study import run
from folders import sentences, tokenizer

METRICS = [
    *("sink_share", "top_mass", "attention_entropy", "head_divergence", "sink_removal", "sink_test"),
    *("marchenko_pastur", "entropy_magnitude_correlation"),
]
LAYERS = {name: kinds for name, kinds in models.LAYER_KINDS.items() if name != "llama"}


def seen_by(kind, n):
    """The visible pairs of one text, by loops."""
    sides = {"causal": (n, 0), "full": (n, n), "window 7": (6, 0), "window 7+7": (7, 7)}
    before, after = sides[kind]
    return np.array([[-after <= i - j <= before for j in range(n)] for i in range(n)])


@pytest.fixture(scope="module", params=LAYERS)
def case(request, tmp_path_factory):
    """The name, a run over a short and a long text in one batch, and each text's maps captured alone."""
    home = tmp_path_factory.mktemp(request.param)
    model = models.tiny(request.param)
    model.save_pretrained(home / "model")
    tokenizer().save_pretrained(home / "model")
    texts = sentences(home / "texts.txt", 2, shortest=5)
    lines = texts.read_text("utf-8").splitlines()
    texts.write_text(f"{lines[0]}\n{' '.join([lines[1]] * 4)}\n", "utf-8")
    study = RunConfig(
        models=str(home / "model"),
        texts=str(texts),
        output=str(home),
        name="a",
        protocols="exact",
        block=2,
        options={"metrics": METRICS, "extra": ["row_permutation", "examples"]},
    )
    results = run(study, progress=False)
    captured_layers = []
    for ids in results.table("samples")["token_ids"]:
        with capture(model, sites=("attention",)) as recording:
            inputs = torch.tensor(list(ids))[None]
            layers = list(recording.run(input_ids=inputs, attention_mask=torch.ones_like(inputs)))
        captured_layers.append(
            [(layer.matrices()[0].double(), layer.states("sink_mass")[0].double()) for layer in layers]
        )
    return request.param, results, captured_layers


def rows(case, table="heads"):
    """Sample, layer, support, map [h, n, n], learned mass [h, n] and the rows that are stored of them."""
    name, results, single_results = case
    stored = results.table(table)
    for sample, layers in enumerate(single_results):
        for layer, (maps, learned) in enumerate(layers):
            n = maps.shape[-1]
            kind = LAYERS[name][layer]
            short = {"window 7": n <= 7, "window 7+7": n <= 8}.get(kind, False)
            kind = {"window 7": "causal", "window 7+7": "full"}[kind] if short else kind
            rows_of_layer = stored[(stored["sample"] == sample) & (stored["layer"] == layer)]
            yield kind, maps.numpy(), learned.numpy(), rows_of_layer


def entropies(maps, learned, seen):
    """Entropy and its normalised form of each row [h, n]; a learned sink is one more key."""
    has_learned = bool(learned.any())
    result = np.zeros(maps.shape[:2])
    scaled = np.full(maps.shape[:2], np.nan)
    for head, i in np.ndindex(*result.shape):
        outcomes_of_query = [maps[head, i, j] for j in np.flatnonzero(seen[i])] + (
            [learned[head, i]] if has_learned else []
        )
        result[head, i] = -sum(p * np.log(p) for p in outcomes_of_query if p > 0)
        if len(outcomes_of_query) > 1:
            scaled[head, i] = result[head, i] / np.log(len(outcomes_of_query))
    return result, scaled


def test_rows_say_what_queries_see(case):
    for kind, _, _, stored_rows in rows(case):
        assert set(stored_rows["support"]) == {kind}
        law = {"causal": "triangular", "full": "Marchenko-Pastur"}.get(kind, "shuffled rows")
        assert set(stored_rows["mp_law"]) == {law}


def test_columns_of_rows_are_those_of_the_visible_keys(case):
    for kind, maps, learned, stored_rows in rows(case):
        n = maps.shape[-1]
        seen = seen_by(kind, n)
        assert (maps[:, ~seen] == 0).all()
        result, scaled = entropies(maps, learned, seen)
        tight = {"rtol": 1e-6, "atol": 1e-7}
        np.testing.assert_allclose(stored_rows["entropy"], result.mean(1), **tight)
        np.testing.assert_allclose(stored_rows["entropy_normalized"], np.nanmean(scaled, 1), **tight)
        takes = learned.mean(1) if case[0] == "gpt_oss" else np.full(len(stored_rows), np.nan)
        np.testing.assert_allclose(stored_rows["learned_sink_mass"].astype(float), takes, **tight)
        uniform = np.mean([seen[i, 0] / seen[i].sum() for i in range(n)])
        np.testing.assert_allclose(stored_rows["sink_share_uniform"], uniform, rtol=1e-12)
        masses = np.concatenate([maps.sum(1), learned.sum(1)[:, None]], 1)
        np.testing.assert_allclose(stored_rows["top_mass"], masses.max(1) / n, **tight)


def test_divergence_of_a_layer_counts_the_learned_sink(case):
    for (kind, maps, learned, stored_rows), (_, _, _, of_layer) in zip(
        rows(case), rows(case, "layers"), strict=True
    ):
        outcomes = np.concatenate([maps, learned[..., None]], -1)
        mean = outcomes.mean(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            divergences = np.where(outcomes > 0, outcomes * np.log(outcomes / mean), 0).sum(-1).mean(-1)
        np.testing.assert_allclose(
            stored_rows["head_divergence"], divergences, rtol=1e-6, atol=1e-7, err_msg=kind
        )
        assert (stored_rows["head_divergence"] >= -1e-9).all()
        np.testing.assert_allclose(of_layer["head_divergence"], divergences.mean(), rtol=1e-6, atol=1e-7)


def test_uniform_attention_stands_beside_each_support(case):
    baselines = case[1].table("baselines")
    for kind, maps, _, _ in rows(case):
        n = maps.shape[-1]
        seen = seen_by(kind, n)
        rows_of_support = baselines[(baselines["n_tokens"] == n) & (baselines["support"] == kind)]
        assert set(rows_of_support["kind"]) == {"uniform"}
        value = rows_of_support.set_index("metric")["value"]
        assert value["entropy_normalized"] == pytest.approx(1.0)
        assert value["entropy"] == pytest.approx(np.log(seen.sum(1)).mean())
        assert value["top_mass"] == pytest.approx((seen / seen.sum(1, keepdims=True)).sum(0).max() / n)
        assert value["sink_count"] in (0, pytest.approx(np.nan, nan_ok=True))


def test_a_mean_over_layers_of_which_one_has_a_mask_has_no_uniform_value_beside_it():
    from attnscope.results.summaries import uniform_value

    keys = {"metric": "entropy", "kind": "uniform", "protocol": "exact", "threshold": np.nan}
    table = pd.DataFrame([{**keys, "n_tokens": 9, "support": "causal", "value": 1.5}])
    frame = pd.DataFrame({"n_tokens": 9, "support": ["causal", "causal"]})
    assert uniform_value(frame, table, "entropy") == 1.5
    assert np.isnan(uniform_value(frame.assign(support=["causal", "mask"]), table, "entropy"))


def test_shuffled_rows_stay_inside_what_queries_see():
    from attnscope.studies.nulls import shuffled_rows
    from attnscope.studies.supports import visible_pairs

    for name in ("causal", "full", "window 3", "window 2+1"):
        seen = visible_pairs(name, 9)
        maps = torch.rand(2, 3, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        maps = torch.where(seen, maps, 0.0)
        result = shuffled_rows(maps, [9, 9], [0, 1], 0, 0, seen)
        assert (result[..., ~seen] == 0).all()
        assert (result[..., seen] > 0).all()
        assert torch.equal(result.sort(-1).values, maps.sort(-1).values)
        assert not torch.equal(result, maps)


def test_entropies_of_shuffled_rows_are_the_same_under_any_support(case):
    heads = case[1].table("heads")
    controls = case[1].table("heads_variants")
    controls = controls[controls["scope"] == "heads"].set_index("sample")
    for sample, group in heads.groupby("sample"):
        row = controls.loc[sample]
        assert row["entropy"] == pytest.approx(group["entropy"].mean(), rel=1e-6)
        assert row["learned_sink_mass"] == pytest.approx(
            group["learned_sink_mass"].mean(), rel=1e-6, nan_ok=True
        )


#: Columns of a map, or of a head among those of its layer, that depend on what queries see.
OF_SUPPORT = [
    *("entropy", "entropy_normalized", "sink_share", "sink_share_uniform", "sink_boost", "mp_ks"),
    *("top_mass", "head_divergence"),
]


def test_study_analyze_view_and_layer_give_the_same_numbers(case):
    """Texts of two lengths in one batch; windows, full attention, a learned sink."""
    name, results, _ = case
    model = models.tiny(name)
    token_ids = list(results.table("samples")["token_ids"])
    ids = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(list(ids_of_text)) for ids_of_text in token_ids], batch_first=True
    )
    mask = torch.nn.utils.rnn.pad_sequence(
        [torch.ones(len(ids_of_text)) for ids_of_text in token_ids], batch_first=True
    ).long()
    keys, columns = ["sample", "layer", "head"], list(OF_SUPPORT)
    stored = results.table("heads")
    if name == "gpt_oss":
        columns.append("learned_sink_mass")
    stored = stored.set_index(keys)[columns].sort_index().astype(float)
    result = asc.analyze(model, {"input_ids": ids, "attention_mask": mask}, METRICS)["heads"]
    result = result.set_index(keys)[columns].sort_index().astype(float)
    pd.testing.assert_frame_equal(result, stored, rtol=1e-6, atol=1e-8)

    with capture(model) as recording, torch.no_grad():
        for layer in recording.run(input_ids=ids, attention_mask=mask):
            measured = layer.measure(
                {
                    "attention_entropy": {},
                    "sink_share": {},
                    "marchenko_pastur_deviation": {},
                    "even": {"metric": "attention_entropy", "normalized": True},
                    "head_divergence": {},
                },
            )
            rows_of_layer = stored.xs(layer.index, level="layer")
            for column, values in (
                ("entropy", measured["attention_entropy"].nanmean(-1)),
                ("entropy_normalized", measured["even"].nanmean(-1)),
                ("sink_boost", measured["sink_share"].boost),
                ("mp_ks", measured["marchenko_pastur_deviation"]),
                ("head_divergence", measured["head_divergence"]),
            ):
                want = rows_of_layer[column].unstack("head").to_numpy()
                np.testing.assert_allclose(values, want, rtol=2e-5, atol=1e-7, err_msg=column)
            if name == "gpt_oss":
                want = rows_of_layer["learned_sink_mass"].unstack("head").to_numpy()
                np.testing.assert_allclose(measured["sink_share"].learned, want, rtol=1e-6)

    text = int(mask.sum(1).argmax())
    page = asc.view(model, list(token_ids[text])).contents
    shown = {
        metric["name"]: np.array(page["values"][0][0][at], float) for at, metric in enumerate(page["metrics"])
    }
    for column in columns:
        if column not in shown:  # what uniform attention gives is shown beside each column
            assert column == "sink_share_uniform"
            continue
        want = stored.xs(text, level="sample")[column].unstack("head").to_numpy()
        np.testing.assert_allclose(shown[column], want, rtol=1e-4, atol=1e-5, err_msg=column)
    at = [metric["name"] for metric in page["metrics"]].index("sink_share")
    uniform = np.broadcast_to(np.array(page["uniform"][0][at], float), len(models.LAYER_KINDS[name]))
    want = stored.xs(text, level="sample")["sink_share_uniform"].groupby("layer").first()
    np.testing.assert_allclose(uniform, want, rtol=1e-5)


def test_a_stored_matrix_of_a_window_has_no_law_in_closed_form(case):
    """The page compares a spectrum with the law of what the layer's queries see, and with no other."""
    name, results, _ = case
    kinds = models.LAYER_KINDS[name]
    for page in (asc.view(results), asc.view(results, sample=1, model=models.tiny(name))):
        shown = {attention_map["layer"]: attention_map["spectrum"] for attention_map in page.contents["maps"]}
        assert sorted(shown) == list(range(len(kinds)))
        for layer, kind in enumerate(kinds):
            n = page.contents["maps"][0]["n"]
            words = shown[layer].get("reason", "")
            assert ("a window of keys or a mask" in words) == (kind.startswith("window") and n > 8), (
                layer,
                n,
            )
