# SPDX-License-Identifier: MIT
"""What the study of knowing and saying refuses, what it leaves out and says."""

import csv
import json
import unicodedata

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import attnscope as asc
from attnscope.cli.application import app
from attnscope.engine.planning import make_plan
from attnscope.engine.run_study import run
from attnscope.errors import ConfigError
from attnscope.models import LoadError
from folders import model_folder as other_folder
from knowing_study import FAST, letters, model_folder, planned, questions, settings, written
from models import DATA


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": "fact"}, r"no prompt of the bucket 'fact' in column 'bucket'; did you mean 'factual'"),
        ({"others": ["impossible", "odd"]}, "no prompt of the bucket 'odd'"),
        ({"others": ["factual"]}, "expected others besides 'factual'"),
        ({"bucket": "buckets"}, r"options.bucket: no column 'buckets' in q.csv; did you mean 'bucket'"),
        (
            {"dimension_k": [5, 40], "primary_k": 5},
            r"must be below the prompts of each bucket that are compared, 40, got",
        ),
        ({"dimension_k": [10, 5]}, "expected ascending dimension_k"),
        ({"primary_k": 7}, r"expected primary_k among dimension_k \[5, 10\], got 7"),
        ({"least": 60}, r"each bucket needs 60 prompts, got 40 of 'factual', 40 of"),
        ({"prompt": "Say"}, r"expected a text that holds \{question\}, got 'Say'"),
        ({"prompt": "{question} {about}"}, r"nothing but \{question\} is filled in, .*, got \{about\}"),
        (
            {"prompt": "{question} {"},
            r"options.prompt: .* a brace of the text is doubled, got '\{question\} \{'",
        ),
        ({"others": ["unknown", "unknown"]}, r"expected each of others once, got \['unknown', 'unknown'\]"),
        ({"readout_k": [0]}, r"options.readout_k\[0\]: .* greater than or equal to 1, got 0"),
        ({"interventions": {"gains": [float("nan")]}}, r"gains\[0\]: .* finite number, got nan"),
        ({"interventions": {"lambdas": [float("inf")]}}, r"lambdas\[0\]: .* finite number, got inf"),
        ({"nulls": ["covariances"]}, "there is no 'covariances'; did you mean 'covariance'"),
        ({"bucket_by": "outcome", "answers": False}, "bucket_by outcome needs answers"),
        ({"pair": "fold"}, r"options.pair: '0' has"),
        (
            {"pair": "candidates"},
            r"options.pair: 40 of 40 values are in one row each, first '.*' in row \d+",
        ),
        ({"prompt": "{question}"}, None),
        ({"prompt": "Is it so? {question}" + " or not" * 20}, r"has more than 128 tokens and would be cut"),
    ],
)
def test_bad_options(folder, texts, tmp_path, changes, message):
    if message is None:
        planned(folder, texts, tmp_path, **changes)
        return
    with pytest.raises(ConfigError, match=message):
        planned(folder, texts, tmp_path, **changes)


def test_one_bucket_is_refused(folder, tmp_path):
    path = questions(tmp_path / "q.csv", change=lambda row: row if row["bucket"] == "factual" else None)
    with pytest.raises(ConfigError, match=r"no prompt of the bucket 'impossible'.*there are 40 of 'factual'"):
        planned(folder, path, tmp_path)


def test_prompts_that_end_in_other_tokens_are_named(folder, tmp_path):
    def change(row):
        if row["pair"] == "capital-00" and row["bucket"] == "factual":
            row["question"] = row["question"].rstrip("?") + "!"
        return row

    path = questions(tmp_path / "q.csv", change=change)
    ends = {"prompt": "Please: {question}"}
    with pytest.raises(ConfigError, match=r"prompts end in 2 different tokens.*'!'.*allow_endings"):
        planned(folder, path, tmp_path, **ends)
    plan = planned(folder, path, tmp_path, **ends, allow_endings=True)
    assert any(unit.inputs for unit in plan.units)


