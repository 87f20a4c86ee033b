# SPDX-License-Identifier: MIT
"""Windows and learned sinks in the study of absolute position: its numbers against loops over keys."""

import numpy as np
import pytest
import torch

from attnscope.capture import capture
from attnscope.engine.run_study import run
from folders import tokenizer
from models import tiny
from position_study import GROUPS, N, settings

WINDOW, M = 5, N // 2
#: What the queries of each layer see: keys up to this far back.
LAYERS = {"mistral": [WINDOW] * 3, "gemma3": [WINDOW, N, WINDOW], "gpt_oss": [WINDOW, N]}
EARLY = range(2, M)


def seen_by(size):
    """The visible pairs of a text, by loops."""
    return np.array([[0 <= i - j < size for j in range(N)] for i in range(N)])


@pytest.fixture(scope="module", params=["mistral", pytest.param("gemma3", marks=pytest.mark.slow), "gpt_oss"])
def case(request, tmp_path_factory, texts):
    """The name, a run, and every text's scores by layer with the logit of its learned sink, -inf without."""
    home = tmp_path_factory.mktemp(request.param)
    model = tiny(request.param, sliding_window=WINDOW)
    model.save_pretrained(home / "model")
    tokenizer().save_pretrained(home / "model")
    quick = {"inputs": ["windows"], "arms": [], "leakage": False, "bands": 2}
    results = run(settings(home / "model", texts, home, protocols="exact", **quick), progress=False)
    recorded = []
    for ids in results.table("samples")["token_ids"]:
        with capture(model, sites=("scores",)) as recording:
            layers = list(recording.run(input_ids=torch.tensor(list(ids))[None]))
        recorded.append(
            [
                (layer.scores[0].double().numpy(), logits_of(layer, model.config.num_attention_heads))
                for layer in layers
            ]
        )
    return request.param, results, recorded


def logits_of(layer, heads):
    return np.full(heads, -np.inf) if layer.sink_logits is None else layer.sink_logits.double().numpy()


def layers(case, table, **only):
    """What is seen in each layer, scores [texts, h, n, n], sinks [h], and the rows of a table by head."""
    name, results, recorded = case
    stored = results.table(table)
    for key, value in only.items():
        stored = stored[stored[key] == value]
    for layer, size in enumerate(LAYERS[name]):
        scores = np.stack([text[layer][0] for text in recorded])
        yield seen_by(size), scores, recorded[0][layer][1], stored[stored["layer"] == layer]


def test_scores_of_the_models_are_of_windows_and_learned_sinks(case):
    for seen, scores, sinks, _ in layers(case, "position"):
        assert (np.isfinite(scores) == seen).all()
        assert np.isfinite(sinks).all() == (case[0] == "gpt_oss")


def test_reads_of_key_0_are_means_over_the_queries_that_see_it(case):
    for seen, scores, sinks, rows in layers(case, "fingerprints", arm="base"):
        who = [i for i in range(1, N) if seen[i, 0]]
        rows = rows.set_index("head")
        for head in rows.index:
            e = np.exp(scores[:, head])
            total = e.sum(-1) + np.exp(sinks[head])
            expected = np.mean([e[:, i, 0] / total[:, i] for i in who])
            assert rows["a0"][head] == pytest.approx(expected, rel=1e-5)
            assert rows["uniform"][head] == pytest.approx(
                np.mean([1 / seen[i].sum() for i in who]), rel=1e-12
            )


def test_the_clock_is_of_the_queries_that_see_key_0(case):
    stored = case[1].table("clocks")
    for (seen, scores, sinks, rows), layer in zip(
        layers(case, "fingerprints", arm="base"), range(len(LAYERS[case[0]])), strict=True
    ):
        who = [i for i in EARLY if seen[i, 0]]
        for head, row in rows.set_index("head").iterrows():
            rows_of_head = stored[(stored["layer"] == layer) & (stored["head"] == head)].sort_values("query")
            assert rows_of_head["a0"].notna().tolist() == seen[:M, 0].tolist()
            assert rows_of_head["a0_mask"].notna().tolist() == seen[:M, 0].tolist()
            e = np.exp(scores[:, head])
            a0 = (e[..., 0] / (e.sum(-1) + np.exp(sinks[head])))[:, who]
            np.testing.assert_allclose(rows_of_head["a0"].to_numpy(float)[who], a0.mean(0), rtol=1e-5)
            # products of different texts share nothing but the position
            y, texts = a0 - a0.mean(1, keepdims=True), range(len(a0))
            pairs = [(t, u) for t in texts for u in texts if t != u]
            between = np.mean([(y[t] * y[u]).mean() for t, u in pairs])
            total = (a0**2).mean() - np.mean([a0[t].mean() * a0[u].mean() for t, u in pairs])
            assert row["clock"] == pytest.approx(between / total, rel=1e-4, abs=1e-6)


