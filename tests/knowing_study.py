# SPDX-License-Identifier: MIT
"""A model that reads letters, a few of the packaged questions, and settings of a small run of their study."""

import csv
from pathlib import Path

import attnscope as asc
from attnscope.engine.planning import make_plan
from attnscope.studies.hallucination_geometry.prompts import make
from models import tiny

QUICK = {
    "permutations": 99,
    "random_weights": 2,
    "null_draws": 2,
    "dimension_k": [5, 10],
    "readout_k": [4, 16],
    "sensitivity": {"prompts": 2, "directions": 2, "refusal": ["u", "n"]},
    "answers": {"tokens": 3},
    "interventions": {
        "depths": [0.5],
        "prompts": 3,
        "controls": 1,
        "tokens": 3,
        "gains": [0, 5, 50],
        "alphas": [1],
        "relative_alphas": [0.1],
        "lambdas": [1],
    },
}
FAST = {"sensitivity": False, "answers": False, "interventions": False, "lens": False, "nulls": []}


def letters():
    """A tokenizer with a token for each letter."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<s>", "</s>", "[UNK]", *(chr(code) for code in range(32, 127)), "\n"]
    word_tokenizer = Tokenizer(
        models.WordLevel({name: at for at, name in enumerate(names)}, unk_token="[UNK]")
    )
    word_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    word_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="[UNK]",
        model_max_length=128,
    )


def model_folder(path, name="llama", **changes):
    """Saves a tiny model that reads letters; returns the folder."""
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2} if name == "llama" else {}
    tiny(name, vocab_size=100, sharpness=1.0, **{**small, **changes}).save_pretrained(path)
    letters().save_pretrained(path)
    return Path(path)


def questions(path, *, pairs=4, slots=5, change=None):
    """The first slots of some pairs of templates; returns the file."""
    with make.FILE.open(encoding="utf-8", newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if int(row["fold"]) < pairs and int(row["pair"][-2:]) < slots
        ]
    rows = [row if change is None else change(row) for row in rows]
    return written(path, [row for row in rows if row is not None])


def written(path, rows):
    """A CSV file of rows; returns it."""
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return Path(path)


def settings(folder, texts, output, *, name="a", block=32, seed=0, protocols=("exact",), **options):
    """Of a small run."""
    return asc.Study(
        study="hallucination_geometry",
        models=str(folder),
        texts={"path": str(texts), "column": "question"},
        output=str(output),
        block=block,
        seed=seed,
        name=name,
        protocols=list(protocols),
        options={**QUICK, **options},
    )


def planned(folder, texts, output, **options):
    """What a small run will do."""
    return make_plan(settings(folder, texts, output, **options))
