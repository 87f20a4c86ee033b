# SPDX-License-Identifier: MIT
"""The wavelet study on tiny models: its tables hold what direct calls give, beside nulls and closed forms."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
import models
from attnscope.capture import capture
from attnscope.config.packaged_configs import packaged
from attnscope.config.run_config import RunConfig
from attnscope.engine.run_study import run
from attnscope.errors import ConfigError, LoadError, MissingError
from attnscope.plots import draw
from attnscope.plots.selection import measured_heads
from attnscope.published import compare_published, published_numbers
from attnscope.report.numbers import number_rows
from attnscope.results.results import Results
from attnscope.studies.supports import visible_pairs
from attnscope.studies.wavelet_heads.harmonics import harmonics
from attnscope.studies.wavelet_heads.summaries import correlated, phases, published
from attnscope.studies.wavelet_heads.tables import WaveletOptions, of_heads
from attnscope.study_api import number_text
from folders import WORDS, model_folder, sentences, series, tokenizer
from models import MapCount
from placeholders import placeholders

KEYS = ["model", "revision", "step", "sample", "layer", "head", "protocol"]


def study(tmp_path, model, texts, **options):
    return RunConfig(
        study="wavelet_heads",
        models=str(model),
        texts=str(texts),
        output=str(tmp_path / "runs"),
        name="a",
        block=3,
        options=options,
    )


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A run with every null, its model folder and its text file."""
    home = tmp_path_factory.mktemp("wavelet")
    folder = model_folder(home / "tiny" / "hf")
    texts = sentences(home / "texts.txt", 4, shortest=44)
    return run(study(home, folder, texts, nulls="all"), say=lambda text: None), folder, texts


def maps_of(folder, results, sample, tokens=None):
    """Attention [layers, heads, n, n] of one sample, or of its first tokens."""
    from transformers import AutoModelForCausalLM

    ids = results.table("samples").set_index("sample")["token_ids"][sample]
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with capture(model) as recording:
        return torch.stack(
            [
                layer.attention[0].clone()
                for layer in recording.run(input_ids=torch.tensor(ids[:tokens])[None])
            ]
        )


def test_what_has_no_value_is_null(finished_run):
    assert placeholders(finished_run[0]) == []


def test_the_tables_hold_what_direct_calls_give(finished_run):
    results, folder, _ = finished_run
    heads = results.table("heads")
    assert list(heads.columns[:7]) == KEYS
    for sample in (0, 3):
        maps = maps_of(folder, results, sample)
        rows_of_text = heads[heads["sample"] == sample]
        spectrum = asc.power_spectrum(maps)
        wavelet = asc.wavelet_transform(maps)
        bounds = asc.spectral_uncertainty(maps)
        for column, values in {
            "low_band": spectrum.low,
            "spectral_selectivity": spectrum.selectivity,
            "spectral_entropy": spectrum.entropy,
            "wavelet_entropy": wavelet.scale_entropy,
            "position_entropy": bounds.position_entropy,
            "uncertainty_bound": bounds.variance_bound,
        }.items():
            np.testing.assert_allclose(
                rows_of_text[column], values.nanmean(-1).flatten(), rtol=1e-4, atol=1e-6
            )
        np.testing.assert_allclose(
            rows_of_text["local_global_ratio"], asc.local_global_ratio(maps).flatten(), rtol=1e-4
        )
        energy = wavelet.energy.nanmean(-2)
        for scale in range(4):
            np.testing.assert_allclose(
                rows_of_text[f"wavelet_energy_{scale}"], energy[..., scale].flatten(), atol=1e-5
            )
        spectra = results.table("spectra")
        shares = spectra[spectra["sample"] == sample]["power_share"].to_numpy().reshape(2, 32)
        np.testing.assert_allclose(shares, spectrum.bands.nanmean(-2).mean(1), atol=1e-5)


