# SPDX-License-Identifier: MIT
"""Small runs of both studies, whose tables are stored: what a change of the engine must leave as it is.

    python tests/reference/runs.py FOLDER        writes FOLDER/NAME.parquet for every run
    python tests/reference/runs.py FOLDER rules  writes FOLDER/sinks-tiny-rules.parquet

A run is one Parquet file with one row: each table is a column, a list of structs. Its metadata hold the
instruction set that made it, the version of torch, and how the model's own arithmetic rounded.

The runs were stored before the engine was built anew; their tables were brought to today's form once,
with all their numbers. What another rule decides since then, sinks by the test above all, is
stored a second time in sinks-tiny-rules.parquet, whose metadata name the commit that made it.
"""

import hashlib
import json
import subprocess
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

FOLDER = Path(__file__).resolve().parent
STORIES = FOLDER.parents[2] / "shared" / "data" / "stories260K" / "hf"
#: Study and options of each run; its model is the part of the name behind the hyphen.
_SINKS = {
    "study": "attention_sinks",
    "protocols": "both",
    "bars": True,
    "options": {"extra": "all", "controls": 1},
}
RUNS = {
    "sinks-tiny": _SINKS,
    "sinks-stories": _SINKS,
    "wavelets-tiny": {"study": "wavelet_heads", "options": {"nulls": "all"}},
    "wavelets-stories": {"study": "wavelet_heads", "options": {"nulls": "all"}},
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


def run_reference(name, home):
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


#: Columns of the exact protocol whose rule is another one: the sinks that are counted, taken out or taken as
#: reference are those of the test, because by frequency sharp heads have sinks that receive nothing.
BY_TEST = (
    *("alignment_value_without_sinks", "alignment_hidden_without_sinks"),
    *("reference_count", "reference_magnitude", "reference_directional", "reference_information"),
    *("kl_reduction", "sink_concentration", "sink_count", "excluded_rows", "p_value"),
    *("sink_position", "sink_token"),
)
#: Constants of the design and of the null, which no model changes, are not tested.
CONSTANTS = ("sink_share_uniform", "mp_edge", "attention_mean")
#: Rows of these tables are compared where their rule is the stored one.
RULES = {
    # frames and consistency are of heads that have a sink by the test
    "frames": lambda rows: rows["protocol"] == "ruscio2025",
    "frame_evidence": lambda rows: rows["protocol"] == "ruscio2025",
    "specialization": lambda rows: rows["protocol"] == "ruscio2025",
    # the share of the divergence is held against that of shuffled rows
    "removal_tests": lambda rows: rows["protocol"] == "ruscio2025",
    # of random weights the unit is the initialisation
    "null_tests": lambda rows: (
        (rows["kind"] == "row_permutation") & ~rows["metric"].isin([*BY_TEST, *CONSTANTS])
    ),
    "layer_tests": lambda rows: ~rows["metric"].isin([*BY_TEST, *CONSTANTS]),
    # the sinks are those of the test, and controls are drawn near the keys that they stand for
    "ablation": lambda rows: rows["keys"] == "first",
    "baselines": lambda rows: ~rows["metric"].isin(BY_TEST),
}
#: Tables whose columns `BY_TEST` are of another rule in the exact protocol.
OF_HEADS = ("heads", "head_means", "layers", "heads_variants", "layers_variants")


def of_rules(results):
    """Return what another rule decides since the runs were stored, as tables with their keys."""
    tables = {}
    for name in results.tables():
        rows = results.table(name)
        if name in RULES:
            tables[name] = rows[~RULES[name](rows)]
        elif name in OF_HEADS:
            columns = [*results.key_columns(name), *rows.columns.intersection(BY_TEST)]
            tables[name] = rows.loc[rows["protocol"] == "exact", columns]
        elif name == "fisher":
            tables[name] = rows[[*results.key_columns(name), "trace_sampled"]]
    return {name: rows.reset_index(drop=True) for name, rows in tables.items()}


def written(tables, file, metadata):
    """Write tables of Arrow as one small file that says what made them."""
    columns = {}
    for name, table in tables.items():
        rows = table.replace_schema_metadata().combine_chunks()
        structs = rows.to_struct_array()
        structs = structs.combine_chunks() if isinstance(structs, pa.ChunkedArray) else structs
        columns[name] = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), structs)
    metadata = {"instructions": _isa.live(), "torch": torch.__version__, **metadata}
    table = pa.table(columns).replace_schema_metadata({"reference": json.dumps(metadata)})
    pq.write_table(table, file, compression="zstd", compression_level=19)


def stored(file):
    """The tables of a file by name, and what made them."""
    table = pq.read_table(file)
    metadata = json.loads(table.schema.metadata[b"reference"])
    tables = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        tables[name] = pa.Table.from_struct_array(column.flatten())
    return tables, metadata


def main(folder, rules=""):
    """Write every run, or what another rule decides in one of them."""
    for run in ["sinks-tiny"] if rules else RUNS:
        with tempfile.TemporaryDirectory() as inner:
            home = Path(inner)
            results, metadata = run_reference(run, home), {"arithmetic": arithmetic(run, home)}
            if rules:
                commit = ["git", "-C", str(FOLDER), "rev-parse", "HEAD"]
                metadata["commit"] = subprocess.run(
                    commit, capture_output=True, text=True, check=True
                ).stdout.strip()
                tables = {name: pa.Table.from_pandas(rows) for name, rows in of_rules(results).items()}
            else:
                tables = {name: results.arrow(name) for name in results.tables()}
            written(tables, Path(folder) / f"{run}{'-rules' if rules else ''}.parquet", metadata)
            print(run, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
