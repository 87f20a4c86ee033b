# SPDX-License-Identifier: MIT
"""Small runs of both studies, whose tables are stored: what a change of the engine must leave as it is.

    python tests/reference/runs.py FOLDER        writes FOLDER/NAME.parquet for every run

A run is one Parquet file with one row: each table is a column, a list of structs. Its metadata hold the
instruction set that made it, the version of torch, and how the model's own arithmetic rounded.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import attnscope as asc
from attnscope import _isa
from attnscope.demo.training import one_thread
from folders import WORDS, model_folder, sentences

HERE = Path(__file__).resolve().parent
STORIES = HERE.parents[2] / "shared" / "data" / "stories260K" / "hf"
#: Study and options of each run; its model is the part of the name behind the hyphen.
_SINKS = {
    "study": "sink_study", "protocols": "both", "bars": True, "options": {"extra": "all", "controls": 1},
}  # fmt: skip
RUNS = {
    "sinks-tiny": _SINKS,
    "sinks-stories": _SINKS,
    "wavelets-tiny": {"study": "wavelet_study", "options": {"nulls": "all"}},
    "wavelets-stories": {"study": "wavelet_study", "options": {"nulls": "all"}},
}


def arithmetic(name, home):
    """A digest of a model's attention without attnscope: torch and its BLAS round as the processor lets them.

    Args:
        name: of the run.
        home: a folder for the model.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(_model(name, home), attn_implementation="eager").eval()
    digest = hashlib.sha256()
    with one_thread(), torch.no_grad():
        for length in (7, 19, 46):
            for attention in model(torch.arange(4, 4 + length)[None] % 31, output_attentions=True).attentions:
                digest.update(attention.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _model(name, home):
    return STORIES if name.endswith("stories") else model_folder(home / "tiny" / "hf")


def made(name, home):
    """The results of one run.

    Args:
        name: of the run.
        home: an empty folder.
    """
    keys = dict(RUNS[name])
    model = _model(name, home)
    texts = sentences(home / "texts.txt", 3, shortest=6)
    if name.startswith("wavelets"):
        # whole signals need at least 32 keys
        texts.write_text("\n".join(" ".join((WORDS * 2)[at : at + 45]) for at in range(2)), "utf-8")
    study = asc.Study(
        models={"path": str(model), "label": "model"},
        texts=str(texts),
        output=str(home),
        name="run",
        block=2,
        **keys,
    )
    with one_thread():
        return asc.run(study, progress=False, say=lambda text: None)


def written(results, file, rounding):
    """Writes the tables of a run, and its `arithmetic`, as one small file."""
    columns = {}
    for name in results.tables():
        rows = results.arrow(name).replace_schema_metadata().combine_chunks()
        structs = rows.to_struct_array()
        structs = structs.combine_chunks() if isinstance(structs, pa.ChunkedArray) else structs
        columns[name] = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), structs)
    about = {"instructions": _isa.live(), "torch": torch.__version__, "arithmetic": rounding}
    table = pa.table(columns).replace_schema_metadata({"reference": json.dumps(about)})
    pq.write_table(table, file, compression="zstd", compression_level=19)


def stored(file):
    """Tables of schema 1 by name, and what made them."""
    whole = pq.read_table(file)
    about = json.loads(whole.schema.metadata[b"reference"])
    tables = {}
    for name in whole.column_names:
        column = whole.column(name).combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        tables[name] = pa.Table.from_struct_array(column.flatten())
    return tables, about


def older(name, home):
    """A run folder of schema 1 that holds a stored run.

    Args:
        name: of the run.
        home: an empty folder.
    """
    (home / "tables").mkdir()
    for table, rows in stored(HERE / f"{name}.parquet")[0].items():
        rows = rows.replace_schema_metadata({"attnscope_schema": "1"})
        pq.write_table(rows, home / "tables" / f"{table}.parquet")
    (home / "study.yaml").write_text(f"study: {RUNS[name]['study']}\n", "utf-8")
    return asc.load(home)


if __name__ == "__main__":
    for run in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            written(made(run, home), Path(sys.argv[1]) / f"{run}.parquet", arithmetic(run, home))
            print(run, flush=True)