def test_head_means_are_those_of_the_mean_map(finished_run):
    results, folder, _ = finished_run
    means = results.table("head_means")
    assert list(means.columns[:6]) == [key for key in KEYS if key != "head"]
    maps = maps_of(folder, results, 3).double().mean(1)
    means_of_text = means[means["sample"] == 3]
    np.testing.assert_allclose(means_of_text["low_band"], asc.power_spectrum(maps).low.nanmean(-1), rtol=1e-4)
    # random weights have head means too, in the rows of their controls
    controls = results.table("heads_variants")
    assert set(controls.loc[controls["variant"] == "random_weights", "scope"]) == {"heads", "head_mean"}


def test_a_run_restricted_to_one_metric_has_its_columns_only(tmp_path, finished_run):
    _, folder, texts = finished_run
    result = run(
        study(tmp_path, folder, texts, metrics="local_global_ratio", harmonics=False, prefixes=[0.8]),
        say=lambda text: None,
    )
    assert set(result.tables()) == {"samples", "heads", "head_means", "signals", "baselines", "phases"}
    heads = result.table("heads")
    assert heads["local_share"].notna().all()
    assert heads["low_band"].isna().all()
    assert set(result.table("phases")["metric"]) == {"local_global_ratio", "local_share"}


@pytest.mark.slow
def test_no_more_than_two_layers_are_alive(tmp_path, monkeypatch):
    folder = model_folder(tmp_path / "deep", num_hidden_layers=6)
    texts = sentences(tmp_path / "texts.txt", 3, shortest=44)
    count = MapCount(monkeypatch)
    run(study(tmp_path, folder, texts, nulls="row_permutation", prefixes=[0.8]), say=lambda text: None)
    assert count.born > 6
    assert count.most == 2


def test_columns_say_what_they_are(finished_run):
    schema = finished_run[0].schema("heads")
    field = schema.field("wavelet_energy_0").metadata
    assert (field[b"label"], field[b"low"], field[b"high"]) == (b"energy, smooth part", b"0", b"1")
    assert schema.field("local_global_ratio").metadata[b"kind"] == b"ratio"


def test_short_texts_have_no_value(tmp_path, finished_run):
    _, folder, _ = finished_run
    texts = sentences(tmp_path / "short.txt", 2, shortest=6)
    result = run(study(tmp_path, folder, texts, harmonics=False), say=lambda text: None)
    stored = result.arrow("heads")
    assert stored["low_band"].null_count == len(stored) > 0
    assert stored["local_share"].null_count < len(stored)


def test_a_causal_beginning_is_the_leading_block_of_the_whole(finished_run):
    """So a second forward pass tells a causal model nothing, and S compares a map with its own corner."""
    results, folder, _ = finished_run
    full_maps, part = maps_of(folder, results, 3), maps_of(folder, results, 3, 36)
    np.testing.assert_allclose(full_maps[..., :36, :36], part, atol=1e-5)
    # half of these sentences is shorter than a signal: no table, and no second pass
    assert "scale_sensitivity" not in results.tables()


def test_which_beginnings_are_read_does_not_depend_on_blocks(tmp_path, finished_run):
    """A text that is too short had rows of null where a longer one was read with it, and none alone."""
    _, folder, _ = finished_run
    lines = [" ".join(WORDS[at : at + n]) for at, n in enumerate((6, 9, 9, 12, 20, 9))]
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(lines) + "\n", "utf-8")
    tables = []
    for block in (1, 64):
        options = {"min_keys": 7, "prefixes": [0.7, 0.5], "harmonics": False}
        settings = study(tmp_path / str(block), folder, texts, **options)
        settings = settings.model_copy(update={"block": block})
        tables.append(run(settings, say=lambda text: None, progress=False).table("scale_sensitivity"))
    keys = ["sample", "layer", "head", "fraction", "n_tokens"]
    first, second = (table.sort_values(keys).reset_index(drop=True) for table in tables)
    pd.testing.assert_frame_equal(first, second, rtol=1e-4, atol=1e-5)
    assert first["n_tokens"].min() >= 7
    sizes = first.groupby(["sample", "fraction"])["n_tokens"].first().to_dict()
    # ten tokens with BOS: seven tenths are seven
    assert sizes == {
        (1, 0.7): 7,
        (2, 0.7): 7,
        (3, 0.5): 7,
        (3, 0.7): 10,
        (4, 0.5): 11,
        (4, 0.7): 15,
        (5, 0.7): 7,
    }


