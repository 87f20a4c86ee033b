# SPDX-License-Identifier: MIT
"""Sentences from files: every format, the sampling rules, and clear words for every bad file."""

import csv
import json
import sys
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.config.run_config import TextSource
from attnscope.errors import ConfigError
from attnscope.studies.attention_sinks.options import by_focus_word
from attnscope.texts import readers, sources
from attnscope.texts.readers import looks_wrapped
from attnscope.texts.sources import extra_columns, read_sentences

TEXTS = ["Ein Käse, bitte.", 'He said "no, never".', "A third one."]


def read(path, **options):
    return read_sentences([TextSource(path=str(path), **options)], samplers={"paper": by_focus_word})


def write_csv(path, rows, names=("text", "field"), encoding="utf-8"):
    with open(path, "w", encoding=encoding, newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)
    return path


def test_every_format_gives_the_same_sentences(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS) + "\n", "utf-8")
    write_csv(tmp_path / "a.csv", [(text, "f") for text in TEXTS])
    lines = [json.dumps({"text": text, "field": "f"}) for text in TEXTS]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), "utf-8")
    pq.write_table(pa.table({"text": TEXTS, "field": ["f"] * 3}), tmp_path / "a.parquet")
    for name in ("a.txt", "a.csv", "a.jsonl", "a.parquet"):
        sentences = read(tmp_path / name)
        assert [sentence.text for sentence in sentences] == TEXTS, name
        assert [sentence.sample for sentence in sentences] == [0, 1, 2]
        assert {sentence.source for sentence in sentences} == {name}
        assert name == "a.txt" or sentences[0].extra == {"field": "f"}
    assert [sentence.source_row for sentence in read(tmp_path / "a.txt")] == [0, 2, 4]