def test_clouds_of_different_sizes_are_refused(monkeypatch):
    from attnscope.studies.hallucination_geometry import clouds
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions

    table = pd.DataFrame(
        {"sample": range(9), "bucket": ["factual"] * 5 + ["unknown"] * 4, "template": "t", "pair": ""}
    )
    monkeypatch.setattr(clouds, "balanced", lambda table, options, rng: table)
    stage_run = type("R", (), {"rng": lambda self, *key: np.random.default_rng(0)})()
    options = HallucinationOptions(others=["unknown"], dimension_k=[2], primary_k=2)
    with pytest.raises(ValueError, match=r"must have one n, got \{'factual': 5, 'unknown': 4\}"):
        clouds.describe(stage_run, table, 0, torch.randn(9, 3), options)


def test_outcomes_without_any_answer_are_refused(folder, tmp_path):
    path = questions(tmp_path / "q.csv", change=lambda row: {**row, "answer": ""})
    with pytest.raises(ConfigError, match="bucket_by outcome needs answers; the column 'answer' has none"):
        planned(folder, path, tmp_path, bucket_by="outcome")


def test_models_without_blocks_or_a_cache_of_them(texts, tmp_path):
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=100, hidden_size=8, num_hidden_layers=2, state_size=4)
    MambaForCausalLM(config).save_pretrained(tmp_path / "m")
    letters().save_pretrained(tmp_path / "m")
    with pytest.raises(LoadError, match="hallucination_geometry: "):
        run(settings(tmp_path / "m", texts, tmp_path, **FAST), progress=False)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 4)).eval()
    with (
        pytest.raises((ValueError, NotImplementedError, LoadError), match=r"edit|AddDirection|Sequential"),
        asc.edit(plain, asc.edits.AddDirection(0, torch.zeros(4))),
    ):
        plain(torch.ones(1, 4))


def test_equal_prompts_and_empty_questions_are_left_out(folder, tmp_path):
    with questions(tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    again = {**rows[0], "template": "capital again"}
    path = written(tmp_path / "q.csv", [*rows, again, {**rows[0], "question": " ", "pair": "empty"}])
    plan = planned(folder, path, tmp_path)
    assert any("1 duplicate prompts removed" in note for note in plan.notes)
    assert sum(len(unit.inputs) for unit in plan.units if unit.stage == "checks") == 120


def test_a_question_in_two_buckets_is_refused(folder, tmp_path):
    with questions(tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    path = written(tmp_path / "q.csv", [*rows, {**rows[0], "bucket": "unknown"}])
    with pytest.raises(
        ConfigError, match=r"1 are in two, first 'What .*': factual in row \d+, unknown in row \d+"
    ):
        planned(folder, path, tmp_path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_files_of_users_with_columns_by_options(folder, texts, tmp_path, suffix):
    """The prompts of a file are those of one of another format whose columns have other names."""
    names = {"bucket": "kind", "template": "form", "pair": "twosome", "fold": "part", "answer": "gold"}
    table = pd.read_csv(texts, dtype=str, keep_default_na=False).rename(columns=names)
    path = tmp_path / f"q{suffix}"
    if suffix == ".csv":
        table.to_csv(path, index=False)
    elif suffix == ".jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_parquet(path)

    def prompts(plan):
        unit = next(unit for unit in plan.units if unit.stage == "checks")
        return [(text.sentence.text, text.sentence.extra) for text in unit.inputs]

    renamed = prompts(planned(folder, path, tmp_path, **names))
    assert len(renamed) == 120
    assert renamed == prompts(planned(folder, texts, tmp_path))
    assert {extra["answer"] for _, extra in renamed} > {"", "Havana"}


@pytest.mark.slow
def test_files_without_templates_or_pairs(folder, tmp_path):
    """JSON lines; every prompt is a template of its own, answers are lists."""
    with questions(tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    path = tmp_path / "q.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question": row["question"], "bucket": row["bucket"], "answer": [row["answer"], "x"]})
            + "\n"
            for row in rows
        )
    )
    lines = "\n".join(asc_lines(folder, path, tmp_path))
    assert "no column 'template': every prompt counts as a template of its own" in lines
    result = run(settings(folder, path, tmp_path, **FAST), progress=False)
    tests = result.table("contrasts")
    assert tests["p_value"].notna().any()
    assert set(result.table("prompts")["answer"].str.split("|").str[-1]) == {"x"}


