# SPDX-License-Identifier: MIT
"""Files of unknown origin: nothing in them runs, and what cannot be read is refused in words."""

import contextlib
import json
import os
import pickle
import struct
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import attnscope as asc
from attnscope.config.run_config import RunConfig, TextSource
from attnscope.engine.executors.shards import run_shard
from attnscope.errors import ConfigError, ResultsError
from attnscope.models import LoadError, find_checkpoints, load_model
from attnscope.models.loading import load_config, load_tokenizer
from attnscope.models.tokens import Encoder
from attnscope.texts.sources import read_sentences
from browser import dom, in_a_browser
from folders import WORDS, model_folder, sentences, tokenizer

EVIL = "<script>document.title='broken'</script>"


def read(path, **options):
    return read_sentences([TextSource(path=str(path), **options)])


class Trap:
    """A pickle that touches a file when it is loaded."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (os.mkdir, (self.marker,))


@pytest.fixture
def model(tmp_path):
    return model_folder(tmp_path / "tiny")


def study(tmp_path, model, texts, **options):
    options = {"metrics": ["fiedler_value"], "name": "a", "models": str(model), **options}
    return RunConfig(texts=str(texts), output=str(tmp_path / "runs"), **options)


# --- model folders


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.bin", "model.pt"])
def test_pickled_weights_are_never_opened(tmp_path, model, file):
    marker = tmp_path / "opened"
    (model / "model.safetensors").unlink()
    (model / file).write_bytes(pickle.dumps(Trap(marker)))
    torch.save({"lm_head.weight": Trap(marker)}, model / "pytorch_model.bin")
    with pytest.raises(LoadError, match="safetensors"):
        load_model(find_checkpoints(str(model))[0])
    assert not marker.exists()


def test_a_pickle_under_the_name_of_safetensors_is_refused(tmp_path, model):
    marker = tmp_path / "opened"
    (model / "model.safetensors").write_bytes(pickle.dumps(Trap(marker)))
    with pytest.raises(LoadError, match="tiny"):
        load_model(find_checkpoints(str(model))[0])
    assert not marker.exists()


def with_code(model, marker):
    """A folder whose configuration, tokenizer and model come with Python files."""
    code = f"import os\nos.makedirs({str(marker)!r}, exist_ok=True)\n"
    code += "from transformers import PretrainedConfig\n"
    code += "class Own(PretrainedConfig):\n    model_type = 'own'\n"
    (model / "own.py").write_text(code, "utf-8")
    config = json.loads((model / "config.json").read_text("utf-8"))
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (model / "config.json").write_text(json.dumps(config), "utf-8")


def test_code_in_a_model_folder_does_not_run(tmp_path, model):
    marker = tmp_path / "ran"
    with_code(model, marker)
    checkpoint = find_checkpoints(str(model))[0]
    for load in (load_config, load_model):
        with pytest.raises(LoadError, match="trust_remote_code"):
            load(checkpoint)
    with pytest.raises(LoadError, match="trust_remote_code"):
        asc.run(study(tmp_path, model, sentences(tmp_path / "texts.txt", 2)), progress=False)
    assert not marker.exists()


def test_code_runs_after_the_explicit_flag_alone(tmp_path, model, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    marker = tmp_path / "ran"
    with_code(model, marker)
    assert load_config(find_checkpoints(str(model))[0], trust_remote_code=True).model_type == "own"
    assert marker.exists()


@pytest.fixture
def trusting(tmp_path, model, monkeypatch):
    """The folder of a finished run whose stored study trusts the code that came with its model meanwhile."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    texts = sentences(tmp_path / "texts.txt", 2)
    trusted = {"path": str(model), "trust_remote_code": True}
    run_shard(study(tmp_path, model, texts, models=trusted, name="shards"), "1/1", progress=False)
    folder = asc.run(study(tmp_path, model, texts, models=trusted), progress=False).path
    with_code(model, tmp_path / "ran")
    return folder


@pytest.mark.parametrize("command", ["view", "resume", "gather"])
def test_consent_that_is_stored_in_a_folder_is_none(tmp_path, trusting, call, command):
    folder = trusting.parent / "shards" if command == "gather" else trusting
    status, out, err = call(command, folder)
    assert not (tmp_path / "ran").exists()
    assert "a stored setting is no consent" in err
    assert "--trust-remote-code" in err
    assert status == (0 if command == "view" else 2)
    assert "Traceback" not in out + err
    # with consent the code does run: the test would see it
    call(command, folder, "--trust-remote-code")
    assert (tmp_path / "ran").exists()


def test_functions_ask_for_consent_too(tmp_path, trusting):
    results = asc.load(trusting)
    with pytest.raises(ConfigError, match="resume: the stored study runs Python code that comes with"):
        asc.resume(trusting, progress=False)
    with pytest.raises(ResultsError, match="view: the stored study runs Python code that comes with"):
        asc.view(results, sample=0)
    assert asc.view(results).contents["maps"] == []
    with pytest.raises(ValueError, match="trust_remote_code does not go with tensors"):
        asc.view(torch.eye(4), trust_remote_code=True)
    results.report(tmp_path / "report.html", drawn={})
    assert not (tmp_path / "ran").exists()