def test_windows_line_ends_and_a_byte_order_mark(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert [sentence.text for sentence in read(tmp_path / "a.txt")] == ["one", "two"]
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbftext\r\none\r\n")
    assert [sentence.text for sentence in read(tmp_path / "a.csv", column="text")] == ["one"]


def test_a_line_separator_inside_json_text_stays_there(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one\u2028two"}\n', "utf-8")
    assert read(tmp_path / "a.jsonl")[0].text == "one\u2028two"


def test_token_ids_are_taken_as_they_are(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"token_ids": [1, 5, 5]}\n', "utf-8")
    sentence = read(tmp_path / "a.jsonl", group="copying")[0]
    assert (sentence.text, sentence.token_ids, sentence.group) == (None, (1, 5, 5), "copying")


def test_groups_are_numbered_through(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n", "utf-8")
    (tmp_path / "b.txt").write_text("three\n", "utf-8")
    sentences = read_sentences([TextSource(path=str(tmp_path / f"{name}.txt"), group=name) for name in "ab"])
    assert [(sentence.sample, sentence.group, sentence.text) for sentence in sentences] == [
        (0, "a", "one"),
        (1, "a", "two"),
        (2, "b", "three"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        (
            "a.txt",
            "caf\xe9\n".encode("latin-1"),
            {},
            r"is not utf-8: byte 0xe9 at line 1; .*encoding=latin-1",
        ),
        ("a.txt", "one\n".encode("utf-16"), {}, "texts.encoding=utf-16"),
        ("a.csv", "text\ncaf\xe9\n".encode("latin-1"), {}, "byte 0xe9 at line 2"),
        ("a.txt", b"x", {"encoding": "klingon"}, "unknown encoding 'klingon'"),
        ("a.txt", b"x", {"column": "text"}, "has no columns, 'text' was asked for"),
        ("a.txt", b"\n \n", {}, "holds no sentence"),
        ("a.csv", b"text,field\none,f\n", {"column": "txt"}, r"no column 'txt' in .*; did you mean 'text'\?"),
        ("a.csv", b"a,b\n1,2\n", {}, "which column.? there are: a, b"),
        ("a.csv", b"a\x1f,b\n1,2\n", {}, r"which column.? there are: 'a\\x1f', b"),
        ("a.csv", b"\x1b[m,b\n1,2\n", {"column": "txt"}, r"no column 'txt' in .*; there are: '\\x1b\[m', b"),
        ("a.csv", b"text,field\na,b\n\none\n", {}, "row 3: 1 fields, the header names 2"),
        pytest.param(
            *("a.csv", b"text,field\na,b\none,f,\n", {}, "Expected 2 fields in line 3, saw 3"),
            marks=pytest.mark.skipif(pd.__version__ < "3", reason="pandas 2 reads over an empty last field"),
        ),
        ("a.csv", b"text,field\none,f,g\n", {}, "Length of header or names does not match"),
        ("a.csv", b'text\n"open\n', {}, "a.csv: unexpected end of data"),
        ("a.csv", b"", {}, "No columns to parse from file"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', {}, "line 2 is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b"}, {"text": "c"}\n', {}, "line 2 is not JSON: Extra data"),
        ("a.jsonl", b'["a"]\n', {}, "line 1: expected an object, got a list"),
        ("a.jsonl", b'{"text": "a"}\n{"txt": "b"}\n', {}, "line 2: no key 'text'; did you mean 'txt'"),
        ("a.jsonl", b'{"text": 5}\n', {}, "'text' must be a text or a list of token ids, got 5"),
        ("a.jsonl", b'{"token_ids": [1, -2]}\n', {}, "must be a text or a list of token ids"),
        ("a.jsonl", b"[" * 100000, {}, "line 1 is not JSON"),
        ("a.parquet", b"PAR1 nonsense", {}, "is not a readable Parquet file"),
        ("a.doc", b"x", {}, "the ending says what a file is; known: .txt, .csv, .jsonl, .parquet"),
    ],
)
def test_bad_files_are_explained(tmp_path, name, content, options, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / name, **options)


def test_no_cell_is_changed(tmp_path):
    """Words that pandas takes for missing, zeros in front, whole numbers beyond 2^64."""
    (tmp_path / "a.csv").write_text('text,n\nNA,007\n\n"a, ""b""\nc",\n', "utf-8")
    sentences = read(tmp_path / "a.csv")
    assert [sentence.text for sentence in sentences] == ["NA", 'a, "b"\nc']
    assert [sentence.extra for sentence in sentences] == [{"n": "007"}, {"n": ""}]
    assert [sentence.source_row for sentence in sentences] == [0, 2]
    rows = [
        {"text": "2020-01-01", "n": 123456789012345678901, "x": 0.1},
        {"text": "b", "n": None},
        {"text": "c", "n": "x"},
    ]
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, rows)), "utf-8")
    sentences = read(tmp_path / "a.jsonl")
    assert [{"text": sentence.text, **sentence.extra} for sentence in sentences] == rows
    assert [sentence.source_row for sentence in sentences] == [0, 2, 4]


