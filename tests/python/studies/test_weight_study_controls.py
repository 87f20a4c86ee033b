# SPDX-License-Identifier: MIT
"""The weight study's further subspaces and controls on tiny models, each against its own arithmetic."""

import json
import math
import random
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import attnscope as asc
from attnscope.config.run_config import RunConfig
from attnscope.engine.run_study import run
from attnscope.errors import ConfigError
from attnscope.metrics.weights.low_rank import LowRank
from attnscope.models import LoadError
from attnscope.studies.pretraining_writes.evidence import pairs_of
from attnscope.studies.pretraining_writes.figures import FIGURES
from attnscope.studies.pretraining_writes.shared_subspaces import SharedSubspaces
from folders import sums_on_disk
from placeholders import placeholders
from weight_models import tiny

Q = "model.layers.1.self_attn.q_proj"


def rows_in(file, seed, count=8, low=3, high=97):
    draw = random.Random(seed)
    rows = [[draw.randrange(low, high) for _ in range(20 + n % 3)] for n in range(count)]
    file.write_text("\n".join(json.dumps({"token_ids": row}) for row in rows), "utf-8")
    return rows


def trained(folder, rows, steps):
    model = tiny("qwen2")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        for row in rows[:4]:
            ids = torch.tensor([row])
            optimiser.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("series")
    rows = rows_in(folder / "own.jsonl", 1)
    rows_in(folder / "other.jsonl", 2, high=30)
    for step in (0, 2, 10):
        trained(folder / "growing" / f"step{step}", rows, step)
    return folder


@pytest.fixture(scope="module")
def results(home):
    options = {
        "moments_of": "both",
        "nulls": ["foreign", "weights"],
        "curve": 4,
        "rank_one": {"texts": 3, "directions": 3, "tokens": [5, 9]},
    }
    texts = [
        {"path": str(home / "own.jsonl"), "group": "own"},
        {"path": str(home / "other.jsonl"), "group": "other"},
    ]
    settings = RunConfig(
        study="pretraining_writes",
        models=[str(home / "growing")],
        texts=texts,
        output=str(home),
        name="a",
        block=4,
        options=options,
    )
    return run(settings, say=lambda text: None)


def inputs(home, file, step):
    """What layer 1's q reads in the texts of a file, position 0 left out, [tokens, 48]."""
    model = tiny("qwen2")
    model.load_state_dict(load_file(home / "growing" / step / "model.safetensors"), strict=False)
    seen = []
    hook = model.get_submodule(Q).register_forward_pre_hook(lambda _, args: seen.append(args[0][0, 1:]))
    with torch.no_grad():
        for line in (home / file).read_text().splitlines():
            model(input_ids=torch.tensor([json.loads(line)["token_ids"]]))
    hook.remove()
    return torch.cat(seen).double().numpy()


def weights(home, step, name=f"{Q}.weight"):
    return load_file(home / "growing" / step / "model.safetensors")[name].double().numpy()


def relative(matrix, vectors):
    return np.linalg.norm(matrix @ vectors) ** 2 / np.linalg.norm(matrix) ** 2 * 48 / vectors.shape[1]


def main_directions(x, k=3):
    return np.linalg.eigh(x.T @ x)[1][:, ::-1][:, :k]


def of_q(table, subspace, **keys):
    rows = table[(table["layer"] == 1) & (table["role"] == "q") & (table["subspace"] == subspace)]
    rows = rows[(rows["step"] == 2) & (rows["side"] == "in") & (rows["k"] == 3)]
    for name, value in keys.items():
        rows = rows[rows[name] == value]
    (row,) = rows.to_dict("records")
    return row["relative"]


def test_the_disk_that_sums_take_is_known_beforehand(results):
    expected, stored = sums_on_disk(results)
    assert 0.8 * stored < expected < 1.6 * stored


def test_what_has_no_value_is_null(results):
    assert placeholders(results) == []


