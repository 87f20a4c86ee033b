# SPDX-License-Identifier: MIT
"""A text that is given twice is no second sample of an exact test, interval or mean."""

import numpy as np
import pandas as pd
import pytest

import attnscope as asc
from attnscope.cli.results_commands import statistics
from attnscope.engine.planning import make_plan
from attnscope.engine.run_study import run
from attnscope.plots.drawable import drawable
from attnscope.plots.selection import estimate
from attnscope.results.equal_texts import of_distinct_texts
from attnscope.view.stored import contents_of_results
from folders import model_folder, sentences, sink_study
from models import tiny

#: Tables that hold a row, or several, of every text.
OF_TEXTS = ("samples", "sink_sums")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("models") / "tiny" / "hf")


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    file = sentences(tmp_path_factory.mktemp("texts") / "texts.txt", 6, shortest=8)
    return file.read_text("utf-8").splitlines()


def texts(folder, lines):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "texts.txt"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file


def run_once_and_often(tmp_path, lines, settings):
    """Results of the texts, and of the same ones three times in another order."""
    repeated = [*lines, *lines[::-1], *lines]
    return [
        run(settings(tmp_path / name, texts(tmp_path / name, rows)), progress=False)
        for name, rows in (("once", lines), ("often", repeated))
    ]


def exact(results, name):
    table = results.table(name)
    return table[table["protocol"] == "exact"] if "protocol" in table else table


def assert_equal_summaries(once, often):
    compared = 0
    for name in sorted({*once.tables(), *often.tables()}.difference(OF_TEXTS)):
        first, second = exact(once, name), exact(often, name)
        if "sample" in first:
            assert len(second) in (len(first), 3 * len(first)), name
            continue
        compared += len(first)
        pd.testing.assert_frame_equal(
            first.reset_index(drop=True), second.reset_index(drop=True), rtol=1e-5, atol=1e-7
        )
    assert compared > 20


@pytest.mark.slow
def test_the_sink_study_takes_equal_texts_as_one(tmp_path, folder, lines):
    """Three times the texts gave tests of the layers with three times the degrees of freedom."""

    def settings(output, file):
        return sink_study(
            output, folder, file, options={"extra": ["ablation", "random_weights", "row_permutation"]}
        )

    once, often = run_once_and_often(tmp_path, lines, settings)
    assert_equal_summaries(once, often)
    assert exact(often, "layer_tests")["samples"].max() == 6
    # the authors count every text
    published = often.table("layer_tests").query("protocol == 'ruscio2025'")
    assert published["samples"].max() == 18
    # tables are complete, and say which texts are equal
    samples = often.table("samples")
    assert samples["text_unit"].tolist() == [*range(6), *range(5, -1, -1), *range(6)]
    assert often.table("heads")["sample"].nunique() == 18
    # figures and the report take them as one too
    assert estimate(exact(drawable(often), "heads"), "sink_share", ["layer"])["samples"].tolist() == [6, 6]
    notes = " ".join(often.provenance["notes"])
    assert "12 of 18 sentences are read as an earlier one is" in notes
    assert not any("earlier one" in note for note in once.provenance["notes"])


def test_the_wavelet_study_takes_equal_texts_as_one(tmp_path, folder, lines):
    def settings(output, file):
        options = {"nulls": ["random_weights", "row_permutation"], "min_keys": 6}
        return asc.Study(
            study="wavelet_heads",
            models=str(folder),
            texts=str(file),
            output=str(output),
            name="a",
            options=options,
        )

    once, often = run_once_and_often(tmp_path, lines, settings)
    assert_equal_summaries(once, often)
    assert often.table("phases")["samples"].max() <= 6


def test_texts_that_a_limit_makes_equal_are_one(tmp_path, folder, lines):
    rows = [f"{lines[0]} {rest}" for rest in ("sea", "night", "wind")] + [lines[5]]
    for study in ("attention_sinks", "wavelet_heads", "attention_likelihood"):
        settings = asc.Study(
            study=study,
            models=str(folder),
            texts=str(texts(tmp_path, rows)),
            output=str(tmp_path),
            max_tokens=9,
        )
        read = [
            text.first_equal
            for unit in make_plan(settings).units
            if not unit.variant
            for text in unit.inputs[:4]
        ]
        assert read[:4] == [0, 0, 0, 3]


