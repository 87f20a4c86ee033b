# SPDX-License-Identifier: MIT
"""A study's memory does not grow with the number of layers, and stays below what was announced."""

import json
import subprocess
import sys

import pytest

from folders import sentences, tokenizer
from models import tiny

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
import torch
torch.set_num_threads(1)
from pathlib import Path
from attnscope.studies.config import Study
from attnscope.studies.dry_run import dry_run
from attnscope.studies.engine import run

def peak():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024

model, warm, long, output = sys.argv[1:]
options = {"models": model, "metrics": ["sink_share", "attention_entropy"], "output": output}
run(Study(texts=warm, name="warm", **options), progress=False)
before = peak()
planned = dry_run(Study(texts=long, name="long", **options)) if "plan" in output else None
run(Study(texts=long, name="long", **options), progress=False)
print(json.dumps({"grown": peak() - before, "planned": planned and planned.peak_bytes, "peak": peak()}))
"""


def grown(tmp_path, layers, output):
    folder = tmp_path / f"gpt{layers}"
    tiny("gpt2", n_layer=layers, n_head=12, n_positions=1024).save_pretrained(folder)
    made = tokenizer()
    made.model_max_length = 1024
    made.save_pretrained(folder)
    warm = sentences(tmp_path / "warm.txt", 1)
    long = tmp_path / "long.txt"
    long.write_text(" ".join(["cat sat"] * 511) + "\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(warm), str(long), str(tmp_path / output)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_no_more_than_a_few_layers_are_alive(tmp_path):
    one_layer = 12 * 1023 * 1023 * 4
    deep = grown(tmp_path, 12, "a")["grown"]
    shallow = grown(tmp_path, 3, "b")["grown"]
    print(f"12 layers: {deep / one_layer:.2f} layers' maps, 3 layers: {shallow / one_layer:.2f}")
    assert deep < 4 * one_layer
    assert deep < shallow + one_layer


def test_the_announced_peak_holds(tmp_path):
    found = grown(tmp_path, 3, "plan")
    print(f"announced {found['planned'] / 1e6:.0f} MB, reached {found['peak'] / 1e6:.0f} MB")
    assert found["peak"] <= 1.1 * found["planned"]
