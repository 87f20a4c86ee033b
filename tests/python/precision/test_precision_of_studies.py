# SPDX-License-Identifier: MIT
"""`precision: fast` of studies: who takes it, what it leaves as it is, and what the provenance says."""

import numpy as np
import pytest

from attnscope.config.packaged_configs import packaged
from attnscope.config.run_config import RunConfig
from attnscope.engine.planning import make_plan
from attnscope.engine.run_study import run
from attnscope.errors import ConfigError
from folders import model_folder, sentences

STUDIES = (
    "absolute_position",
    "attention_likelihood",
    "attention_sinks",
    "features",
    "hallucination_geometry",
    "pretraining_writes",
    "wavelet_heads",
)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_takes_the_setting_and_is_exact_without_it(name: str) -> None:
    texts = "builtin:hallucination_geometry" if name == "hallucination_geometry" else "t.txt"
    assert RunConfig(study=name, models="m", texts=texts).precision == "exact"
    assert RunConfig(study=name, models="m", texts=texts, precision="fast").precision == "fast"
    with pytest.raises(ConfigError, match=r"precision: .*'exact' or 'fast'.*got 'quick'"):
        RunConfig(study=name, models="m", texts=texts, precision="quick")


def test_packaged_studies_are_exact() -> None:
    names = packaged()
    assert len(names) > 10
    for name in names:
        assert RunConfig.from_yaml(name, models="m", texts="t.txt").precision == "exact", name


def test_a_setting_of_the_command_line_reaches_the_run() -> None:
    settings = RunConfig.from_yaml("attention_sinks", models="m", texts="t.txt", overrides=["precision=fast"])
    assert settings.precision == "fast"


def test_a_published_protocol_alone_refuses_fast_by_name() -> None:
    with pytest.raises(ConfigError, match=r"precision: fast is of the protocol exact, and ruscio2025"):
        RunConfig(models="m", texts="t.txt", protocols="ruscio2025", precision="fast")


def test_both_protocols_run_and_the_published_numbers_stay(tmp_path) -> None:
    model, texts = model_folder(tmp_path / "model"), sentences(tmp_path / "texts.txt", 3)
    results = {
        precision: run(
            RunConfig(
                models=str(model),
                texts=str(texts),
                output=str(tmp_path / precision),
                protocols="both",
                options={"metrics": ["attention_entropy", "stable_rank", "sink_share", "graph_statistics"]},
                precision=precision,
            )
        )
        for precision in ("exact", "fast")
    }
    for precision, of_run in results.items():
        assert of_run.provenance["precision"]["asked"] == precision
        assert set(of_run.provenance["precision"]) == {"asked", "fell_back"}
    exact, fast = (
        results[name].table("heads").sort_values(["protocol", "sample", "layer", "head"])
        for name in ("exact", "fast")
    )
    assert list(exact.columns) == list(fast.columns)
    for column in exact.select_dtypes("number"):
        is_published = (exact["protocol"] == "ruscio2025").to_numpy()
        numbers = exact[column].to_numpy(), fast[column].to_numpy()
        np.testing.assert_array_equal(*(values[is_published] for values in numbers), err_msg=column)
        np.testing.assert_allclose(*(values[~is_published] for values in numbers), rtol=1e-5, err_msg=column)


def test_units_of_exact_runs_keep_their_names_and_fast_ones_have_others(tmp_path) -> None:
    model, texts = model_folder(tmp_path / "model"), sentences(tmp_path / "texts.txt", 2)
    exact, fast = (
        make_plan(RunConfig(models=str(model), texts=str(texts), precision=precision))
        for precision in ("exact", "fast")
    )
    assert "precision" not in exact.decisive
    assert fast.decisive["precision"] == "fast"
    assert exact.digest != fast.digest