def test_beginnings_are_read_again(tmp_path, finished_run):
    results, folder, texts = finished_run
    result = run(study(tmp_path, folder, texts, prefixes=[0.8], harmonics=False), say=lambda text: None)
    table = result.table("scale_sensitivity")
    n = int(results.table("samples").set_index("sample")["n_tokens"][3])
    full_maps, part = maps_of(folder, results, 3), maps_of(folder, results, 3, math.ceil(0.8 * n))
    rows_of_text = table[table["sample"] == 3]
    np.testing.assert_allclose(
        rows_of_text["energy"], asc.scale_sensitivity(full_maps, part).flatten(), atol=1e-5
    )
    np.testing.assert_allclose(
        rows_of_text["coefficients"],
        asc.scale_sensitivity(full_maps, part, compare="coefficients").flatten(),
        atol=1e-4,
    )
    assert "scale_sensitivity_energy_0.8" in set(result.table("phases")["metric"])


def test_uncertainty_and_its_nulls(finished_run):
    results = finished_run[0]
    heads, rho = results.table("heads"), results.table("uncertainty")
    rows_of_text = heads[heads["sample"] == 1]
    expected = np.corrcoef(rows_of_text["position_entropy"], rows_of_text["spectral_entropy"])[0, 1]
    assert rho.set_index("sample")["rho"][1] == pytest.approx(expected, abs=1e-12)
    assert (rho["heads"] == len(rows_of_text)).all()
    nulls = results.variants()
    assert set(nulls["variant"]) == {"random_weights", "row_permutation"}
    assert {"rho", "spectral_entropy", "low_band"} <= set(nulls["metric"])
    assert set(nulls.query("variant == 'row_permutation'")["scope"]) == {"heads", "whole"}
    # order changes no entropy of position
    permuted = nulls[(nulls["variant"] == "row_permutation") & (nulls["metric"] == "position_entropy")]
    plain = heads.groupby("sample")["position_entropy"].mean()
    np.testing.assert_allclose(
        permuted.set_index("sample")["value"], plain, atol=1e-6
    )  # order changes no entropy


def test_controls_of_two_input_sets_are_kept_apart(tmp_path):
    """Shuffled rows of texts of one length were averaged over the input sets, in tables and figures."""
    folder = model_folder(tmp_path / "tiny" / "hf")
    sources = []
    for group, words in (("plain", WORDS[:9]), ("repeated", WORDS[:1] * 8 + WORDS[1:2])):
        path = tmp_path / f"{group}.txt"
        path.write_text("\n".join(" ".join(words[start:] + words[:start]) for start in range(2)), "utf-8")
        sources.append({"path": str(path), "group": group})
    options = {"min_keys": 6, "nulls": ["row_permutation"], "harmonics": False, "prefixes": []}
    settings = study(tmp_path, folder, "any", **options).to_dict()
    results = run(RunConfig(**{**settings, "texts": sources}), say=lambda text: None, progress=False)
    samples = results.table("samples")
    assert samples["n_tokens"].nunique() == 1
    controls = results.table("heads_variants").merge(samples[["sample", "group"]], on="sample")
    expected = controls.drop_duplicates("sample").groupby("group")["low_band"].mean()
    rows = number_rows(measured_heads(results), results.table("baselines"), ["low_band"])
    assert {row["series"]: row["row_permutation"] for row in rows} == {
        group: number_text.number(value) for group, value in expected.items()
    }
    assert rows[0]["row_permutation"] != rows[1]["row_permutation"]
    lines = {line.get_gid(): line for line in draw(results, ["band_shares"])["band_shares"].axes[0].lines}
    for group, value in expected.items():
        np.testing.assert_allclose(lines[f"row_permutation:{group}"].get_ydata(), value, rtol=1e-12)


