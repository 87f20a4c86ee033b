# SPDX-License-Identifier: MIT
"""Which heads have a sink, and frames of those: from maps with known sinks through the stored tables."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope.metrics.information.sink_test import pooled_sinks, sink_sums, sink_test
from attnscope.results.results import Results
from attnscope.studies.attention_sinks.sections import findings
from attnscope.studies.attention_sinks.sink_heads import SinkSums, classify_heads, sink_heads
from attnscope.studies.attention_sinks.summaries import frames
from attnscope.study_api.forward import Batch

MODEL = {"model": "m", "revision": "", "step": -1}


def random_maps(texts, heads, n, first=0.0, *, key=0, seed=0):
    """Causal softmax of random logits, where `key` takes the share `first` of each row that sees it."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(texts, heads, n, n, dtype=torch.float64, generator=generator)
    maps = logits.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
    maps[..., key:, :] *= 1 - first
    maps[..., key:, key] += first
    return maps


def stored(maps, lengths, tokens=None, parts=1):
    """Tables of maps [texts, layers, heads, n, n] as the study's units write them, in `parts` units."""
    texts, layers, heads = maps.shape[:3]
    tokens = tokens or [[f"w{text}.{key}" for key in range(n)] for text, n in enumerate(lengths)]
    written = []
    for texts_of_part in np.array_split(np.arange(texts), parts):
        run = SimpleNamespace(
            write=lambda name, **rows: written.append(pd.DataFrame(rows)), unit=SimpleNamespace(inputs=())
        )
        sums = SinkSums(run)
        # two batches of a unit, the later texts first
        for group in (texts_of_part[1:], texts_of_part[:1]):
            if not len(group):
                continue
            sizes = [lengths[text] for text in group]
            batch = Batch(group.tolist(), sizes, [], [tokens[text] for text in group], ["all"] * len(group))
            for layer in range(layers):
                states = SimpleNamespace(
                    heads=maps[group.tolist(), layer],
                    lengths=torch.tensor(sizes),
                    support="causal",
                    names=tuple(range(heads)),
                )
                sums.add(states, layer, batch)
        sums.write()
    rows = []
    for layer in range(layers):
        result = sink_test(maps[:, layer], support="causal", lengths=torch.tensor(lengths)[:, None])
        counts = torch.where(result.untested, -1, result.sinks.sum(-1))
        for text, head in np.ndindex(texts, heads):
            place, count = int(result.position[text, head]), int(counts[text, head])
            rows.append(
                {
                    **MODEL,
                    "sample": text,
                    "layer": layer,
                    "head": head,
                    "protocol": "exact",
                    "sink_position": place if place >= 0 else None,
                    "sink_count": count if count >= 0 else None,
                }
            )
    samples = pd.DataFrame(
        {
            **MODEL,
            "sample": range(texts),
            "group": "all",
            "n_tokens": lengths,
            "causal": True,
            "tokens": tokens,
        }
    )
    heads_table = pd.DataFrame(rows).astype({"sink_position": "Int64", "sink_count": "Int64"})
    tables = {"samples": samples, "heads": heads_table}
    if written:
        tables["sink_sums"] = pd.concat(written).assign(**MODEL)
    return Results(tables)


def verdict(results):
    evidence = []
    (row,) = frames(results, list(classify_heads(results)), 0, evidence)
    return row, evidence


def test_random_attention_has_no_frame_although_every_row_has_a_largest_entry():
    maps = random_maps(8, 6, 40).reshape(8, 3, 2, 40, 40)
    assert (asc.sink_position(maps, rule="largest") >= 0).all()
    row, evidence = verdict(stored(maps, [40] * 8))
    assert (row["frame"], row["heads_with_sink"], row["heads_tested"]) == ("none", 0, 6)
    assert row["share_with_sink"] == 0
    assert evidence == []
    assert row["modal_position"] is None


