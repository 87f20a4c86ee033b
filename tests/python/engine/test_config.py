# SPDX-License-Identifier: MIT
"""One configuration in YAML, on the command line and in Python; mistakes are answered with the right name."""

import json
import math
import re
import shutil

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from attnscope.config.config_files import read_config, set_key
from attnscope.config.packaged_configs import packaged
from attnscope.config.run_config import RunConfig, parse_bytes
from attnscope.config.study_folders import default_study
from attnscope.engine.planning import make_plan
from attnscope.engine.run_folder import default_name
from attnscope.errors import ConfigError, DocumentError
from attnscope.study_api.study import study_class
from attnscope.untrusted.documents import dump_yaml, parse_yaml


def test_yaml_command_line_and_python_give_the_same_study(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("models: [gpt2]\ntexts: {path: a.csv, column: text, samples: 5}\nblock: 8\n", "utf-8")
    from_file = RunConfig.from_yaml(file)
    in_python = RunConfig(models="gpt2", texts={"path": "a.csv", "column": "text", "samples": 5}, block=8)
    from_line = RunConfig.from_yaml(
        "attention_sinks",
        models=[{"path": "gpt2"}],
        texts=[{"path": "a.csv", "column": "text"}],
        overrides=["texts.samples=5", "block=8"],
    )
    assert from_file == in_python == from_line


def test_the_resolved_yaml_is_the_study():
    study = RunConfig(
        models=["a", {"path": "b", "revisions": ["step1", "step10"]}], texts="t.txt", protocols="both"
    )
    assert RunConfig(**yaml.safe_load(study.to_yaml())) == study
    assert study.protocols == ["exact", "ruscio2025"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blok": 3}, r"unknown key 'blok'; did you mean 'block'\?"),
        (
            {"models": [{"path": "a", "revision": "x"}]},
            r"unknown key 'revision' in models\[0\]; did you mean 'revisions'",
        ),
        (
            {"texts": [{"path": "a", "sample": 2}]},
            r"unknown key 'sample' in texts\[0\]; did you mean 'samples'",
        ),
        ({"block": "ten"}, r"block: .*integer.*got 'ten'"),
        ({"block": 0}, r"block: .*greater than or equal to 1, got 0"),
        ({"texts": [{"path": "a", "samples": 0}]}, r"texts\[0\]\.samples: .*got 0"),
        ({"thresholds": [0.1, 1.5]}, r"thresholds\[1\]: expected thresholds inside \(0, 1\), got 1\.5"),
        ({"thresholds": ["0/n"]}, r"thresholds\[0\]: .*'2/n', got '0/n'"),
        ({"protocols": ["exakt"]}, r"protocols\[0\]: .* follows exact, ruscio2025, got 'exakt'; .*'exact'"),
        ({"threshold": [0.1]}, r"unknown key 'threshold'; did you mean 'thresholds'"),
        ({"study": "wavelet_heads", "bars": True}, r"unknown key 'bars'"),
        ({"study": "wavelet_heads", "detrend": "line"}, r"options\.detrend: .*got 'line'"),
        ({"max_memory": "lots"}, r"max_memory: expected an amount such as 4GB, got 'lots'"),
        ({"max_disk": "0GB"}, r"max_disk: expected an amount such as 4GB, got '0GB'"),
        ({"models": []}, r"models: .*at least 1 item"),
        ({"name": "../up"}, r"name: .*got '\.\./up'"),
        ({"seed": -1}, r"seed: .*got -1"),
    ],
)
def test_mistakes_are_explained(change, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig(**{"models": "gpt2", "texts": "a.txt", **change})


def test_thresholds_may_have_an_exponent_without_a_point(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("models: gpt2\nthresholds: [1e-3, .05, '0.1', 2E-1, 2/n]\n", "utf-8")
    assert RunConfig.from_yaml(file).options["thresholds"] == [0.001, 0.05, 0.1, 0.2, "2/n"]
    data = {"models": "gpt2"}
    set_key(data, "thresholds=1e-3")
    assert RunConfig(**data).options["thresholds"] == [0.001]
    for text, words in (("1e400", "finite number, got inf"), ("1e-3x", "got '1e-3x'"), ("-1e-3", "'-1e-3'")):
        with pytest.raises(ConfigError, match=re.escape(words)):
            RunConfig(models="gpt2", thresholds=[text])


@pytest.mark.parametrize("options", [3, [1], "bars", {"a"}])
def test_options_that_are_no_mapping_are_named_alone(options):
    words = re.escape(f"options: expected keys and values, got {options!r}")
    with pytest.raises(ConfigError, match=f"^{words}$"):
        RunConfig(models="gpt2", options=options, thresholds=[0.5])


def test_a_study_that_is_not_installed_is_named_and_not_the_keys_of_its_options(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("study: wavelet_head\nmodels: gpt2\nsignal: last\n", "utf-8")
    with pytest.raises(ConfigError, match="there is no study 'wavelet_head'; did you mean 'wavelet_heads'"):
        RunConfig.from_yaml(file)


@pytest.mark.parametrize("study", [3, None, True, ["wavelet_heads"], {"name": "wavelet_heads"}])
def test_a_study_that_is_no_name_is_named_and_not_the_keys_of_its_options(study):
    with pytest.raises(
        ConfigError, match=f"^study: expected the name of a study, got {re.escape(repr(study))}$"
    ):
        RunConfig(models="gpt2", study=study, signal="last")


def test_keys_of_the_study_go_to_its_options(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("models: [gpt2]\nthresholds: [0.5]\noptions: {bars: false}\n", "utf-8")
    short = RunConfig.from_yaml(file, overrides=["bars=true"])
    long = RunConfig(models="gpt2", options={"thresholds": [0.5], "bars": True})
    assert short == long
    assert "bars" not in RunConfig.model_fields
    assert RunConfig(study="wavelet_heads", models="a", signal="last").options["signal"] == "last"


def test_settings_that_name_no_study_mean_the_default():
    configs = RunConfig(models="a"), RunConfig(study=default_study(), models="a")
    assert {config.study for config in configs} == {default_study()}


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match="models is missing"):
        RunConfig(texts="a.txt")


def test_files_that_are_no_study_are_refused_in_words(tmp_path):
    broken, other, listed = tmp_path / "broken.yaml", tmp_path / "latin.yaml", tmp_path / "list.yaml"
    twice = tmp_path / "twice.yaml"
    twice.write_text("models: a\nblock: 4\ntexts: b\nblock: 16\n", "utf-8")
    broken.write_text("models: [a\ntexts: b", "utf-8")
    other.write_bytes("name: caf\xe9".encode("latin-1"))
    listed.write_text("- a\n- b\n", "utf-8")
    for path, message in (
        (broken, "cannot be read: not valid YAML: .*line"),
        (other, "cannot be read: not UTF-8 text"),
        (listed, "expected keys and values, got a list"),
        (twice, "cannot be read: the key 'block' is written twice, again in line 4"),
        (tmp_path / "nowhere.yaml", "there is no file"),
        (tmp_path, "is a folder, no study"),
        ("attention_sinsk", "did you mean 'attention_sinks'"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_config(path)


def test_yaml_cannot_run_code(tmp_path):
    file = tmp_path / "evil.yaml"
    file.write_text("models: !!python/object/apply:os.system ['true']\n", "utf-8")
    with pytest.raises(ConfigError, match="not valid YAML"):
        RunConfig.from_yaml(file)


@pytest.mark.parametrize("name", packaged())
def test_packaged_studies_can_be_done(name):
    study = RunConfig.from_yaml(name, models="gpt2")
    assert study_class(study.study)(study).name == study.study


def test_an_unknown_study_or_metric_is_refused():
    with pytest.raises(ConfigError, match="no study 'attention_sink'; did you mean 'attention_sinks'"):
        make_plan(RunConfig(study="attention_sink", models="a", texts="b"))
    with pytest.raises(ConfigError, match="there is no 'fiedler'; did you mean 'fiedler_value'"):
        RunConfig(models="a", texts="b", metrics="fiedler")


def test_an_unknown_study_is_refused_with_its_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("study: attention_sink\nmodels: a\ntexts: b\n", "utf-8")
    with pytest.raises(ConfigError, match=r"mine\.yaml: study: there is no study 'attention_sink'; did you"):
        RunConfig.from_yaml(file)


@pytest.mark.parametrize(
    ("study", "options"),
    [
        ("absolute_position", {"least_moved": math.inf}),
        ("attention_likelihood", {"least_nats": math.inf}),
        ("hallucination_geometry", {"interventions": {"temperature": math.inf}}),
        ("pretraining_writes", {"rank_one": {"size": math.inf}}),
        ("pretraining_writes", {"band": [0.8, math.inf]}),
        ("wavelet_heads", {"window": math.inf}),
    ],
)
def test_a_number_of_options_is_finite(study, options):
    with pytest.raises(ConfigError, match="finite number, got inf"):
        RunConfig(study=study, models="a", texts="b", options=options)


def test_a_protocol_that_a_study_cannot_follow_is_refused(monkeypatch):
    from attnscope.studies.attention_sinks.study import SinkStudy

    assert RunConfig(models="a", texts="b", protocols="both").protocols == ["exact", "ruscio2025"]
    monkeypatch.setattr(SinkStudy, "protocols", ("exact",))
    assert RunConfig(models="a", texts="b", protocols="both").protocols == ["exact"]
    with pytest.raises(ConfigError, match=r"protocols\[1\]: attention_sinks follows exact, got 'ruscio2025'"):
        RunConfig(models="a", texts="b", protocols=["exact", "ruscio2025"])


def test_extra_analyses_are_named_or_all():
    def extra(value):
        return RunConfig(models="a", texts="b", options={"extra": value}).options["extra"]

    assert RunConfig(models="a", texts="b").options["extra"] == []
    analyses = ["fisher", "ablation", "random_weights", "row_permutation", "examples"]
    assert extra("all") == extra(["all"]) == analyses
    assert extra("ablation") == extra(["ablation"]) == ["ablation"]
    assert extra(["row_permutation", "fisher"]) == ["fisher", "row_permutation"]
    with pytest.raises(ConfigError, match=r"options\.extra: there is no 'fischer'; did you mean 'fisher'"):
        extra(["fischer"])
    with pytest.raises(ConfigError, match="unknown key 'extras' in options; did you mean 'extra'"):
        RunConfig(models="a", texts="b", options={"extras": "all"})


def test_set_key_reaches_every_place():
    data = {"models": "gpt2", "texts": [{"path": "a"}, {"path": "b"}]}
    values = ("block=8", "models.dtype=bfloat16", "texts.1.samples=3", "thresholds=[0.1, 2/n]", "name=${a}")
    for assignment in (*values, "models[0].label=small", "workers.cpus=2", "options.extra=[fisher]"):
        set_key(data, assignment)
    study = RunConfig(**data)
    assert (study.block, study.name, study.workers.cpus) == (8, "${a}", 2)
    assert (study.models[0].dtype, study.models[0].label) == ("bfloat16", "small")
    assert study.options["extra"] == ["fisher"]
    assert study.options["thresholds"] == [0.1, "2/n"]
    assert [text.samples for text in study.texts] == [None, 3]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("block", "expected key=value, got 'block'"),
        ("=3", "expected key=value"),
        ("texts.5.samples=1", "'texts.5.samples' cannot be 1: list index out of range"),
        ("texts[5].samples=1", "list index out of range"),
        ("name=${a", r"'name' cannot be '\$\{a'"),
        ("block=[1", "is not valid YAML"),
        ("models.dtype=x", "'models.dtype': there are no models"),
    ],
)
def test_set_key_says_what_is_wrong(assignment, message):
    with pytest.raises(ConfigError, match=message):
        set_key({"texts": ["a"]}, assignment)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("block.size=1", r"block: .*integer, got \{'size': 1\}"),
        ("texts.0.a.b=1", r"unknown key 'a' in texts\[0\]"),
        ("workers.gpu=1", r"unknown key 'gpu' in workers; did you mean 'gpus'"),
    ],
)
def test_a_path_to_no_key_is_named(assignment, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_yaml("attention_sinks", models="gpt2", texts="a.txt", overrides=[assignment])


def test_a_set_value_replaces_what_was_there():
    data = {"options": {"a": {"b": 1}, "c": 2}}
    set_key(data, "options.a={d: 3}")
    assert data == {"options": {"a": {"d": 3}, "c": 2}}


@given(st.integers(1, 2**50))
def test_a_number_of_bytes_is_itself(count):
    assert parse_bytes(count) == parse_bytes(str(count)) == parse_bytes(f"{count}B") == count


def test_units_of_memory_are_powers_of_1024():
    assert [parse_bytes(text) for text in ("1k", "1 MB", "2GiB", "0.5g")] == [
        1024,
        1024**2,
        2 * 1024**3,
        2**29,
    ]
    for wrong in ("", "-1GB", "0", "4XB", "nan"):
        with pytest.raises(ValueError, match="expected an amount"):
            parse_bytes(wrong)


HOSTILE_NAMES = {
    "line": "a\nb",
    "return": "a\rb",
    "tab": "m\ntouch\tPWNED\n#",
    "escape": "\x1b[31mred",
    "NUL": "a\0b",
    "override": "\u202eabc",
    "isolate": "a\u2066b",
    "mark": "a\u200fb",
    "separator": "a\u2028b",
    "surrogate": "a\ud800",
    "delete": "a\x7f",
    "next line": "a\x85b",
    "long": "x" * 201,
}


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
@pytest.mark.parametrize("key", ["label", "group", "name"])
def test_labels_groups_and_names_follow_one_rule(key, name):
    values = {"models": {"path": "gpt2"}, "texts": {"path": "a.txt"}}
    target = {"label": values["models"], "group": values["texts"], "name": values}[key]
    target[key] = name
    with pytest.raises(ConfigError) as caught:
        RunConfig(**values)
    assert key in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 250
    target[key] = "Größe 中文 \N{WOMAN}\N{ZERO WIDTH JOINER}\N{MICROSCOPE}"
    RunConfig(**values)


@pytest.mark.parametrize(
    "key",
    ["models.path", "models.tokenizer", "models.revisions", "texts.path", "texts.encoding", "output", "bos"],
)
def test_nul_anywhere_in_a_study_is_a_line(tmp_path, call, key):
    file = tmp_path / "study.yaml"
    outer, _, inner = key.partition(".")
    values = {"models": {"path": "gpt2"}, "texts": {"path": "a.txt"}}
    if inner:
        values[outer][inner] = ["a\0b"] if inner == "revisions" else "a\0b"
    else:
        values[outer] = "a\0b"
    file.write_text(yaml.safe_dump(values), "utf-8")
    code, _, err = call("run", file)
    assert code == 2
    assert "U+0000" in err
    assert len(err.splitlines()) == 1


NO_TEXTS = {"high half": "\ud800", "low half": "\udc80", "both halves": "\ud800\udc00", "nul": "a\0b"}


@pytest.mark.parametrize("key", NO_TEXTS.values(), ids=NO_TEXTS)
@pytest.mark.parametrize("place", [(), ("models",), ("texts", 0), ("options",), ("workers",)], ids=str)
def test_a_key_that_is_no_text_is_a_line(tmp_path, place, key):
    """Escapes of JSON, which YAML reads as well, are one by one halves of a character."""
    file = tmp_path / "study.yaml"
    values = {"models": {"path": "gpt2"}, "texts": [{"path": "a.txt"}], "options": {}, "workers": {}}
    target = values
    for name in place:
        target = target[name]
    target[key] = []
    file.write_text(json.dumps(values), "utf-8")
    with pytest.raises(ConfigError, match=r"key that holds") as caught:
        RunConfig.from_yaml(file)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).isprintable()


def test_the_name_of_a_models_folder_follows_the_rule_too(tmp_path, llama, texts):
    folder = tmp_path / "a\ntouch PWNED"
    shutil.copytree(llama, folder)
    with pytest.raises(
        ConfigError, match=r"models\[0\]: its name in tables holds the character U\+000A.* label"
    ):
        make_plan(RunConfig(models=str(folder), texts=str(texts)))
    labelled = RunConfig(models={"path": str(folder), "label": "a"}, texts=str(texts))
    assert default_name(labelled) == "attention_sinks-a"
    longest = [{"path": str(folder), "label": f"{place}" + "ü" * 199} for place in range(3)]
    name = default_name(RunConfig(models=longest, texts=str(texts)))
    assert len(name.encode()) <= 200
    assert name == default_name(RunConfig(models=longest, texts=str(texts)))


@pytest.mark.parametrize("value", ["!!int ", "!!bool x", "!!timestamp x", "!!float ", "!!int x", "!!omap 3"])
def test_a_value_that_its_own_tag_does_not_fit_is_a_damaged_file(value, tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(f"seed: {value}\n", "utf-8")
    with pytest.raises(ConfigError, match="not valid YAML"):
        RunConfig.from_yaml(file)


@pytest.mark.parametrize("key", ["\x1f", "\u202e", "a\nb", "\x9b31m"])
def test_a_key_around_a_fault_is_shown_without_its_control_characters(key):
    with pytest.raises(ConfigError, match="half of a surrogate pair") as refused:
        RunConfig(models="a", texts="b", options={key: {"\ud800": 1}})
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"seed": True}, "seed"),
        ({"block": True}, "block"),
        ({"layers": [True, 1]}, "layers"),
        ({"texts": [{"path": "a", "samples": True}]}, r"texts\[0\]\.samples"),
        ({"workers": {"gpus": True}}, r"workers\.gpus"),
        ({"thresholds": [True, 0.5]}, "thresholds"),
    ],
)
def test_a_truth_value_is_no_number(change, place):
    """YAML's yes and true became 1."""
    with pytest.raises(ConfigError, match=rf"{place}: expected numbers, not a truth value, got "):
        RunConfig(**{"models": "a", "texts": "b", **change})