def test_uniform_baselines_are_closed_forms(finished_run):
    table = finished_run[0].table("baselines")
    n = int(table["n_tokens"].min())
    values = table[(table["n_tokens"] == n) & (table["kind"] == "uniform")].set_index("metric")["value"]
    lengths = np.arange(32, n + 1)
    assert values["position_entropy"] == pytest.approx(np.log(lengths).mean(), rel=1e-12)
    assert values["fourier_entropy"] == pytest.approx(0, abs=1e-12)
    assert values["wavelet_entropy"] == pytest.approx(0, abs=1e-12)
    far = sum((i - 8) / (i + 1) for i in range(8, n))
    assert values["local_global_ratio"] == pytest.approx((n - far) / far, rel=1e-12)
    assert 0.6 < values["spectral_selectivity"] <= 2 / 3


@pytest.mark.parametrize(
    "name",
    [
        "mistral",
        "gpt_oss",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3", "modernbert")),
    ],
)
def test_windows_masks_and_learned_sinks_reach_every_number(tmp_path, name):
    """Each row is a signal among the keys that it sees, read here by itself as the last row of a full map."""
    model = models.tiny(name)
    model.save_pretrained(tmp_path / "hf")
    tokenizer().save_pretrained(tmp_path / "hf")
    texts = sentences(tmp_path / "t.txt", 2, shortest=17)
    options = {"min_keys": 6, "prefixes": [0.7], "nulls": ["row_permutation"], "harmonics": False}
    results = run(study(tmp_path, tmp_path / "hf", texts, **options), say=lambda text: None, progress=False)
    heads, ids = results.table("heads"), results.table("samples").iloc[1]["token_ids"]
    with capture(model) as recording:
        inputs = torch.tensor(list(ids))[None]
        layers = list(recording.run(input_ids=inputs, attention_mask=torch.ones_like(inputs)))
    supports = set()
    for number, layer in enumerate(layers):
        rows_of_layer = heads[(heads["sample"] == 1) & (heads["layer"] == number)]
        (word,) = set(rows_of_layer["support"])
        supports.add(word)
        seen = visible_pairs(word, len(ids)).numpy()
        signals = [np.flatnonzero(row) for row in seen if row.sum() >= 6]
        for place, row in enumerate(rows_of_layer.itertuples()):
            maps = layer.matrices()[0, place].double()
            rows = [
                maps[i][visible] for i, visible in zip(np.flatnonzero(seen.sum(1) >= 6), signals, strict=True)
            ]
            low_bands = []
            for signal in rows:
                map_of_signal = torch.zeros(len(signal), len(signal), dtype=torch.float64)
                map_of_signal[-1] = signal
                low_bands.append(
                    asc.power_spectrum(map_of_signal, signal="last", support="full", min_keys=6).low
                )
            assert row.low_band == pytest.approx(float(torch.stack(low_bands).mean()), rel=1e-6), (
                word,
                number,
            )
            entropy = [float(torch.special.entr(weights / weights.sum()).sum()) for weights in rows]
            assert row.position_entropy == pytest.approx(np.mean(entropy), rel=1e-6)
            learned = layer.states("sink_mass")[0, place].double().mean()
            stored = 0.0 if np.isnan(row.learned_sink_mass) else row.learned_sink_mass
            assert stored == pytest.approx(float(learned), abs=1e-6)
        uniform = results.table("baselines")
        uniform = uniform[(uniform["support"] == word) & (uniform["n_tokens"] == len(ids))].set_index(
            "metric"
        )
        expected = np.mean([np.log(len(visible)) for visible in signals])
        assert uniform.loc["position_entropy", "value"] == pytest.approx(expected, rel=1e-12)
        signal = results.table("signals").query("layer == @number and head == 0")["signal"].iloc[0]
        first = results.table("samples").iloc[0]["n_tokens"]
        assert len(signal) == visible_pairs(word, first)[-1].sum()
    assert len(supports) == 2 or name == "mistral"
    controls = results.variants().set_index(["sample", "metric"])["value"]
    plain = heads[heads["sample"] == 1]["position_entropy"].mean()
    assert controls[1, "position_entropy"] == pytest.approx(plain, abs=1e-6)
    assert results.table("scale_sensitivity")["energy"].notna().any()


