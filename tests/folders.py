# SPDX-License-Identifier: MIT
"""Folders as a study reads them: tiny random weights, a tokenizer, checkpoint series; and small runs."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from models import VOCABULARY, tiny

WORDS = [
    *("the", "cat", "sat", "on", "a", "mat", "while", "rain", "fell", "over", "old", "town", "and", "nobody"),
    *("saw", "how", "it", "went", "home", "again", "before", "night", "came", "down", "with", "wind", "from"),
    *("sea", "then", "all", "was", "still"),
]
#: Of the small runs of the sink study.
THRESHOLDS = [0.05, "2/n"]


def tokenizer(bos=True):
    """Words to ids, `[UNK]` for the others; BOS in front when asked for."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "[UNK]": 3}
    vocabulary |= {word: 4 + at for at, word in enumerate(dict.fromkeys(WORDS))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if bos:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    special = {"bos_token": "<s>", "eos_token": "</s>"} if bos else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="[UNK]", model_max_length=64, **special
    )


def model_folder(path, name="llama", *, seed=0, bos=True, **changes):
    """Saves a tiny model and its tokenizer; returns the folder."""
    path = Path(path)
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2} if name == "llama" else {}
    tiny(name, seed=seed, **{**small, **changes}).save_pretrained(path)
    tokenizer(bos).save_pretrained(path)
    return path


def series(path, steps=(0, 2, 10), **options):
    """Folders `stepN`, each with other weights."""
    for step in steps:
        model_folder(Path(path) / f"step{step}", seed=step, **options)
    return Path(path)


def sentences(path, count=10, shortest=3):
    """A text file of sentences of growing length; returns the file."""
    lines = [" ".join(WORDS[(at + k) % len(WORDS)] for k in range(shortest + at)) for at in range(count)]
    Path(path).write_text("\n".join(lines) + "\n", "utf-8")
    return Path(path)


def id_lines(path, rows):
    """A JSONL file of token ids; returns the file."""
    assert all(0 <= one < VOCABULARY for row in rows for one in row)
    Path(path).write_text(
        "".join(json.dumps({"token_ids": row, "kind": "made"}) + "\n" for row in rows), "utf-8"
    )
    return Path(path)


def study(tmp_path, model, texts, **options):
    """Settings of the small runs that tests of the engine do."""
    from attnscope.engine.config import Study

    metrics = ["fiedler_value", "laplacian_gap", "graph_statistics"]
    options = {"metrics": metrics, "thresholds": [0.05, "2/n"], "block": 3, **options}
    return Study(models=model, texts=texts, output=str(tmp_path / "runs"), name="a", **options)


def sink_study(output, model, texts, **options):
    """Settings of a small run of the sink study, under both protocols."""
    from attnscope.engine.config import Study

    options = {"thresholds": THRESHOLDS, "block": 4, "protocols": "both", **options}
    return Study(models=str(model), texts=str(texts), output=str(output), name="a", **options)


def with_means(results, table="heads"):
    """The rows of single heads, and behind them those of each layer's head mean as head −1."""
    import pandas as pd

    means = "head_means" if table == "heads" else f"head_mean_{table}"
    return pd.concat([results.table(means).assign(head=-1), results.table(table)], ignore_index=True)


def killed(study, least=3):
    """The folder of a run in a process of one thread that was killed when so many units were stored."""
    code = (
        "import attnscope as asc, torch\ntorch.set_num_threads(1)\n"
        f"asc.run(asc.Study(**{study.to_dict()!r}), progress=False)\n"
    )
    folder = Path(study.output) / study.name
    units = folder / "units"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as process:
        for _ in range(2400):
            done = [one for one in units.iterdir() if not one.name.startswith(".")] if units.is_dir() else []
            if len(done) >= least:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    return folder


def table_bytes(folder):
    """The bytes of every table of a run."""
    return {path.name: path.read_bytes() for path in sorted((Path(folder) / "tables").iterdir())}