@pytest.mark.parametrize(
    ("written", "read"),
    [("0100", "0100"), ("1_000", "1_000"), ("12:30:45", "12:30:45"), ("0x1F", "0x1F"), ("1000", "1000")],
)
def test_a_revision_is_what_is_written(tmp_path, written, read):
    """YAML 1.1 counts in eights and sixties: 0100 was the revision 64."""
    file = tmp_path / "study.yaml"
    file.write_text(f"models: {{path: a, revisions: [{written}]}}\ntexts: b\nseed: -0\nblock: +7\n", "utf-8")
    settings = RunConfig.from_yaml(file)
    assert (settings.models[0].revisions, settings.seed, settings.block) == ([read], 0, 7)
    assert RunConfig.from_yaml("attention_sinks", overrides=["models=a", f"models.revisions=[{written}]"])
    file.write_text(settings.to_yaml(), "utf-8")
    assert RunConfig.from_yaml(file) == settings


def test_a_word_of_yaml_for_a_truth_value_is_no_revision():
    with pytest.raises(ConfigError, match=r"revisions\[0\]: .*valid string, got True"):
        RunConfig(models={"path": "a", "revisions": [True]}, texts="b")


def test_an_amount_that_no_number_holds_is_refused():
    with pytest.raises(ConfigError, match=r"max_memory: expected an amount such as 4GB, got '9{70,}"):
        RunConfig(models="a", texts="b", max_memory="9" * 400 + "GB")