def test_texts_whose_first_token_is_drawn_are_equal_by_their_words(tmp_path, lines):
    folder = model_folder(tmp_path / "m", bos=True)
    settings = sink_study(tmp_path, folder, texts(tmp_path, lines[:2] * 2), bos="replace")
    units = [unit for unit in make_plan(settings).units if unit.stage == "texts"]
    read = [(text.first_equal, int(text.encoded.ids[0])) for unit in units for text in unit.inputs]
    assert [first for first, _ in read] == [0, 1, 0, 1]
    assert len({token for _, token in read}) > 1


def test_a_text_is_of_the_group_that_has_it_first(tmp_path, folder, lines):
    sources = [
        {"path": str(texts(tmp_path / name, rows)), "group": name}
        for name, rows in (
            ("first", lines),
            ("second", lines[:3]),
            ("third", [*lines[3:], "the sea was still"]),
        )
    ]
    settings = sink_study(tmp_path / "runs", folder, "unused").model_copy(update={"texts": []})
    values = {**settings.model_dump(mode="json"), "texts": sources}
    results = run(asc.Study(**values), progress=False)
    frames = exact(results, "frames").set_index("group")["samples"]
    assert frames.to_dict() == {"all": 7, "first": 6, "third": 1}
    heads = exact(results, "sink_heads")
    assert heads.groupby("group")["texts_tested"].max().to_dict() == {"all": 7, "first": 6, "third": 1}
    assert np.isfinite(exact(results, "layer_tests")["p_value"]).all()


def test_tables_without_the_column_are_as_they_are():
    heads = pd.DataFrame({"model": "m", "sample": [0, 1], "protocol": "exact", "entropy": 1.0})
    results = asc.Results({"samples": heads[["model", "sample"]], "heads": heads})
    assert len(drawable(results).table("heads")) == 2


def test_of_equal_texts_the_first_that_is_there_counts():
    """In a shard without the first of them, or in chosen rows, none of them was left."""
    samples = pd.DataFrame({"model": "m", "sample": [5, 3, 4], "text_unit": [0, 0, 4]})
    heads = pd.DataFrame({"model": "m", "sample": [5, 3, 4], "protocol": "exact", "entropy": [1.0, 1.0, 2.0]})
    results = asc.Results({"samples": samples, "heads": heads})
    assert of_distinct_texts(results).table("heads")["sample"].tolist() == [3, 4]
    assert of_distinct_texts(asc.Results({"heads": heads})).table("heads")["sample"].tolist() == [5, 3, 4]


def test_means_of_tables_and_pages_count_equal_texts_once():
    """The command and the page of heads counted each text, where the report counts it once."""
    places = {"model": "m", "revision": "", "step": -1, "layer": 0, "head": 0, "protocol": "exact"}
    heads = pd.DataFrame({**places, "sample": [0, 1, 2, 3], "sink_share": [0.2, 0.8, 0.8, 0.8]})
    samples = heads[["model", "revision", "step", "sample"]].assign(
        text_unit=[0, 1, 1, 1], text=["a", "b", "b", "b"], group="text", n_tokens=4
    )
    results = asc.Results({"samples": samples, "heads": heads})
    assert statistics(results, "heads", ["model"])["sink_share"].tolist() == [0.5]
    assert statistics(results, "heads", ["sample"])["sink_share"].tolist() == [0.2, 0.8, 0.8, 0.8]
    page = contents_of_results(results, 10**6)
    assert np.ravel(page["values"]).tolist() == [pytest.approx(0.5)]
    assert estimate(drawable(results).table("heads"), "sink_share", ["model"])["mean"].tolist() == [0.5]


def test_checkpoints_of_a_page_are_in_the_order_of_the_run():
    places = {"revision": "", "sample": 0, "layer": 0, "head": 0, "protocol": "exact", "sink_share": 0.5}
    heads = pd.DataFrame({"model": ["b", "b", "a"], "step": [9, 1, 5], **places})
    page = contents_of_results(asc.Results({"heads": heads}), 10**6)
    assert page["checkpoints"] == ["b · step 1", "b · step 9", "a · step 5"]