def test_missing_files_folders_and_unknown_sources(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no file .*none\.csv"):
        read(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="'builtin:pydocs' is not built in; did you mean 'builtin:pydoc'"):
        read("builtin:pydocs")


def test_a_truncated_parquet_file_is_refused(tmp_path):
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "whole.parquet")
    data = (tmp_path / "whole.parquet").read_bytes()
    (tmp_path / "half.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigError, match="not a readable Parquet file"):
        read(tmp_path / "half.parquet")


def test_a_line_of_a_megabyte_and_many_columns(tmp_path):
    long = "word " * 200_000
    write_csv(tmp_path / "a.csv", [(long, "f")])
    assert read(tmp_path / "a.csv")[0].text == long.strip()
    assert csv.field_size_limit() == 131072
    names = [f"c{at}" for at in range(20_000)]
    write_csv(tmp_path / "b.csv", [["x"] * len(names)], names)
    with pytest.raises(ConfigError, match="which column") as caught:
        read(tmp_path / "b.csv")
    assert len(str(caught.value)) < 500
    with pytest.raises(ConfigError, match="no column 'text'") as caught:
        read(tmp_path / "b.csv", column="text")
    assert len(str(caught.value)) < 3_000


def test_sentences_are_chosen_by_their_number_of_words(tmp_path):
    texts = [" ".join(["word"] * count) for count in (3, 6, 7, 50, 51)]
    (tmp_path / "a.txt").write_text("\n".join(texts), "utf-8")
    sentences = read(tmp_path / "a.txt", min_words=6, max_words=50)
    assert [sentence.source_row for sentence in sentences] == [1, 2, 3]
    # the filter comes before the rule: two of the three that are left
    assert [sentence.source_row for sentence in read(tmp_path / "a.txt", min_words=7, samples=2)] == [2, 3]
    assert [sentence.source_row for sentence in read(tmp_path / "a.txt", max_words=3)] == [0]
    (tmp_path / "a.jsonl").write_text('{"token_ids": [1, 5, 5]}\n{"token_ids": [1]}\n', "utf-8")
    assert [sentence.token_ids for sentence in read(tmp_path / "a.jsonl", max_words=2)] == [(1,)]
    with pytest.raises(ConfigError, match="no sentence has 8 to 9 words; its 5 sentences have 3 to 51"):
        read(tmp_path / "a.txt", min_words=8, max_words=9)
    with pytest.raises(ConfigError, match="no sentence has 99 to any number of words"):
        read(tmp_path / "a.txt", min_words=99)
    with pytest.raises(ValueError, match="expected at least min_words = 6, got 5"):
        TextSource(path="a.txt", min_words=6, max_words=5)


def test_long_sentences_are_cut_at_a_number_of_characters(tmp_path):
    (tmp_path / "a.txt").write_text("äbcdef\nabc\n", "utf-8")
    sentences = read(tmp_path / "a.txt", max_characters=3)
    assert [(sentence.text, sentence.cut) for sentence in sentences] == [("äbc", True), ("abc", False)]
    assert [(sentence.text, sentence.cut) for sentence in read(tmp_path / "a.txt")] == [
        ("äbcdef", False),
        ("abc", False),
    ]


def test_sampling_is_seeded_and_keeps_the_order(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(f"sentence {at}" for at in range(100)), "utf-8")
    source = TextSource(path=str(tmp_path / "a.txt"), samples=10, sampling="random")
    first, again, other = (read_sentences([source], seed) for seed in (0, 0, 1))
    assert first == again
    assert [sentence.text for sentence in first] != [sentence.text for sentence in other]
    rows = [sentence.source_row for sentence in first]
    assert rows == sorted(rows)
    assert len(set(rows)) == 10
    assert [sentence.text for sentence in read(tmp_path / "a.txt", samples=2)] == ["sentence 0", "sentence 1"]
    assert len(read(tmp_path / "a.txt", samples=1000)) == 100


def focus_rows():
    """30 words with three sentences each, of 4, 8 and 12 words plus the word's own number."""
    return [
        (" ".join(["w"] * (4 * size + word % 3)), f"focus{word}") for size in (3, 1, 2) for word in range(30)
    ]


def test_the_papers_rule_takes_the_shortest_sentence_of_every_focus_word(tmp_path):
    write_csv(tmp_path / "a.csv", focus_rows(), ("text", "focus_word"))
    exact = read(tmp_path / "a.csv", sampling="paper", samples=30)
    assert sorted(sentence.extra["focus_word"] for sentence in exact) == sorted(
        f"focus{word}" for word in range(30)
    )
    assert {len(sentence.text.split()) for sentence in exact} == {4, 5, 6}
    longer = read(tmp_path / "a.csv", sampling="paper", samples=48)
    extra = [len(sentence.text.split()) for sentence in longer if len(sentence.text.split()) > 6]
    # 60 others: short third 8..9 words, middle third 9..13, long third 13..14: six of each third
    assert len(extra) == 18
    assert sum(length <= 9 for length in extra) >= 6
    assert sum(length >= 13 for length in extra) >= 6
    fewer = read(tmp_path / "a.csv", sampling="paper", samples=9)
    lengths = sorted(len(sentence.text.split()) for sentence in fewer)
    assert lengths == [4, 4, 4, 5, 5, 5, 6, 6, 6]
    with pytest.raises(ConfigError, match="needs the column 'word'"):
        read(tmp_path / "a.csv", sampling="paper", focus="word")


def test_a_rule_is_the_studys_or_refused(tmp_path):
    write_csv(tmp_path / "a.csv", [(text, "f") for text in TEXTS])
    source = TextSource(path=str(tmp_path / "a.csv"), sampling="last", samples=1)
    with pytest.raises(ConfigError, match=r"a\.csv: there is no sampling rule 'last'; .*first, random"):
        read_sentences([source])
    rules = {"last": lambda rows, source, draw: [len(rows) - 1]}
    assert [sentence.text for sentence in read_sentences([source], samplers=rules)] == TEXTS[-1:]


@given(count=st.integers(1, 120), rule=st.sampled_from(["first", "random", "paper"]))
def test_every_rule_takes_as_many_different_rows_as_asked(tmp_path_factory, count, rule):
    path = tmp_path_factory.getbasetemp() / "focus.csv"
    if not path.exists():
        write_csv(path, focus_rows(), ("text", "focus_word"))
    rows = [sentence.source_row for sentence in read(path, sampling=rule, samples=count)]
    assert len(rows) == len(set(rows)) == min(count, 90)
    assert rows == sorted(rows)


def test_the_manual_of_python_is_a_source():
    sentences = read("builtin:pydoc", samples=50, sampling="random")
    assert len(sentences) == 50
    assert all(6 <= len(sentence.text.split()) <= 50 for sentence in sentences)


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path):
    """Their texts had one `source`, and the rows of both were numbered from 0."""
    places = [tmp_path / "a" / "texts.txt", tmp_path / "b" / "texts.txt", tmp_path / "b" / "others.txt"]
    for place in places:
        place.parent.mkdir(exist_ok=True)
        place.write_text("a cat\n", "utf-8")
    sources = [TextSource(path=place) for place in [*places, places[0]]]
    named = [sentence.source for sentence in read_sentences(sources)]
    assert named == ["a/texts.txt", "b/texts.txt", "others.txt", "a/texts.txt"]