def test_a_layer_may_have_fewer_heads_than_others():
    """Some models have; a head that is not there is none without a sink."""
    maps = random_maps(8, 6, 40, first=0.3).reshape(8, 3, 2, 40, 40)
    complete = stored(maps, [40] * 8)
    tables = {name: complete.table(name) for name in complete.tables()}
    for name in ("heads", "sink_sums"):
        table = tables[name]
        tables[name] = table[(table["layer"] != 1) | (table["head"] == 0)]
    published = tables["heads"].assign(protocol="ruscio2025")
    tables["heads"] = pd.concat([tables["heads"], published], ignore_index=True)
    fewer = Results(tables)
    row, row_as_published = frames(fewer, list(classify_heads(fewer)), 0, [])
    assert (row["frame"], row["heads_with_sink"], row["heads_tested"]) == ("centralized", 5, 5)
    assert (row["share_with_sink"], row["modal_position_share"]) == (1.0, 1.0)
    assert (row_as_published["frame"], row_as_published["modal_position"]) == ("centralized", 0)
    of_heads = sink_heads(list(classify_heads(fewer)))
    assert [(of_head["layer"], of_head["head"]) for of_head in of_heads] == [
        *((0, 0), (0, 1), (1, 0), (2, 0), (2, 1))
    ]


def test_uniform_attention_has_no_frame():
    n = 40
    maps = torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1)[:, None]
    row, _ = verdict(stored(maps.expand(6, 3, 2, n, n), [n] * 6))
    assert row["frame"] == "none"


def test_a_first_key_of_a_third_makes_a_centralized_frame():
    maps = random_maps(8, 6, 40, 0.3).reshape(8, 3, 2, 40, 40)
    row, evidence = verdict(stored(maps, [40] * 8))
    assert (row["frame"], row["heads_with_sink"], row["modal_position"]) == ("centralized", 6, 0)
    assert row["modal_position_share"] == 1
    assert len(evidence) > 0


def test_texts_too_short_for_a_test_are_judged_together():
    """Six tokens say nothing alone; twenty texts show the first key, and a frame of the pooled place."""
    lengths = [6 + text % 3 for text in range(20)]
    maps = random_maps(20, 6, 8, 0.6).reshape(20, 3, 2, 8, 8)
    results = stored(maps, lengths, parts=3)
    (first,) = classify_heads(results)
    assert len(first.pooled) == 6
    assert set(first.labels.values()) == {0}
    assert (first.positions < 0).mean() > 0.5
    row, _ = verdict(results)
    assert (row["frame"], row["modal_position"]) == ("centralized", 0)
    rows = pd.DataFrame(sink_heads(list(classify_heads(results))))
    assert rows["has_sink"].all()
    assert set(rows["pooled_by"]) == {"start"}


def test_where_no_key_can_be_tested_the_frame_is_untested():
    maps = random_maps(4, 2, 3).reshape(4, 1, 2, 3, 3)
    results = stored(maps, [3, 3, 2, 2])
    row, _ = verdict(results)
    rows = pd.DataFrame(sink_heads(list(classify_heads(results))))
    assert row["heads_tested"] == 0
    assert (row["frame"], row["heads_with_sink"]) == ("untested", 0)
    assert rows["has_sink"].isna().all()


@pytest.mark.parametrize("kind", ["start", "end", "token"])
def test_sums_of_units_and_batches_are_those_of_all_texts_at_once(kind):
    lengths = [12, 20, 16, 20, 9, 14]
    maps = random_maps(6, 2, 20, 0.2)[:, None]
    draw = np.random.default_rng(0)
    tokens = [draw.choice(list("abc"), n).tolist() for n in lengths]
    sums = stored(maps, lengths, tokens, parts=2).table("sink_sums")
    sums_of_kind = sums[sums["label_kind"] == kind]
    pooled = pooled_sinks(sums_of_kind, texts=6, by=["layer", "head"]).drop(columns="layer")
    # behind its length a text has nothing
    result = sink_test(maps[:, 0], support="causal", lengths=torch.tensor(lengths)[:, None])
    at_once = sink_sums(result, label=kind, lengths=torch.tensor(lengths), tokens=tokens)
    expected = pooled_sinks(at_once, texts=6).rename(columns={"map": "head"})
    expected["label"] = expected["label"].astype(str)
    order = ["head", "label"]
    pooled, expected = (table.sort_values(order).reset_index(drop=True) for table in (pooled, expected))
    pd.testing.assert_frame_equal(pooled, expected[pooled.columns], check_dtype=False, rtol=1e-12)