def test_signals_are_stored_for_scalograms(finished_run):
    results, folder, _ = finished_run
    row = results.table("signals").iloc[0]
    assert row["sample"] == 0
    maps = maps_of(folder, results, 0)
    np.testing.assert_allclose(row["signal"], maps[0, 0, -1], atol=1e-5)


def test_harmonics_are_those_of_the_models_activation(finished_run):
    table = finished_run[0].table("harmonics")
    assert set(table["input"]) == {"constant", "token"}
    assert set(table["activation"].str.removesuffix("Activation")) == {"SiLU"}
    assert (table["distortion_before"] < 1e-4).all()
    # x·σ(x) = x/2 + an even function, so a rotation gets even harmonics only
    assert (table["distortion_3"] < 1e-5).all()
    assert (table["norm_shifted"] < table["norm_aligned"]).all()
    assert (table["entropy_shifted"] > table["entropy_aligned"]).all()


def test_phases_follow_the_checkpoints(tmp_path):
    home = series(tmp_path / "growing")
    texts = sentences(tmp_path / "t.txt", 5, shortest=44)
    results = run(study(tmp_path, home / "step*", texts), say=lambda text: None)
    phases = results.table("phases")
    assert sorted(phases["step"].unique()) == [0, 2, 10]
    heads = results.table("heads")
    means_of_texts = heads[heads["step"] == 2].groupby("sample")["low_band"].mean()
    row = phases[(phases["step"] == 2) & (phases["metric"] == "low_band")].iloc[0]
    assert row["mean"] == pytest.approx(means_of_texts.mean(), rel=1e-12)
    assert row["low"] <= row["mean"] <= row["high"]
    assert len(results.table("harmonics").groupby("step")) == 3


def test_a_model_without_rope_and_an_encoder(tmp_path):
    texts = sentences(tmp_path / "t.txt", 2, shortest=44)
    messages = []
    results = run(
        study(tmp_path, model_folder(tmp_path / "bert", "bert", bos=False), texts), say=messages.append
    )
    assert "harmonics" not in results.tables()
    assert any("no harmonics" in text for text in messages + results.provenance["notes"])
    heads = results.table("heads")
    assert heads["low_band"].notna().all()
    assert set(results.table("baselines")["support"]) == {"full"}


def test_a_model_whose_queries_are_out_of_reach_has_no_harmonics(tmp_path):
    """It has RoPE and hands out maps alone: nothing of it was measured."""
    texts = sentences(tmp_path / "t.txt", 2, shortest=44)
    folder = model_folder(tmp_path / "falcon", "falcon")
    results = run(study(tmp_path, folder, texts, prefixes=[]), say=lambda text: None)
    assert "harmonics" not in results.tables()
    assert any("FalconForCausalLM: no harmonics" in note for note in results.provenance["notes"])
    assert results.table("heads")["low_band"].notna().all()


def test_a_model_without_attention_ends_the_run_with_the_reason(tmp_path):
    """One stage had nothing to write, the next could not begin: the error was of a run to be resumed."""
    texts = sentences(tmp_path / "t.txt", 2, shortest=44)
    settings = study(tmp_path, model_folder(tmp_path / "mamba", "mamba"), texts)
    with pytest.raises(LoadError, match=r"mamba: .*no attention"):
        run(settings, say=lambda text: None)
    assert not (tmp_path / "runs" / settings.name).exists()