def test_a_number_of_yaml_may_have_an_exponent(tmp_path):
    """YAML 1.1, and PyYAML with it, wants a point before an exponent and a sign behind it."""
    file = tmp_path / "study.yaml"
    keys = "block: 1e1\nmax_memory: 4e9\nseed: 2E3\nlayers: [1e0]\nthresholds: %s\n"
    file.write_text(f"models: a\ntexts: {{path: b, samples: 1.5e1}}\n{keys % '2e-1'}", "utf-8")
    settings = RunConfig.from_yaml(file, overrides=["max_tokens=1e2"])
    assert (settings.block, settings.max_memory, settings.seed, settings.layers) == (10, 4 * 10**9, 2000, [1])
    assert (settings.texts[0].samples, settings.max_tokens, settings.options["thresholds"]) == (
        15,
        100,
        [0.2],
    )
    with pytest.raises(ConfigError, match=r"block: .* valid integer, got a number with a fractional part"):
        RunConfig.from_yaml(file, overrides=["block=15e-1"])


@pytest.mark.parametrize(
    "text", ["1e3", "7E-5", "1.5e3", "0012e4", "1:30.5", "1_0.5", "a\x85b", "a\u2028 b", "a\rb"]
)
def test_a_text_is_read_from_a_run_folder_as_it_was_written(tmp_path, text):
    """Quotes tell a column called 1e3 from a number; the end of a line that PyYAML knows is an escape."""
    file = tmp_path / "study.yaml"
    settings = RunConfig(models="a", texts={"path": f"{text}.csv", "column": text, "encoding": text})
    file.write_bytes(settings.to_yaml().encode())
    assert RunConfig.from_yaml(file) == settings
    assert parse_yaml(dump_yaml([text, {text: text}])) == [text, {text: text}]


@pytest.mark.parametrize("letter", ["\u05c8", "\u2028", "\U000e0fff"])
def test_a_fault_of_yaml_is_a_line_of_letters_that_can_be_seen(letter):
    """Errors of PyYAML quote the line, with letters that Unicode has not."""
    with pytest.raises(DocumentError) as caught:
        parse_yaml(f'{letter}{{"study": "attention_sinks", "name": "a"}}, b')
    assert str(caught.value).isprintable()


def test_a_line_that_pyyaml_would_end_inside_of_a_text_is_refused(tmp_path):
    """The column "a\x85b" was read as "a b"."""
    file = tmp_path / "study.yaml"
    file.write_text("models: a\ntexts: {path: b, column: 'a\x85b'}\n", "utf-8")
    with pytest.raises(ConfigError, match=r"line 2 holds the character U\+0085; write \\N for it"):
        RunConfig.from_yaml(file)
    file.write_text('models: a\ntexts: {path: b, column: "a\\Nb"}\n', "utf-8")
    assert RunConfig.from_yaml(file).texts[0].column == "a\x85b"
