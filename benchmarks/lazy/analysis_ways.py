# SPDX-License-Identifier: MIT
"""Time and memory of `analyze` and of the sink study, from queries and keys and from maps.

Both measure the same columns of rows and keys of a small Llama-like model. `analyze` takes queries and keys
wherever nothing needs a map; the peer `maps` has that turned off, which leaves how it was done before. Times
are of whole calls, model included; memory is what a process of its own takes at most above what it held
before the call.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attnscope as asc
from attnscope.analysis.recipe import Recipe
from attnscope.demo.texts import byte_tokenizer, documentation
from harness import Benchmark

METRICS = ("attention_entropy", "incoming_attention", "sink_share", "sink_rate", "sink_test", "top_mass")
#: Tokens of each text, and how many texts one call measures.
SIZES = {64: 16, 128: 16, 512: 4, 2048: 1}
HEADS, LAYERS = 8, 2
WAYS = ("queries and keys", "maps")


@contextmanager
def measured_from(way: str) -> Iterator[None]:
    """Let `analyze` measure from maps, or from what it chooses."""
    usual = Recipe.needs_no_map
    if way == "maps":
        Recipe.needs_no_map = False  # type: ignore[assignment]
    try:
        yield
    finally:
        Recipe.needs_no_map = usual  # type: ignore[method-assign]


def write_model(folder: Path) -> Path:
    """Write a model with random weights and a tokenizer of bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 32, "vocab_size": 257}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 4, "num_hidden_layers": LAYERS}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=4096))
    model.save_pretrained(folder)
    byte_tokenizer(4096).save_pretrained(folder)
    return folder


def write_texts(folder: Path, n: int, count: int) -> Path:
    """Write texts of n tokens, one a line."""
    book = " ".join(documentation()).replace("\n", " ").encode("ascii", "replace").decode()
    path = folder / f"texts_{n}.txt"
    path.write_text("\n".join((book * 3)[1500 * place :][: n - 1] for place in range(count)))
    return path


def analyze(model: Any, ids: list[list[int]], way: str) -> Any:
    """Return the results of one call of `analyze`."""
    with measured_from(way), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without a value, as in maps
        return asc.analyze(model, ids, METRICS, progress=False)


def run_study(model: Path, texts: Path, way: str) -> Any:
    """Return the results of one run of the sink study."""
    with tempfile.TemporaryDirectory() as folder:
        results = asc.run(
            "attention_sinks",
            models=str(model),
            texts=str(texts),
            output=f"{folder}/run",
            progress=False,
            protocols="exact",
            metrics=[name for name in METRICS if name != "incoming_attention"],
            attention="maps" if way == "maps" else "auto",
        )
        return {name: results.table(name) for name in ("heads", "head_means")}


def agree(peer: str, ours: Any, theirs: Any) -> None:
    """Raise if a number of heads differs between the two ways."""
    tables = [
        answer if isinstance(answer, dict) else {"heads": answer.table("heads")} for answer in (ours, theirs)
    ]
    for name in tables[0]:
        rows = [
            table[name].sort_values([*({"sample", "layer", "head"} & {*table[name]})]) for table in tables
        ]
        for column in rows[1].select_dtypes("number"):
            numbers = (table[column].astype(float).to_numpy() for table in rows)
            np.testing.assert_allclose(*numbers, rtol=1e-3, atol=1e-4, err_msg=f"{name}.{column}")


MEMORY = """
import json, pathlib, sys
sys.path[:0] = json.loads(sys.argv[1])
import torch
torch.set_num_threads(1)
from lazy import analysis_ways
def megabytes(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024
call = analysis_ways.call_of(*json.loads(sys.argv[2]))
short = analysis_ways.call_of(*json.loads(sys.argv[3]))
short()
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
before = megabytes("VmRSS")
call()
print(megabytes("VmHWM") - before)
"""


def call_of(kind: str, model: str, texts: str, n: int, way: str) -> Any:
    """Return a call of `analyze` or of the study in one of the two ways."""
    if kind == "study":
        return lambda: run_study(Path(model), Path(texts), way)
    from transformers import LlamaForCausalLM

    loaded = LlamaForCausalLM.from_pretrained(model).eval()
    generator = torch.Generator().manual_seed(n)
    ids = torch.randint(0, 257, (SIZES[n], n), generator=generator).tolist()
    return lambda: analyze(loaded, ids, way)


def measure_memory(arguments: tuple[str, str, str, int, str], short: tuple[str, str, str, int, str]) -> float:
    """Return the megabytes that a call takes in a process of its own, behind one of short texts."""
    paths = json.dumps([str(Path(__file__).resolve().parents[1])])
    command = [sys.executable, "-c", MEMORY, paths, json.dumps(arguments), json.dumps(short)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(finished.stdout.splitlines()[-1])


def main() -> None:
    """Compare both ways at each size."""
    benchmark = Benchmark("analysis_ways", __doc__ or "", peers_compete=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = str(write_model(folder / "model"))
        texts = {n: str(write_texts(folder, n, count)) for n, count in SIZES.items()}
        for kind in ("analyze", "study"):
            for n, count in SIZES.items():
                if not benchmark.wants(title := f"{kind} n={n}"):
                    continue
                arguments = {way: (kind, model, texts[n], n, way) for way in WAYS}
                short = {way: (kind, model, texts[64], 64, way) for way in WAYS}
                memory = {way: round(measure_memory(arguments[way], short[way]), 1) for way in WAYS}
                calls = {way: call_of(*arguments[way]) for way in WAYS}
                benchmark.compare(
                    title,
                    count * LAYERS * HEADS,
                    calls["queries and keys"],
                    {"maps": calls["maps"]},
                    agree=agree,
                    target=1.0,
                    facts={"n": n, "texts": count, "megabytes": memory},
                )
                print(f"    megabytes above the start: {memory}", flush=True)
    benchmark.finish()


if __name__ == "__main__":
    main()