def test_columns_of_the_sources_get_one_type_and_a_free_name(tmp_path):
    rows = [
        {"text": "a", "score": 1, "layer": 3, "tokens": "x", "bos": True, "mixed": 1},
        {"text": "b", "score": 2.5, "mixed": "y"},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    columns = extra_columns(read(tmp_path / "a.jsonl"))
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "score": [1, 2.5],
        "layer": [3, None],
        "source_tokens": ["x", None],
        "source_bos": [True, None],
        "mixed": ["1", "y"],
    }


def test_a_column_loses_its_name_to_no_other_one(tmp_path):
    rows = {"sentence": "a", "text": "b", "source_text": "c", "source_source_text": "d"}
    (tmp_path / "a.jsonl").write_text(json.dumps(rows), "utf-8")
    columns = extra_columns(read(tmp_path / "a.jsonl", column="sentence"))
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "source_source_source_text": ["b"],
        "source_text": ["c"],
        "source_source_text": ["d"],
    }


PROSE = "\n\nThe cat sat\non the mat. It slept\nall day.\n\n \nRain fell.\r\n"


def test_a_text_file_is_a_sentence_per_line_or_per_paragraph(tmp_path):
    (tmp_path / "a.txt").write_text(PROSE, "utf-8")
    lines = read(tmp_path / "a.txt")
    assert [sentence.text for sentence in lines] == [
        "The cat sat",
        "on the mat. It slept",
        "all day.",
        "Rain fell.",
    ]
    assert [sentence.source_row for sentence in lines] == [2, 3, 4, 7]
    paragraphs = read(tmp_path / "a.txt", per="paragraph")
    assert [sentence.text for sentence in paragraphs] == [
        "The cat sat on the mat. It slept all day.",
        "Rain fell.",
    ]
    assert [sentence.source_row for sentence in paragraphs] == [2, 7]


@pytest.mark.parametrize(
    ("text", "options", "wrapped"),
    [
        (PROSE, {}, True),
        (PROSE, {"per": "paragraph"}, False),
        ("A cat sat.\nThe rain fell.\n\nNight came.\n", {}, False),
        ("a cat sat\nthe rain fell\nnight came\n", {}, False),
        ("one line", {}, False),
    ],
)
def test_wrapped_prose_is_noticed(tmp_path, text, options, wrapped):
    (tmp_path / "a.txt").write_text(text, "utf-8")
    assert looks_wrapped(TextSource(path=tmp_path / "a.txt", **options)) is wrapped