def test_every_reference_and_control_is_the_arithmetic_that_it_names(results, home):
    delta = weights(home, "step2") - weights(home, "step0")
    base = weights(home, "step0")
    fractions, controls = results.table("fractions"), results.table("fractions_variants")
    for subspace, file, step in (
        ("inputs", "own.jsonl", "step0"),
        ("inputs_after", "own.jsonl", "step2"),
        ("inputs_last", "own.jsonl", "step10"),
    ):
        expected = relative(delta, main_directions(inputs(home, file, step)))
        assert of_q(fractions, subspace) == pytest.approx(expected, rel=1e-4), subspace
    directions = main_directions(inputs(home, "own.jsonl", "step0"))
    foreign = main_directions(inputs(home, "other.jsonl", "step0"))
    assert of_q(controls, "inputs", variant="foreign") == pytest.approx(relative(delta, foreign), rel=1e-4)
    assert of_q(controls, "inputs", variant="weights") == pytest.approx(relative(base, directions), rel=1e-4)
    rest = delta - (delta * base).sum() / (base * base).sum() * base
    removed = of_q(controls, "inputs", variant="decay_removed")
    assert removed == pytest.approx(relative(rest, directions), rel=1e-4)
    singular = np.linalg.svd(base)[2][:3].T
    assert of_q(fractions, "own_weights") == pytest.approx(relative(delta, singular), rel=1e-4)
    prediction = asc.prediction_subspace(home / "growing" / "step10", 3).basis.numpy()
    assert of_q(fractions, "prediction_last") == pytest.approx(relative(delta, prediction), rel=1e-4)


def all_inputs(home, step):
    """Return what the attention of each layer reads, position 0 left out, [layers][tokens, 48]."""
    model = tiny("qwen2")
    model.load_state_dict(load_file(home / "growing" / step / "model.safetensors"), strict=False)
    seen = [[], []]
    for layer, block in enumerate(model.model.layers):
        block.self_attn.q_proj.register_forward_pre_hook(
            lambda _, args, layer=layer: seen[layer].append(args[0][0, 1:])
        )
    with torch.no_grad():
        for line in (home / "own.jsonl").read_text().splitlines():
            model(input_ids=torch.tensor([json.loads(line)["token_ids"]]))
    return [torch.cat(parts).double().numpy() for parts in seen]


def test_a_mean_over_matrices_strays_as_far_as_under_one_rotation_of_all_their_subspaces(results, home):
    """Against rotations drawn here: independent subspaces would make both deviations too small."""
    seen, prediction = all_inputs(home, "step0"), asc.prediction_subspace(home / "growing" / "step0", 3).basis
    names = {
        "in": ("self_attn.q_proj", "self_attn.k_proj"),
        "out": ("self_attn.o_proj", "mlp.down_proj"),
    }
    rng, shares, octaves = np.random.default_rng(0), {"in": [], "out": []}, {"in": [], "out": []}
    grams = {}
    for side, layer, name in ((s, n, m) for s in names for n in (0, 1) for m in names[s]):
        full = f"model.layers.{layer}.{name}.weight"
        delta = weights(home, "step10", full) - weights(home, "step0", full)
        gram = delta.T @ delta if side == "in" else delta @ delta.T
        basis = main_directions(seen[layer]) if side == "in" else prediction.numpy()
        grams.setdefault(side, []).append((gram / np.trace(gram), basis))
    for _ in range(4000):
        turn = np.linalg.qr(rng.standard_normal((48, 48)))[0]
        for side, pairs in grams.items():
            ratios = [np.trace((turn @ b).T @ g @ (turn @ b)) * 48 / 3 for g, b in pairs]
            shares[side].append(np.mean(ratios))
            octaves[side].append(np.mean(np.log2(ratios)))
    rows = results.table("mean_deviations")
    rows = rows[rows["step"] == 10].set_index(["side", "subspace", "roles"])
    fractions = results.table("fractions")
    fractions = fractions[(fractions["step"] == 10) & fractions["tested"]]
    for key, roles in (
        (("in", "inputs", "q k"), ["q", "k"]),
        (("out", "prediction", "o down"), ["o", "down"]),
    ):
        row = rows.loc[key]
        assert row["matrices"] == 4
        assert row["deviation"] == pytest.approx(np.std(shares[key[0]]), rel=0.05)
        single = fractions[fractions["role"].isin(roles) & (fractions["side"] == key[0])]
        single = single[single["subspace"] == key[1]]["deviation"] * 48 / 3
        assert row["deviation"] > 1.1 * math.sqrt((single**2).sum()) / 4
    pair = next(
        pair
        for pair in pairs_of({name: results.table(name) for name in results.tables()})
        if pair.keys["step"] == 10
    )
    for roles, side, subspace in ((("q", "k"), "in", "inputs"), (("o", "down"), "out", "prediction")):
        mean = pair.mean(roles, side, subspace)
        assert mean.deviation == pytest.approx(np.std(octaves[side]), rel=0.12)
        assert mean.expected == pytest.approx(np.mean(octaves[side]), abs=0.15 * mean.deviation)