def asc_lines(folder, texts, tmp_path, **options):
    from attnscope.study_api.study import study_class

    settings_of_run = settings(folder, texts, tmp_path, **options)
    study = study_class(settings_of_run.study)(settings_of_run)
    return study.describe_plan(make_plan(settings_of_run, study))


def test_unmatched_names_are_left_out_and_counted(folder, tmp_path):
    def longer(row):
        if row["bucket"] == "unknown" and row["pair"].startswith("capital"):
            names = [name + "xx" for name in row["candidates"].split("|")]
            row["question"] = row["question"].replace(row["candidates"].split("|")[0], names[0])
            row["candidates"] = "|".join(names)
        return row

    path = questions(tmp_path / "q.csv", change=longer)
    plan = planned(folder, path, tmp_path)
    assert any(
        "5 prompts about something unknown have no name of as many tokens" in note for note in plan.notes
    )
    unmatched = planned(folder, path, tmp_path, match_tokens=None)
    assert not any("about something unknown" in note for note in unmatched.notes)


def test_the_first_name_of_as_many_tokens_is_taken(folder, tmp_path):
    def change(row):
        if row["bucket"] == "unknown":
            first, *rest = row["candidates"].split("|")
            row["question"] = row["question"].replace(first, first + "zz")
            row["candidates"] = "|".join([first + "zz", *rest])
        return row

    plan = planned(folder, questions(tmp_path / "q.csv", change=change), tmp_path)
    unit = next(unit for unit in plan.units if unit.stage == "checks")
    unknown = [text.sentence for text in unit.inputs if text.sentence.extra["bucket"] == "unknown"]
    assert len(unknown) == 40
    for sentence in unknown:
        second = sentence.extra["candidates"].split("|")[1]
        assert second in sentence.text
        assert second in sentence.extra["question"]


def test_a_dry_run_speaks_before_any_weight_is_read(folder, texts, tmp_path):
    broken = tmp_path / "m"
    model_folder(broken)
    (broken / "model.safetensors").write_bytes(b"not weights")
    call = [
        "run",
        "hallucination_geometry",
        "--model",
        str(broken),
        "--texts",
        str(texts),
        "--column",
        "question",
        "--output",
        str(tmp_path),
        "--set",
        "options.dimension_k=[5,10]",
        "--dry-run",
    ]
    answer = CliRunner().invoke(app, call)
    assert "impossible against factual: length alone AUC 0." in answer.output
    assert "templates crossed with buckets; 40 pairs" in answer.output
    assert "last tokens: 1 (':' 120)" in answer.output
    assert "tokens to generate:" in answer.output
    assert answer.exit_code != 0