def test_a_study_that_trusts_no_code_needs_no_consent(tmp_path, model):
    results = asc.run(study(tmp_path, model, sentences(tmp_path / "texts.txt", 2)), progress=False)
    assert len(asc.resume(results.path, progress=False).table("heads")) == 2 * 2 * 4
    assert len(asc.view(asc.load(results.path), sample=0).contents["maps"]) == 2 * 4


def test_code_in_a_tokenizer_does_not_run(tmp_path, model):
    marker = tmp_path / "ran"
    (model / "own.py").write_text(f"import os\nos.makedirs({str(marker)!r})\n", "utf-8")
    file = model / "tokenizer_config.json"
    settings = json.loads(file.read_text("utf-8"))
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    file.write_text(json.dumps(settings), "utf-8")
    with contextlib.suppress(LoadError):  # the plain tokenizer beside the code may do
        load_tokenizer(find_checkpoints(str(model))[0])
    assert not marker.exists()


@pytest.mark.parametrize("damage", ["truncated", "header", "size", "empty", "config", "tokenizer"])
def test_damaged_model_folders_are_refused_in_words(tmp_path, model, damage):
    weights = model / "model.safetensors"
    data = weights.read_bytes()
    if damage == "truncated":
        weights.write_bytes(data[: len(data) // 2])
    if damage == "header":
        weights.write_bytes(data[:8] + b"{" * 40 + data[48:])
    if damage == "size":
        weights.write_bytes((2**62).to_bytes(8, "little") + data[8:])
    if damage == "empty":
        weights.write_bytes(b"")
    if damage == "config":
        (model / "config.json").write_bytes(b'{"model_type": "llama", ')
    if damage == "tokenizer":
        (model / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(LoadError, match="tiny"):
        asc.run(study(tmp_path, model, sentences(tmp_path / "texts.txt", 2)), progress=False)
    assert not (tmp_path / "runs" / "a").exists()


# --- texts


def file_of_two_texts(folder, suffix, long):
    """Write a long text and a short one, and return the file."""
    content = {".csv": f"text\n{long}\nthe cat\n", ".txt": f"{long}\nthe cat\n"}.get(suffix)
    content = content or json.dumps({"text": long}) + '\n{"text": "the cat"}\n'
    (folder / f"a{suffix}").write_text(content, "utf-8")
    return folder / f"a{suffix}"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".txt"])
def test_a_line_of_sixty_megabytes_is_read_and_one_of_a_hundred_is_refused(tmp_path, suffix):
    """The bound is `MAX_ROW_CHARACTERS`, 64 MiB."""
    words = " ".join(WORDS * 20) + " "
    with pytest.raises(ConfigError, match=r"\.(csv|jsonl|txt)\b.*(67,?108,?864)"):
        read(file_of_two_texts(tmp_path, suffix, (words * (100_000_000 // len(words) + 1)).strip()))
    long = (words * (60_000_000 // len(words) + 1)).strip()
    file_of_two_texts(tmp_path, suffix, long)
    result = read(tmp_path / f"a{suffix}")
    assert [len(text.text) for text in result] == [len(long), 7]
    began = time.perf_counter()
    encoded = Encoder(tokenizer(), 64).encode(result[0].text)
    assert time.perf_counter() - began < 5
    assert encoded.truncated
    assert encoded.ids.tolist() == Encoder(tokenizer(), 64).encode(long[:5000]).ids.tolist()


def test_a_long_text_of_few_tokens_is_read_to_its_end():
    encoder = Encoder(tokenizer(), 8)
    assert (
        encoder.encode(" " * 5000 + "the cat sat").ids.tolist() == encoder.encode("the cat sat").ids.tolist()
    )


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_million_columns(tmp_path, suffix):
    count = 1_000_000 if suffix != ".parquet" else 20_000  # a Parquet file of more is refused, see below
    names = [f"c{at}" for at in range(count)]
    file = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        file.write_text(",".join(names) + ",text\n" + "," * count + "the cat\n", "utf-8")
    elif suffix == ".jsonl":
        file.write_text(json.dumps(dict.fromkeys(names, 0) | {"text": "the cat"}) + "\n", "utf-8")
    else:
        pq.write_table(pa.table({**{name: [0] for name in names}, "text": ["the cat"]}), file)
    (result,) = read(file)
    assert result.text == "the cat"
    with pytest.raises(ConfigError, match="no column 'txt'") as caught:
        read(file, column="txt")
    assert len(str(caught.value)) < 1000


def parquet_of(columns):
    """A Parquet file without rows, its description written by hand: pyarrow takes minutes for a million."""

    def varint(number):
        return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)

    def element(name, kind=None, children=None):
        # Thrift's compact protocol: the step to the field's number and its type, then the value.
        head = b"" if kind is None else b"\x15" + varint(2 * kind)
        head += (b"\x35" if kind is None else b"\x25") + varint(2)
        tail = b"" if children is None else b"\x15" + varint(2 * children)
        return head + b"\x18" + varint(len(name)) + name.encode() + tail + b"\0"

    elements = [element("schema", children=columns), element("text", 6)]
    elements += [element(f"c{at}", 1) for at in range(columns - 1)]
    footer = b"\x15\x02\x19\xfc" + varint(columns + 1) + b"".join(elements) + b"\x16\0\x19\x0c\0"
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


NARROW = """
import resource, sys
from pathlib import Path
import pyarrow.parquet
from attnscope.config.run_config import TextSource
from attnscope.errors import ConfigError
from attnscope.texts.sources import read_sentences
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**28, resource.RLIM_INFINITY))
try:
    read_sentences([TextSource(path=sys.argv[1])])
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize("columns", [2, 1_000_000])
def test_parquet_of_a_million_columns_is_refused_in_little_memory(tmp_path, columns):
    file = tmp_path / "a.parquet"
    file.write_bytes(parquet_of(columns))
    if columns == 2:  # the description is a good one
        assert pq.ParquetFile(file).schema_arrow.names == ["text", "c0"]
    done = subprocess.run(
        [sys.executable, "-c", NARROW, str(file)], capture_output=True, text=True, timeout=60
    )
    expected = "describes more than 100,000 columns" if columns > 2 else "holds no sentence"
    assert expected in done.stdout, done.stdout + done.stderr[-1000:]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b'text\n"an open quote'),
        ("a.csv", "text\nKäse\n".encode("latin-1")),
        ("a.jsonl", b'{"text": "half'),
        ("a.jsonl", '{"text": "Käse"}\n'.encode("utf-16")),
        ("a.jsonl", b'{"text": NaN}\n'),
        ("a.jsonl", b'{"token_ids": [1, -5]}\n'),
        ("a.jsonl", b'{"token_ids": [1e400]}\n'),
        ("a.txt", b"\xff\xfe\x00"),
        ("a.parquet", b""),
        ("a.parquet", b"PAR1" + bytes(100) + b"PAR1"),
    ],
)
def test_truncated_and_misencoded_texts_are_refused_in_words(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("row", [[10**30], [2**63], [500]])
def test_token_ids_outside_the_vocabulary_are_refused(tmp_path, model, row):
    (tmp_path / "a.jsonl").write_text(json.dumps({"token_ids": row}) + "\n", "utf-8")
    with pytest.raises((ConfigError, ValueError), match="outside the vocabulary of"):
        asc.run(study(tmp_path, model, tmp_path / "a.jsonl"), progress=False)


# --- paths, and the pages that show what was read


def test_paths_with_spaces_unicode_and_dots(tmp_path):
    folder = tmp_path / "a b" / "Übung ✓" / "down" / ".." / "mödel $(touch x);"
    (tmp_path / "a b" / "Übung ✓" / "down").mkdir(parents=True)
    model_folder(folder)
    texts = sentences(tmp_path / "a b" / "tëxts 'quoted\".txt", 2)
    results = asc.run(study(tmp_path / "rùns here", folder, texts, name="ñame with space"), progress=False)
    assert results.path == (tmp_path / "rùns here" / "runs" / "ñame with space")
    assert len(asc.resume(results.path, progress=False).table("heads")) == 2 * 2 * 4


@pytest.mark.parametrize("name", ["../up", "a/b", "..", ".hidden", "a\\b", "a/../../b"])
def test_the_name_of_a_run_cannot_leave_its_folder(tmp_path, model, name):
    with pytest.raises(ConfigError, match="name"):
        study(tmp_path, model, tmp_path / "texts.txt", name=name)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run whose model, prompts, tokens and source columns are markup."""
    folder = tmp_path_factory.mktemp("hostile")
    texts = folder / "texts.jsonl"
    rows = [{"text": f"{EVIL} the cat sat on a mat", EVIL: EVIL}, {"text": "the '\"&lt;b>cat", EVIL: "x"}]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    source = {"path": str(texts), "column": "text", "group": EVIL}
    models = {"path": str(model_folder(folder / "m")), "label": EVIL.replace("/", "-")}
    study = RunConfig(
        models=models, texts=source, metrics=["sink_share", "sink_position"], output=str(folder), name="a"
    )
    return asc.run(study, progress=False)


@in_a_browser
@pytest.mark.parametrize("page", ["report", "view"])
def test_markup_in_prompts_and_names_stays_text_in_a_browser(hostile, tmp_path, page):
    file = tmp_path / f"{page}.html"
    if page == "report":
        hostile.report(file)
    else:
        asc.view(hostile).save(file)
    assert "script>document" not in file.read_text("utf-8").replace("\\u003c", "<!")
    shown = dom(file.as_uri(), tmp_path / "profile")
    title = shown.partition("<title>")[2].partition("</title>")[0]
    assert title
    assert title != "broken"
    assert "&lt;script" in shown


def test_numbers_survive_hostile_names(hostile):
    heads = asc.load(hostile.path).table("heads")
    assert set(heads["model"]) == {EVIL.replace("/", "-")}
    assert np.isfinite(heads["sink_share"]).all()
    samples = asc.load(hostile.path).table("samples")
    assert samples[EVIL].tolist() == [EVIL, "x"]