def test_a_comparison_of_runs_takes_equal_texts_as_one():
    """Three copies of one text made its difference three quarters of the mean."""
    samples = pd.DataFrame(
        {"model": "m", "sample": range(4), "text_unit": [0, 1, 0, 0], "text": list("abaa")}
    )

    def run_of(values, *, model="m", units=True):
        rows = {"model": model, "sample": range(4), "layer": 0, "protocol": "exact", "entropy": values}
        listed = samples.assign(model=model)
        return asc.Results(
            {"heads": pd.DataFrame(rows), "samples": listed if units else listed.drop(columns="text_unit")}
        )

    first = run_of([1.0, 5.0, 1.0, 1.0])
    for second in (
        run_of([2.0, 8.0, 2.0, 2.5]),
        run_of([2.0, 8.0, 2.0, 2.5], model="renamed"),
        run_of([2.0, 8.0, 2.0, 2.5], units=False),
    ):
        for left, right in ((first, second), (second, first)):
            row = left.compare(right).set_index("metric").loc["entropy"]
            assert {row["here"], row["there"]} == {3.0, 5.0}
            assert (abs(row["mean_difference"]), row["max_difference"]) == (2.0, 3.0)
            assert (row["rows"], row["finite"]) == (4, 2)
    copy_differs = first.compare(run_of([1.0, 5.0, 1.0, 1.5])).set_index("metric").loc["entropy"]
    assert (copy_differs["mean_difference"], copy_differs["max_difference"]) == (0.0, 0.5)
    assert not copy_differs["equal"]


def test_analyze_names_the_first_of_equal_texts(tmp_path):
    """A report of `analyze` of one text given six times had intervals of six texts."""
    model = tiny("llama")
    ids = [[3, 4, 5, 6], [7, 8, 9], [3, 4, 5, 6], [3, 4, 5, 6], [7, 8, 9, 10], [7, 8, 9]]
    results = asc.analyze(model, ids, ["attention_entropy"])
    assert results["samples"]["text_unit"].tolist() == [0, 1, 0, 0, 4, 1]
    assert results["heads"]["sample"].nunique() == len(results.features().X) == 6
    once = asc.analyze(model, [ids[0], ids[1], ids[4]], ["attention_entropy"])
    often, distinct = (
        statistics(run_results, "heads", ["model", "layer"]) for run_results in (results, once)
    )
    np.testing.assert_allclose(often["entropy"], distinct["entropy"], rtol=1e-6)
    compared = results.compare(results)
    assert (compared["rows"].max(), compared["finite"].max()) == (len(results["heads"]), len(once["heads"]))
    saved = results.save(tmp_path / "saved")
    assert of_distinct_texts(saved).table("heads")["sample"].unique().tolist() == [0, 1, 4]


def test_texts_of_which_another_part_is_measured_are_not_equal():
    model, ids = tiny("llama"), [[3, 4, 5, 6]] * 4

    def units(inputs=ids, metrics="lookback", **options):
        return asc.analyze(model, inputs, metrics, **options)["samples"]["text_unit"].tolist()

    assert units(answer=[(1, 3), (2, 4), (1, 3), (1, 2)]) == [0, 1, 0, 3]
    rows = [[True, True, True, True], [False, True, True, True]]
    assert units(metrics="attention_entropy", queries=[*rows, *rows]) == [0, 1, 0, 1]
    assert units(metrics="attention_entropy", queries=rows[1]) == [0, 0, 0, 0]
    segments = {"input_ids": [[1, 2, 3], [1, 2, 3], [4, 5], [1, 2, 3], [4, 5]]}
    segments["token_type_ids"] = [[0, 0, 1], [0, 0, 1], [0, 1], [0, 1, 1], [0, 1]]
    results = asc.analyze(tiny("bert"), segments, "attention_entropy")
    assert results["samples"]["text_unit"].tolist() == [0, 0, 2, 3, 2]


@pytest.mark.usefixtures("unarranged", "unpictured")
def test_the_sentences_at_the_top_of_a_report_count_equal_texts_once(tmp_path):
    """They counted each text, where the tables below them count it once."""
    places = {"model": "m", "revision": "", "step": -1, "layer": 0, "protocol": "exact", "n_tokens": 4}
    shares = [0.2, 0.1, 0.8, 0.1, 0.8, 0.1]
    heads = pd.DataFrame({**places, "sample": [0, 0, 1, 1, 2, 2], "head": [0, 1] * 3, "sink_share": shares})
    samples = heads[["model", "revision", "step", "sample"]].drop_duplicates()
    samples = samples.assign(text_unit=[0, 1, 1], text=["a", "b", "b"], group="text", n_tokens=4)
    results = asc.Results({"samples": samples, "heads": heads}, study={"study": "attention_sinks"})
    page = asc.report(results, tmp_path / "report.html").read_text("utf-8")
    assert "L0H0, gives it 0.500, uniform" in page