@pytest.fixture
def datasets(monkeypatch, tmp_path):
    module = pytest.importorskip("datasets")
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(module.config, "HF_HUB_OFFLINE", True)
    return module


def test_a_data_sets_folder(tmp_path, datasets):
    folder = tmp_path / "plain folder"
    folder.mkdir()
    table = pa.table({"text": TEXTS, "field": ["a", "b", "c"][: len(TEXTS)] + ["d"] * (len(TEXTS) - 3)})
    pq.write_table(table, folder / "train.parquet")
    pq.write_table(table.slice(1), folder / "test.parquet")
    assert [sentence.text for sentence in read(folder)] == TEXTS
    tested = read(folder, split="test", column="text")
    assert [sentence.text for sentence in tested] == TEXTS[1:]
    assert tested[0].extra == {"field": "b"}
    with pytest.raises(ConfigError, match="dev"):
        read(folder, split="dev")
    with pytest.raises(ConfigError, match=r"no column 'txt'.*did you mean 'text'"):
        read(folder, column="txt")


def test_a_data_set_saved_to_disk(tmp_path, datasets):
    dataset = datasets.Dataset.from_dict({"text": TEXTS})
    dataset.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": dataset, "test": dataset.select([0])}).save_to_disk(tmp_path / "many")
    assert [sentence.text for sentence in read(tmp_path / "one")] == TEXTS
    assert [sentence.text for sentence in read(tmp_path / "many", split="test")] == TEXTS[:1]
    with pytest.raises(ConfigError, match="has no split 'tset'; did you mean 'test'"):
        read(tmp_path / "many", split="tset")


def test_a_data_sets_name_offline(datasets):
    with pytest.raises(ConfigError, match="there is no file nobody/nothing, and as a data set: "):
        read("nobody/nothing")


def test_an_empty_folder_and_a_missing_package(tmp_path, monkeypatch, datasets):
    with pytest.raises(ConfigError, match="as a data set: "):
        read(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"is a folder; as a data set it needs the package `datasets`"):
        read(tmp_path)
    with pytest.raises(ConfigError, match=r"nobody/nothing is no file; as a data set it needs"):
        read("nobody/nothing")