def test_published_values_stand_beside_their_own_models():
    import pandas as pd

    pythia = "EleutherAI/pythia-2.8b"
    keys = {"revision": "", "low": 0.0, "high": 1.0, "samples": 3}
    table = pd.DataFrame(
        [
            {"model": pythia, "step": 128, "metric": "spectral_selectivity", "mean": 0.6, **keys},
            {"model": pythia, "step": 1000, "metric": "spectral_selectivity", "mean": 0.3, **keys},
            {"model": pythia, "step": 143000, "metric": "rho", "mean": -0.7, **keys},
            {"model": "another", "step": -1, "metric": "rho", "mean": -0.7, **keys},
        ]
    )
    result = published(table)
    assert result["published"].tolist() == [-0.737, 0.76, 0.23]
    assert result["here"].tolist() == [-0.7, 0.6, 0.3]


def test_phases_stand_beside_the_papers_numbers():
    import pandas as pd

    keys = {"revision": "", "low": 0.0, "high": 1.0, "samples": 3}
    pythia = [
        {"model": "EleutherAI/pythia-2.8b", "step": step, "metric": metric, "mean": mean, **keys}
        for step, metric, mean in [
            (128, "spectral_selectivity", 0.6),
            (1000, "spectral_selectivity", 0.3),
            (143000, "rho", -0.7),
            (1000, "rho", -0.1),
        ]
    ]
    other = [{"model": "other", "step": -1, "metric": "low_band", "mean": 0.5, **keys}]

    def table(rows, **options):
        result = compare_published(Results({"phases": pd.DataFrame(rows)}), "ruscio2024", **options)
        return result, result.table.set_index(["published_model", "quantity", "token"])

    comparison, rows = table(pythia)
    assert set(comparison.table["published_model"]) == {"Pythia-2.8B"}
    assert "is the published Pythia-2.8B by name" in str(comparison)
    assert rows.loc[("Pythia-2.8B", "rho", ""), "measured"] == -0.7
    assert rows.loc[("Pythia-2.8B", "rho", ""), "difference"] == pytest.approx(-0.7 + 0.737)
    assert rows.loc[("Pythia-2.8B", "spectral_selectivity", "steps 0 to 128"), "measured"] == 0.6
    assert rows.loc[("Pythia-2.8B", "spectral_selectivity", "steps 512 to 1000"), "step"] == 1000
    comparison, rows = table(other, against="qwen2.5-0.5b")
    assert "other is not Qwen2.5-0.5B" in str(comparison)
    assert rows.loc[("Qwen2.5-0.5B", "low_band", ""), "measured"] == 0.5
    assert math.isnan(rows.loc[("Qwen2.5-0.5B", "rho", ""), "measured"])
    assert len(table(other)[0].table) == len(published_numbers("ruscio2024"))
    with pytest.raises(MissingError, match="no table 'phases'"):
        compare_published(Results({}), "ruscio2024")


def test_the_local_share_is_that_of_the_ratio(finished_run):
    results, _, _ = finished_run
    heads = results.table("heads")
    ratio, share = heads["local_global_ratio"], heads["local_share"]
    is_defined = ratio.notna()
    assert is_defined.any()
    np.testing.assert_allclose(share[is_defined], ratio[is_defined] / (1 + ratio[is_defined]), rtol=1e-12)
    assert share[~is_defined].isin([1.0]).all()