def test_wide_changes_are_seen_in_probes():
    """A common direction in changes of width 640: the variance of the sum within the error of probes."""
    d, k, rng = 640, 40, np.random.default_rng(1)
    shared, total = SharedSubspaces(), np.zeros((d, d))
    basis = torch.from_numpy(np.linalg.qr(rng.standard_normal((d, k)))[0]).float()
    common = rng.standard_normal((d, 1)) @ rng.standard_normal((1, 50))
    for layer in range(3):
        change = 3 * common + rng.standard_normal((d, 50))
        total += change @ change.T / np.square(change).sum()
        shared.add(torch.from_numpy(change).float(), basis, side="out", subspace="prediction", layer=layer)
    ratio = np.trace(total) ** 2 / np.square(total).sum()
    (row,) = shared.rows()
    assert row["deviation"] == pytest.approx(float(asc.haar_deviation(ratio, k, d)), rel=0.06)
    low_rank = SharedSubspaces()
    low_rank.add(
        LowRank(torch.ones(d, 1), torch.ones(1, 5), 2.0), basis, side="out", subspace="prediction", layer=0
    )
    assert low_rank.rows()[0]["deviation"] == pytest.approx(float(asc.haar_deviation(1, k, d)), rel=0.12)


def test_biases_are_given_by_the_size_of_their_change(results, home):
    deltas = results.table("deltas")
    row = deltas[(deltas["step"] == 2) & (deltas["layer"] == 1)].set_index("role")["bias_change"]
    change = weights(home, "step2", f"{Q}.bias") - weights(home, "step0", f"{Q}.bias")
    assert row["q"] == pytest.approx(np.linalg.norm(change), rel=1e-12)
    assert math.isnan(row["o"])


def test_the_gradient_identity_stands_beside_the_moments(results):
    moments = results.table("moments")
    out = moments[moments["side"] == "out"]
    assert (out["identity_error"] < 1e-5).all()
    assert set(moments["step"]) == {0, 2, 10}


def test_reading_and_writing_changes_of_rank_one(results):
    rows = results.table("rank_one")
    reading = rows[rows["role"].isin(["q", "k"])]
    assert set(reading["direction"]) == {"inputs", "complement", "haar"}
    assert reading["attention_change"].between(0, 1).all()
    assert (reading["attention_change"] > 0).all()
    writing = rows[rows["role"].isin(["o", "down"])]
    assert set(writing["direction"]) == {"prediction", "complement", "haar", "gradients", "tokens"}
    assert writing["attention_change"].isna().all()
    assert FIGURES["rank_one"](results).caption


def test_the_course_is_drawn_on_all_three_references(results):
    drawn = FIGURES["trajectory"](results)
    assert len(drawn.figure.axes) == 6
    drawn.figure.canvas.draw()


def test_the_shift_of_attention_is_that_of_the_maps():
    from attnscope.capture.weights.rank_one import attention_change

    model = tiny("llama", attn_implementation="eager")
    ids = torch.arange(5, 17)
    u, v = torch.eye(48)[:1], torch.ones(48)
    change = attention_change(model, ids, 1, "q", u, v, size=0.5)
    base, changed = [], []
    with torch.no_grad():
        base.append(model(input_ids=ids[None], output_attentions=True).attentions[1][0].double())
        weight = model.model.layers[1].self_attn.q_proj.weight
        weight.add_(0.5 * weight.norm() * torch.outer(u[0], v / v.norm()))
        changed.append(model(input_ids=ids[None], output_attentions=True).attentions[1][0].double())
    expected = (changed[0] - base[0]).abs().sum(-1).mean() / 2
    torch.testing.assert_close(change[0], expected, rtol=1e-4, atol=1e-7)


def pair(home, tmp_path, family, **fields):
    dtype = fields.pop("dtype", torch.float32)
    for name, seed in (("base", 0), ("tuned", 1)):
        model = tiny(family, seed=seed)
        model.to(dtype).save_pretrained(tmp_path / name)
    options = {"nulls": [], "rank_one": False, "gradients": False, "curve": 0, **fields.pop("options", {})}
    return RunConfig(
        study="pretraining_writes",
        models=[str(tmp_path / name) for name in ("base", "tuned")],
        texts={"path": str(home / "own.jsonl")},
        output=str(tmp_path),
        name="a",
        options=options,
        **fields,
    )