def test_a_token_of_its_own_is_found_by_token_and_not_by_place():
    """A special token somewhere in the first half of each text takes a third; its place says nothing."""
    draw = np.random.default_rng(1)
    n, texts = 24, 30
    places = draw.integers(0, n // 2, texts)
    maps = torch.cat(
        [random_maps(1, 1, n, 0.35, key=int(place), seed=text) for text, place in enumerate(places)]
    )[:, None]
    tokens = [draw.choice(list("abcdefgh"), n).tolist() for _ in range(texts)]
    for text, place in enumerate(places):
        tokens[text][place] = "<sep>"
    (first,) = classify_heads(stored(maps, [n] * texts, tokens))
    row = first.pooled[0, 0]
    assert (row["label_kind"], row["label"]) == ("token", "<sep>")
    assert first.labels == {(0, 0): None}


def test_gpt2_rests_on_its_first_key():
    """Five texts of six or seven tokens: no text says anything alone; together about 100 of 144 heads do."""
    folder = Path(__file__).resolve().parents[4] / "shared" / "data" / "gpt2_attention_maps"
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}")
    stored_maps = [
        torch.from_numpy(np.load(folder / f"ex{text}.npz")["attn_softmax"].copy()) for text in range(5)
    ]
    lengths = [maps_of_text.shape[-1] for maps_of_text in stored_maps]
    maps = torch.zeros(5, 12, 12, max(lengths), max(lengths), dtype=torch.float64)
    for text, (maps_of_text, n) in enumerate(zip(stored_maps, lengths, strict=True)):
        maps[text, ..., :n, :n] = maps_of_text.reshape(12, 12, n, n)
    row, _ = verdict(stored(maps, lengths))
    assert row["frame"] == "centralized"
    assert 95 <= row["heads_with_sink"] <= 107
    assert (row["heads_tested"], row["modal_position"], row["modal_position_share"]) == (144, 0, 1.0)


@pytest.mark.parametrize("seed", range(40))
def test_main_numbers_never_contradict_the_verdict_on_frames(seed):
    """Whatever the tables hold, a frame is named where the verdict has it, and nowhere else."""
    rng = np.random.default_rng(seed)
    keys = {"model": "a", "revision": "", "step": -1}
    heads = pd.DataFrame(
        [
            {**keys, "sample": sample, "layer": layer, "head": head, "sink_share": rng.uniform()}
            for sample in range(2)
            for layer in range(2)
            for head in range(3)
        ]
    )
    tested = int(rng.choice([0, 2, 6]))
    count = int(rng.integers(0, tested + 1))
    frame = str(rng.choice(["centralized", "distributed", "bidirectional", "none"])) if count else "none"
    verdict = {
        "protocol": "exact",
        "group": "all",
        "frame": frame,
        "heads_tested": tested,
        "heads_with_sink": count,
        "share_with_sink": count / tested if tested else np.nan,
        "probability": rng.choice([0.9, np.nan]),
        "chance": rng.choice([0.001, np.nan]),
    }
    (line,) = findings(Results({"heads": heads, "frames": pd.DataFrame([{**keys, **verdict}])}))
    assert (f"whose frame is {frame}" in line) == (frame != "none")
    has_chance = frame != "none" and verdict["chance"] > 0
    assert ("in 0.1% of draws in which heads are unrelated" in line) == has_chance
    assert ("no key could be tested" in line) == (tested == 0)
    assert ("reference frame" in line) == (tested > 0 and frame == "none")
    assert (f"finds a sink in {count} of {tested} heads" in line) == (count > 0)
    mean = heads.groupby(["layer", "head"])["sink_share"].mean()
    assert f"the strongest of all, L{mean.idxmax()[0]}H{mean.idxmax()[1]}, gives it {mean.max():.3f}" in line