def peak(function):
    """Bytes that Python's objects take at most while a function runs, and its result."""
    tracemalloc.start()
    try:
        result = function()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def write_many(path, count):
    """A file of one long source of rows, whatever its format."""
    if path.suffix == ".parquet":
        table = pa.table({"text": pa.repeat("the cat sat", count), "n": pa.array(range(count))})
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        path.write_text("text,n\n" + "".join(f"the cat sat,{at}\n" for at in range(count)), "utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("".join(f'{{"text": "the cat sat", "n": {at}}}\n' for at in range(count)), "utf-8")
    else:
        path.write_text("the cat sat\n" * count, "utf-8")
    return path


@pytest.mark.parametrize("ending", ["txt", "csv", "jsonl", "parquet"])
@pytest.mark.parametrize("rule", ["first", "random"])
def test_a_few_texts_of_a_large_file_take_little_memory(tmp_path, ending, rule):
    small, large = (write_many(tmp_path / f"{count}.{ending}", count) for count in (4_000, 40_000))
    read(small, samples=3, sampling=rule)  # imports
    bytes_of_small, _ = peak(lambda: read(small, samples=3, sampling=rule))
    bytes_of_large, sentences = peak(lambda: read(large, samples=3, sampling=rule))
    assert len(sentences) == 3
    assert bytes_of_large < 2 * bytes_of_small + 100_000, (
        f"{bytes_of_large:,} bytes of 40,000 rows, {bytes_of_small:,} of 4,000"
    )


@pytest.mark.parametrize("ending", ["txt", "csv", "jsonl", "parquet"])
def test_the_first_texts_are_read_without_those_behind_them(tmp_path, ending, monkeypatch):
    path = write_many(tmp_path / f"a.{ending}", 20_000)
    if ending == "parquet":
        rows = []
        monkeypatch.setattr(readers, "_of_cells", lambda cells, column, path: counted(cells, rows, column))
    else:
        with open(path, "ab") as file:
            file.write(b"\xff" * 100)  # no UTF-8, and no row
    assert len(read(path, samples=3)) == 3
    if ending == "parquet":
        assert len(rows) == 3
    else:
        with pytest.raises(ConfigError, match=r"is not utf-8: byte 0xff at line 20002|at line 20001"):
            read(path)


def counted(cells, rows, column):
    for number, row in enumerate(cells):
        rows.append(row)
        yield number, row.pop(column), row


@pytest.mark.parametrize("ending", ["txt", "csv", "jsonl", "parquet"])
def test_a_random_sample_is_that_of_all_texts_in_memory(tmp_path, ending):
    """Reading twice chooses the rows that a list of all of them would give, for the same seed."""
    path = write_many(tmp_path / f"a.{ending}", 300)
    for seed in range(5):
        drawn = np.random.default_rng([seed, 0]).choice(300, 7, replace=False)
        source = TextSource(path=str(path), samples=7, sampling="random")
        assert [sentence.source_row for sentence in read_sentences([source], seed)] == sorted(drawn.tolist())


def test_the_byte_of_another_encoding_is_found_behind_megabytes(tmp_path):
    line = "ä" * 49_999 + "\n"
    (tmp_path / "a.txt").write_bytes(line.encode() * 31 + b"\xc3(\n")
    with pytest.raises(ConfigError, match="byte 0xc3 at line 32"):
        read(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_bytes(line.encode() * 31 + "ä".encode()[:1])
    with pytest.raises(ConfigError, match="byte 0xc3 at line 32"):
        read(tmp_path / "b.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text": "a \\ud800 b"}\n', r"line 2: 'text' holds half .*U\+D800, at character 3"),
        (b'{"text": "a", "n": "\\udfff"}\n', r"row 0: 'n' holds half of a surrogate pair, U\+DFFF"),
        (b'{"text": "a", "\\udfff": 1}\n', r"row 0: the name of a column holds half of a surrogate pair"),
        (b'{"text": "a", "n": ' + b"9" * 5000 + b"}\n", "line 1 is not JSON: .*digits"),
        (b'{"text": "a", "n": ' + b"[" * 80 + b"]" * 80 + b"}\n", "line 1 is not JSON: nested more than 50"),
    ],
)
def test_what_no_tokenizer_and_no_table_takes_is_refused_by_place(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path / "a.jsonl")
    assert len(str(caught.value).splitlines()) == 1


def test_integers_beyond_64_bits_and_beside_fractions_stay_exact(tmp_path):
    rows = [{"text": "a", "big": 2**70, "mixed": 2**60 + 1}, {"text": "b", "big": 1, "mixed": 0.5}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    columns = {name: column.to_pylist() for name, column in extra_columns(read(tmp_path / "a.jsonl")).items()}
    assert columns == {"big": [str(2**70), "1"], "mixed": [str(2**60 + 1), "0.5"]}


def test_rows_and_their_number_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MAX_ROW_CHARACTERS", 1000)
    monkeypatch.setattr(sources, "MAX_TEXTS", 5)
    (tmp_path / "a.txt").write_text("short\n" + "x" * 1001, "utf-8")
    with pytest.raises(ConfigError, match="line 2: more than 1,000 characters"):
        read(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("word word\n" * 120, "utf-8")
    with pytest.raises(ConfigError, match="paragraph at line 1: more than 1,000 characters"):
        read(tmp_path / "b.txt", per="paragraph")
    (tmp_path / "c.csv").write_text('text\n"' + "x" * 1001 + '"\n', "utf-8")
    with pytest.raises(ConfigError, match=r"c\.csv: field larger than field limit"):
        read(tmp_path / "c.csv")
    assert len(read(tmp_path / "b.txt", samples=3)) == 3
    assert len(read(tmp_path / "b.txt", samples=3, sampling="random")) == 3
    with pytest.raises(ConfigError, match=r"holds more than 5 texts; texts\.samples and"):
        read(tmp_path / "b.txt")