def test_experts_have_a_mean_weighted_by_their_energy(home, tmp_path):
    results = run(pair(home, tmp_path, "mixtral"), say=lambda text: None)
    assert placeholders(results) == []
    keys = {"layer": 1, "role": "up", "side": "in", "subspace": "inputs"}
    fractions, deltas = results.table("fractions"), results.table("deltas")
    means = results.table("expert_means")
    for name, value in keys.items():
        fractions, means = fractions[fractions[name] == value], means[means[name] == value]
    energies = deltas[(deltas["layer"] == 1) & (deltas["role"] == "up")].set_index("expert")["delta_energy"]
    shares = fractions.set_index("expert")["fraction"]
    (row,) = means.to_dict("records")
    assert row["experts"] == 4
    assert row["fraction"] == pytest.approx((energies * shares).sum() / energies.sum(), rel=1e-12)


def test_half_precision_is_refused_where_float32_does_not_fit(home, tmp_path):
    settings = pair(
        home, tmp_path, "llama", dtype=torch.bfloat16, options={"gradients": True}, max_memory="150KB"
    )
    with pytest.raises(
        (LoadError, ConfigError), match=r"max_memory is 0.154 MB; set options.gradients=false"
    ):
        run(settings, say=lambda text: None)


def test_one_group_of_texts_has_no_foreign_inputs(home, tmp_path):
    notes = []
    results = run(pair(home, tmp_path, "llama", options={"nulls": ["foreign"]}), say=notes.append)
    assert any("foreign needs texts of two groups" in note for note in notes)
    assert "fractions_variants" not in results.tables()


def test_tokens_that_are_no_pair_are_refused(home, tmp_path):
    options = {"rank_one": {"tokens": [4, 4]}}
    with pytest.raises(ConfigError, match="two different token ids, got 4 and 4"):
        run(pair(home, tmp_path, "llama", options=options), say=lambda text: None)


@pytest.mark.parametrize(
    ("rank_one", "message"),
    [
        ({"layers": [0, 5]}, r"rank_one.layers: the model has 2 layers, -2 to 1, got \[5\]"),
        ({"layers": [-3]}, r"rank_one.layers: the model has 2 layers, -2 to 1, got \[-3\]"),
        ({"tokens": [5, 10**6]}, r"rank_one.tokens: the model has \d+ tokens, got 1000000"),
    ],
)
def test_places_of_rank_one_that_the_model_does_not_have_are_refused(home, tmp_path, rank_one, message):
    with pytest.raises(ConfigError, match=message):
        run(pair(home, tmp_path, "llama", options={"rank_one": rank_one}), say=lambda text: None)


def test_the_largest_token_is_a_share_of_all_tokens(home, results):
    """The texts are those whose inputs are measured: the other group is a null."""
    squares = (inputs(home, "own.jsonl", "step0") ** 2).sum(1)
    rows = results.table("moments")
    rows = rows[(rows["revision"] == "step0") & (rows["layer"] == 1) & (rows["side"] == "in")]
    shares = rows.set_index("role")["largest_token_share"]
    for role in ("q", "k", "v"):
        assert shares[role] == pytest.approx(squares.max() / squares.sum(), rel=1e-5)


def test_a_checkpoint_of_another_shape_is_skipped_and_the_others_are_measured(home, tmp_path):
    for step in ("step0", "step2", "step10"):
        shutil.copytree(home / "growing" / step, tmp_path / "odd" / step)
    tiny("qwen2", hidden_size=24, num_attention_heads=2).save_pretrained(tmp_path / "odd" / "step7")
    settings = RunConfig(
        study="pretraining_writes",
        models=[str(tmp_path / "odd")],
        texts={"path": str(home / "own.jsonl")},
        output=str(tmp_path),
        name="a",
        options={"nulls": [], "rank_one": False, "gradients": False, "curve": 0},
    )
    results = run(settings, say=lambda text: None)
    assert [entry["checkpoint"] for entry in results.provenance["skipped"]] == ["odd step7"]
    assert "not one architecture" in results.provenance["skipped"][0]["reason"]
    assert set(results.table("deltas")["step"]) == {2, 10}
    assert {2, 10} <= set(results.table("claims")["step"])