def test_rho_needs_three_heads_that_differ():
    import pandas as pd

    table = pd.DataFrame({"position_entropy": [1.0, 2.0, 3.0], "spectral_entropy": [3.0, 2.0, 1.0]})
    assert correlated(table)["rho"] == pytest.approx(-1)
    assert math.isnan(correlated(table.iloc[:2])["rho"])
    assert math.isnan(correlated(table.assign(spectral_entropy=1.0))["rho"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"signl": "last"}, r"unknown key 'signl' in options; did you mean 'signal'"),
        ({"signal": "row"}, r"options\.signal: .*got 'row'"),
        ({"prefixes": [1.5]}, r"options\.prefixes\[0\]: .*got 1\.5"),
        ({"nulls": ["shuffled"]}, r"options\.nulls: there is no 'shuffled'"),
        ({"metrics": "spectrum"}, r"options\.metrics: there is no 'spectrum'; did you mean 'power_spectrum'"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig(study="wavelet_heads", models="a", options=options)


def test_the_papers_models_are_packaged():
    names = {name for name in packaged() if name.startswith("wavelet")}
    assert {
        f"wavelet-{config_name}"
        for config_name in (
            "gemma-2-2b",
            "pythia-2.8b",
            "pythia-12b",
            "llama-3.2-1b",
            "mistral-7b",
            "qwen2.5-0.5b",
            "pythia-2.8b-training",
        )
    } == names - {"wavelet_heads"}
    for name in names:
        study = RunConfig.from_yaml(name, **({"models": "a"} if name == "wavelet_heads" else {}))
        assert study.study == "wavelet_heads"
        assert set(study.options) == set(WaveletOptions.model_fields)


@pytest.mark.parametrize("name", ["gemma3", "modernbert"])
def test_layers_of_one_model_turn_at_frequencies_of_their_own(name):
    """Models with a base for each kind of layer were said to have no RoPE."""
    model = models.tiny(name)
    config = model.config
    table = pd.DataFrame(harmonics(model))
    assert set(table["layer"]) == set(range(config.num_hidden_layers))
    for layer, rows in table.groupby("layer"):
        base = config.rope_parameters[config.layer_types[layer]]["rope_theta"]
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        expected = base ** (-2.0 * rows["pair"].to_numpy() / size)
        np.testing.assert_allclose(rows["theta"], expected, rtol=1e-6)
    assert (table["distortion_before"] < 1e-4).all()


def test_entropies_that_float32_rounds_have_no_correlation():
    """Heads alike differ in their last bits, whose correlation is that of rounding."""
    draw = np.random.default_rng(3)
    rounded = {
        name: 3.5 * (1 + 2.0**-24 * draw.integers(-2, 3, 12))
        for name in ("position_entropy", "spectral_entropy", "fourier_entropy")
    }
    assert all(map(math.isnan, correlated(rounded).values()))
    apart = {name: values + 1e-3 * draw.random(12) for name, values in rounded.items()}
    expected = np.corrcoef(apart["position_entropy"], apart["spectral_entropy"])[0, 1]
    assert correlated(apart)["rho"] == pytest.approx(expected)


@pytest.mark.parametrize("min_keys", [12, 32, 96])
def test_a_scale_has_a_name_that_holds_for_any_number_of_levels(min_keys):
    """Scale 3 was called the finest detail also where it was not: of 96 keys there are five details."""
    quantities = {quantity.name: quantity for quantity in of_heads(WaveletOptions(min_keys=min_keys))}
    names = [name for name in quantities if name.startswith("wavelet_energy_")]
    assert names == [f"wavelet_energy_{scale}" for scale in range(min(4, 1 + int(math.log2(min_keys / 3))))]
    for name, word in zip(names, ("smooth", "coarsest", "second", "third"), strict=False):
        assert word in quantities[name].label
        assert "fine" not in quantities[name].label + quantities[name].meaning


def test_intervals_over_training_end_where_the_quantity_does():
    """A ratio, and a share, had intervals that reached below 0."""
    shares = np.array([0.0, 0.0, 0.0, 0.02, 0.3, 0.95])
    heads = pd.DataFrame({"model": "m", "revision": "", "step": -1, "sample": range(len(shares))})
    heads = heads.assign(layer=0, head=0, protocol="exact", local_share=shares, unnamed=shares - 0.5)
    rows = phases(Results({"heads": heads})).set_index("metric")
    plain, cut = rows.loc["unnamed"], rows.loc["local_share"]
    assert plain["low"] + 0.5 < 0
    assert cut["low"] == 0
    assert cut["high"] == pytest.approx(min(1.0, plain["high"] + 0.5))
    assert cut["mean"] == pytest.approx(shares.mean())