def test_the_cut_and_the_log_sums_are_of_visible_keys_and_the_sink(case):
    for seen, scores, sinks, rows in layers(case, "position", queries="early", arm="base"):
        for head, row in rows.set_index("head").iterrows():
            extra, e = np.exp(sinks[head]), np.exp(scores[:, head])
            cut, gap = [], []
            for i in EARLY:
                late = []
                for k in range(M, 2 * M):
                    near = sum(e[:, k, k - d] for d in range(i + 1) if seen[k, k - d]) + extra
                    total = sum(e[:, k, k - d] for d in range(M) if seen[k, k - d]) + extra
                    late.append(np.log(near))
                    cut.append(np.log(total / near))
                gap.append(np.log(e[:, i].sum(-1) + extra) - np.mean(late, 0))
            assert row["mask_cut"] == pytest.approx(np.mean(cut), rel=1e-5, abs=1e-7)
            assert row["lse_gap"] == pytest.approx(np.mean(gap), rel=1e-5, abs=1e-6)


def test_the_residual_and_key_0_are_of_visible_pairs(case):
    for seen, scores, _, rows in layers(case, "position", queries="early", arm="base"):
        groups = np.arange(len(scores)) * GROUPS // len(scores)
        for head, row in rows.set_index("head").iterrows():
            s = scores[:, head]
            profile = [
                np.mean([s[:, k, k - d] for k in range(M, 2 * M)], 0) if seen[M, M - d] else np.nan
                for d in range(M)
            ]
            first, rest = [], {}
            for i in EARLY:
                body = [j for j in range(1, i + 1) if seen[i, j]]
                rest[i] = np.stack([s[:, i, j] - profile[i - j] for j in body], -1)
                if seen[i, 0]:
                    first.append(s[:, i, 0] - profile[i] - rest[i].mean(-1))
            assert row["sink_advantage"] == pytest.approx(np.mean(first), rel=1e-4, abs=1e-5)
            size = []
            for i in EARLY:
                means = [rest[i][groups == g].mean(0) for g in range(GROUPS)]
                means = [mean - mean.mean() for mean in means]
                size.append(
                    np.mean(
                        [(means[g] * means[f]).mean() for g in range(GROUPS) for f in range(GROUPS) if g != f]
                    )
                )
            assert row["residual"] == pytest.approx(np.mean(size), rel=1e-4, abs=1e-6)


def test_random_weights_stand_beside_uniform_attention_of_what_is_seen(case):
    for seen, _, sinks, rows in layers(case, "controls", queries="early"):
        has_sink = int(np.isfinite(sinks).all())
        expected = []
        for i in EARLY:
            for k in range(M, 2 * M):
                near = sum(seen[k, k - d] for d in range(i + 1)) + has_sink
                expected.append(np.log((sum(seen[k, k - d] for d in range(M)) + has_sink) / near))
        np.testing.assert_allclose(rows["uniform_cut"], np.mean(expected), rtol=1e-12)


def test_bands_are_of_visible_pairs_and_the_sink(case):
    """KL and share of one head's first band, from its queries and keys, text by text."""
    name, results, _ = case
    model = tiny(name, sliding_window=WINDOW)
    bands = results.table("bands")
    head, values = 1, [[] for _ in LAYERS[name]]
    for text in results.table("samples")["text"]:
        bare = torch.tensor([tokenizer(bos=False)(text)["input_ids"]])
        assert bare.shape == (1, N)
        with capture(model, sites=("query", "key")) as recording:
            for layer in recording.run(input_ids=bare):
                q = layer.tensors["query"][0, head].double().numpy()
                k = layer.tensors["key"][0, layer.kv_heads[head]].double().numpy()
                scaling = model.model.layers[layer.index].self_attn.scaling
                half = q.shape[-1] // 2
                pairs = [p + side * half for p in range(half // 2) for side in (0, 1)]
                sink = logits_of(layer, model.config.num_attention_heads)[head]
                values[layer.index].append((q @ k.T * scaling, q[:, pairs] @ k[:, pairs].T * scaling, sink))
    for layer, size in enumerate(LAYERS[name]):
        kl, share = [], []
        for s, part, sink in values[layer]:
            seen = seen_by(size)
            share.append(np.cov(s[seen], part[seen], ddof=0)[0, 1] / s[seen].var())
            parts = []
            for i in range(1, N):
                p, q = (np.exp(np.append(x[i][seen[i]], sink)) for x in (s, s - part))
                p, q = p / p.sum(), q / q.sum()
                parts.append(sum(a * np.log(a / b) for a, b in zip(p, q, strict=True) if a > 0))
            kl.append(np.mean(parts))
        row = bands[(bands["layer"] == layer) & (bands["head"] == head) & (bands["band"] == 0)].iloc[0]
        assert row["kl"] == pytest.approx(np.mean(kl), rel=1e-4, abs=1e-7)
        assert row["share"] == pytest.approx(np.mean(share), rel=1e-4, abs=1e-6)


def test_a_window_that_is_imposed_is_what_queries_see():
    from attnscope import edit
    from attnscope.capture.edits import HideKeys, LimitWindow

    model, ids = tiny("llama"), torch.arange(4, 16)[None]
    with edit(model, LimitWindow(3)), capture(model) as recording:
        names = [layer.visibility.name for layer in recording.run(input_ids=ids)]
    assert names == ["window 3"] * 3
    with edit(model, HideKeys([2], skip_queries=[2])), capture(model) as recording:
        for layer in recording.run(input_ids=ids):
            seen = np.tri(12, dtype=bool)
            seen[3:, 2] = False
            assert np.array_equal(layer.visibility.support[0, 0].numpy(), seen)
            assert bool((layer.attention[0, :, torch.tensor(seen)] > 0).all())