@pytest.mark.parametrize("keep_states", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_dry_run_names_the_stages_whose_time_it_cannot_know(folder, tmp_path, keep_states, monkeypatch):
    """Equal prompts are counted, other last tokens listed; nothing is written."""
    monkeypatch.setattr("attnscope.cli.trial_run._SECONDS", 0)  # a few texts are tried
    with questions(tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    again = {**rows[0], "pair": ""}
    other = {**rows[0], "pair": "", "question": rows[0]["question"].replace("?", "!")}
    path = written(tmp_path / "q.csv", [*rows, again, other])
    answer = CliRunner().invoke(
        app,
        [
            "run",
            "hallucination_geometry",
            "--model",
            str(folder),
            "--texts",
            str(path),
            "--column",
            "question",
            "--output",
            str(tmp_path / "runs"),
            "--set",
            "options.dimension_k=[5,10]",
            "--set",
            "options.prompt=So {question}",
            "--set",
            "options.allow_endings=true",
            "--set",
            "options.random_weights=1",
            "--set",
            f"options.keep_states={keep_states}",
            "--no-draw",
            "--dry-run",
        ],
    )
    assert answer.exit_code == 0, answer.output
    assert "1 duplicate prompts removed" in answer.output
    assert "last tokens: 2 ('?' 120, '!' 1)" in answer.output
    assert "the time of what reads earlier tables is not known: clouds, along, interventions" in answer.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_confounded_prompts_are_refused_in_the_report_and_the_figure(folder, tmp_path):
    """In the paper's manner, from the packaged file: facts of few templates, unknown things of many."""
    from attnscope.plots.figure import Options
    from attnscope.studies.hallucination_geometry.figures import FIGURES
    from attnscope.studies.hallucination_geometry.sections import findings

    with questions(tmp_path / "a.csv", pairs=8, slots=12).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["bucket"] != "impossible"]
    few = {"symbol", "play"}
    rows = [row for row in rows if (row["template"] in few) == (row["bucket"] == "factual")]
    confounded = [row for row in rows if row["bucket"] == "factual" or int(row["pair"][-2:]) < 3]
    path = written(tmp_path / "q.csv", [{**row, "pair": ""} for row in confounded])
    results = run(settings(folder, path, tmp_path, others=["unknown"], **FAST), progress=False)
    claims = results.table("claims").set_index("claim")
    assert set(claims["verdict"]) == {"not testable here"}
    assert "alone tells unknown from factual with AUC" in claims.loc["C1 unknown", "reason"]
    first = findings(results)[0]
    assert first.startswith("unknown: ")
    assert first.endswith("no claim about uncertainty can be made from these prompts.")
    page = results.report().read_text("utf-8")
    listed = page.index('class="findings"')
    assert page.index("no claim about uncertainty can be made from these prompts", listed) < page.index(
        "<figure", listed
    )
    drawn = FIGURES["confounds"].draw(results, Options())
    assert drawn.figure.axes[0].get_title().endswith(": no claim")
    assert "with AUC" in drawn.caption
    assert "no claim about uncertainty can be made from these prompts." in drawn.caption
    lines = "\n".join(asc_lines(folder, path, tmp_path, others=["unknown"]))
    assert "templates nested in buckets; 0 pairs" in lines


def test_encoders_are_refused(texts, tmp_path):
    path = other_folder(tmp_path / "bert", "bert", vocab_size=100, max_position_embeddings=128)
    letters().save_pretrained(path)
    with pytest.raises(LoadError, match=r"BertModel has no next token; take a decoder|BertForMaskedLM"):
        run(settings(path, texts, tmp_path, **FAST), progress=False)


def test_encoder_decoders_are_refused_by_name(texts, tmp_path):
    """Their decoder needs tokens of its own, which a study of prompts has not."""
    path = other_folder(tmp_path / "m", "t5")
    with pytest.raises(LoadError, match="t5 has an encoder; hallucination_geometry needs a causal map"):
        run(settings(path, texts, tmp_path / "o", **FAST), progress=False)


def test_an_identity_that_fails_ends_the_checkpoint(folder, texts, tmp_path, monkeypatch):
    from attnscope.studies.hallucination_geometry import checks

    monkeypatch.setattr(checks, "_gap", lambda first, second: 0.5)
    with pytest.raises(LoadError, match=r"identities of edits do not hold: .*state_moved 0\.5 \(at most"):
        run(settings(folder, texts, tmp_path, **FAST), progress=False)


def test_states_that_are_not_finite_leave_their_layer_out(folder, texts, tmp_path, monkeypatch):
    from attnscope.studies.hallucination_geometry import states

    plain = states.last_states

    def broken(run, batch):
        for layer, last in plain(run, batch):
            if layer == 1 and 3 in batch.samples:
                last = last.copy()
                last[list(batch.samples).index(3)] = np.inf
            yield layer, last

    monkeypatch.setattr(states, "last_states", broken)
    results = run(settings(folder, texts, tmp_path, **FAST), progress=False)
    assert set(results.table("contrasts")["layer"]) == {-1, 0}
    assert any("layer 1: 1 states are not finite" in note for note in results.provenance["notes"])


def test_a_layer_in_which_all_states_are_equal_has_no_directions(texts, tmp_path):
    """The first block adds nothing of earlier tokens: prompts end alike, and so do its states."""
    path = model_folder(tmp_path / "m")
    file = path / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.0.self_attn.o_proj.weight"].zero_()
    save_file(weights, file, metadata={"format": "pt"})
    options = {**FAST, "sensitivity": {"prompts": 2, "directions": 3, "refusal": ["u", "n"]}}
    results = run(settings(path, texts, tmp_path, **options), progress=False)
    readout = results.table("readout")
    assert set(readout["layer"]) == {1}
    assert set(results.table("sensitivity")["layer"]) == {1}


def test_outcomes_need_enough_of_either(folder, texts, tmp_path):
    with pytest.raises(
        ConfigError, match=r"outcome needs 20 prompts answered right and wrong.*got \{'right': 0"
    ):
        run(
            settings(folder, texts, tmp_path, bucket_by="outcome", **{**FAST, "answers": {"tokens": 2}}),
            progress=False,
        )


def test_windows_are_refused(folder, texts, tmp_path):
    with pytest.raises(ConfigError, match="asks questions; a window is none"):
        make_plan(
            asc.Study(
                study="hallucination_geometry",
                models=str(folder),
                max_tokens=16,
                output=str(tmp_path),
                texts={"path": str(texts), "column": "question", "per": "window"},
            )
        )


def test_refusals_and_answers_are_judged_by_their_first_line():
    from attnscope.studies.hallucination_geometry.answers import correct, loops, refused
    from attnscope.studies.hallucination_geometry.direction_sensitivity import refusal_ids

    assert refused(" I don't know. It may be Paris.")
    assert refused("There is no such play.")
    assert not refused("Paris. I am not sure of it.")
    assert correct("It is PARIS!", "Lyon|Paris")
    assert not correct("Unclear\nParis", "Paris")
    assert not correct("Fe", "F")
    assert loops("a b c a b c a b c")
    assert not loops("a b c a b c")
    tokenizer = letters()
    assert refusal_ids(tokenizer, "Answer:", ["unsure", "no"]) == sorted(
        tokenizer.convert_tokens_to_ids(["u", "n"])
    )
    for words in ([" unsure"], ["unsure", " unsure"], [""], ["é"]):
        with pytest.raises(ValueError, match=r"refusal: expected words whose first token is more than white"):
            refusal_ids(tokenizer, "Answer:", words)
    with pytest.raises(ValueError, match=r"got pieces \{' no': \[' ', 'n', 'o'\]\}"):
        refusal_ids(tokenizer, "Answer:", ["unsure", " no"])


@pytest.mark.parametrize(
    ("text", "aliases", "right"),
    [
        (unicodedata.normalize("NFD", "It is S\u00e3o Paulo."), "S\u00e3o Paulo", True),
        ("It is S\u00e3o Paulo.", unicodedata.normalize("NFD", "s\u00e3o paulo"), True),
        (unicodedata.normalize("NFD", "Jos\u00e9"), "Jose", False),
        ("It is the C\u00f4te d\u2019Ivoire.", "C\u00f4te d'Ivoire", True),
        ("\u5b83\u662f\u5df4\u9ece\u3002", "\u5df4\u9ece", True),  # Chinese: it is Paris
        (
            "\u0e21\u0e31\u0e19\u0e04\u0e37\u0e2d\u0e1b\u0e32\u0e23\u0e35\u0e2a",
            "\u0e1b\u0e32\u0e23\u0e35\u0e2a",
            True,
        ),
        ("\u0930\u093e\u092e\u093e", "\u0930\u093e\u092e", False),  # Hindi: Rama, whose first letters are Ram
        ("It is 12.5 km.", "12", False),
        ("It is 1,000.", "1", False),
        ("In 12, I think.", "12", True),
        ("It is France's.", "France", True),
        ("Parisian", "Paris", False),
        ("no", " | ", False),
    ],
)
def test_an_answer_is_right_however_its_words_are_written(text, aliases, right):
    from attnscope.studies.hallucination_geometry.answers import correct

    assert correct(text, aliases) is right


def test_refusals_count_with_either_apostrophe():
    from attnscope.studies.hallucination_geometry.answers import refused

    assert [refused(f"I {word} tell.") for word in ("don't", "can\u2019t", "couldn\u02bct")] == [True] * 3


def test_words_of_questions_are_those_of_their_script():
    from attnscope.studies.hallucination_geometry.questions import bag_of_words

    def alike(first, second):
        return np.array_equal(*bag_of_words([first, second]))

    accented = "O\u00f9 est l\u2019\u00e9t\u00e9 ?"
    assert alike(accented, unicodedata.normalize("NFD", accented.replace("\u2019", "'")))
    # of two Chinese questions (who is he, who is she) all letters but one are the same
    assert bag_of_words(["\u4ed6\u662f\u8c01", "\u5979\u662f\u8c01"]).sum(0).tolist() == [1, 1, 2, 2]
    assert bag_of_words(["\u0930\u093e\u092e\u093e"]).shape == (1, 1)  # one word of Hindi, vowels and all


def test_answers_that_are_right_make_buckets(texts):
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions
    from attnscope.studies.hallucination_geometry.study import by_outcome

    class Run:
        def read(self, name, columns):
            return pd.DataFrame({"sample": range(80), "correct": [at % 2 == 0 for at in range(80)]})

    table = pd.DataFrame(
        {
            "sample": range(80),
            "template": [f"t{at // 20}" for at in range(80)],
            "answer": "x",
            "bucket": "factual",
            "pair": "",
        }
    )
    judged = by_outcome(table, Run(), HallucinationOptions(bucket_by="outcome"))
    assert judged["bucket"].value_counts().to_dict() == {"right": 40, "wrong": 40}


@pytest.mark.parametrize("name", ["stories260K", "llama2xs"])
def test_a_word_behind_a_prompt_begins_with_what_the_model_would_write(name):
    """By itself a word of SentencePiece begins with a bare space, which no refusal could be told by."""
    from transformers import AutoTokenizer

    from attnscope.studies.hallucination_geometry.direction_sensitivity import first_token, refusal_ids
    from attnscope.studies.hallucination_geometry.options import SensitivityOptions

    folder = DATA / name / "hf"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    without_prompt = tokenizer(" unsure", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(without_prompt[:1]).strip() == ""
    prompt = "Question: Where is it?\nAnswer:"
    longer = tokenizer(f"{prompt} unsure")["input_ids"]
    expected = longer[len(tokenizer(prompt)["input_ids"])]
    assert tokenizer.convert_ids_to_tokens([expected]) == ["▁u"]
    assert first_token(tokenizer, prompt, " unsure") == expected
    assert refusal_ids(tokenizer, prompt, SensitivityOptions().refusal) == [expected]


def test_a_name_that_other_questions_have_is_no_invented_one(folder, tmp_path):
    """The candidates that would fit are a subject of other questions, and the name of another prompt."""

    def change(row):
        first, second, third, *_ = [*row["candidates"].split("|"), "", ""]
        if row["bucket"] == "unknown" and row["pair"] == "capital-00":
            assert (second, third) == ("Falm", "Pold")
            row["question"] = row["question"].replace(first, first + "zz")
            row["candidates"] = "|".join([first + "zz", "Iran", second, third])
        if row["bucket"] == "unknown" and row["pair"] == "capital-01":
            row["question"] = row["question"].replace(first, "Falm")
            row["candidates"] = "Falm"
        return row

    plan = planned(folder, questions(tmp_path / "q.csv", change=change), tmp_path)
    unit = next(unit for unit in plan.units if unit.stage == "checks")
    unknown = [text.sentence for text in unit.inputs if text.sentence.extra["bucket"] == "unknown"]
    names = {row.extra["pair"]: row.extra["question"] for row in unknown}
    assert names["capital-00"] == "What is the capital of Pold?"
    assert names["capital-01"] == "What is the capital of Falm?"
    assert len({row.text for row in unknown}) == len(unknown) == 40


def test_a_candidate_that_the_question_does_not_have_is_refused(folder, tmp_path):
    def change(row):
        if row["bucket"] == "unknown" and row["pair"] == "capital-00":
            row["candidates"] = "Nowhere|Else"
        return row

    path = questions(tmp_path / "q.csv", change=change)
    with pytest.raises(ConfigError, match=r"which row \d+ has not: 'Nowhere' in 'What is the capital"):
        planned(folder, path, tmp_path)
