# SPDX-License-Identifier: MIT
"""The study's memory does not grow with the number of texts: only sums are kept."""

import json
import subprocess
import sys

import pytest

from folders import model_folder, sentences
from position_study import settings

SCRIPT = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import attnscope as asc
from attnscope.engine.run_study import run

def held(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

study = asc.Study(**json.loads(sys.argv[1]))
import transformers, pandas, scipy.stats, pyarrow
from transformers import AutoModelForCausalLM
AutoModelForCausalLM.from_pretrained(study.models[0].path)
before = held("VmRSS")
run(study, progress=False)
print(json.dumps({"before": before, "peak": held("VmHWM")}))
"""


@pytest.mark.slow
def test_256_texts_need_at_most_half_as_much_again_as_32(tmp_path):
    folder = model_folder(tmp_path / "m", num_hidden_layers=3)
    texts = sentences(tmp_path / "texts.txt", 1500)
    sizes_by_count = {}
    for count in (32, 256):
        study = settings(
            folder,
            texts,
            tmp_path,
            name=str(count),
            samples=count,
            block=16,
            groups=8,
            nulls=[],
            arms=["no_bos", "zero", "control_1"],
        ).to_dict()
        study["max_tokens"] = 32
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps(study)], capture_output=True, text=True, check=True
        )
        sizes_by_count[count] = json.loads(done.stdout.splitlines()[-1])
    print(
        {
            count: {name: f"{size / 1e6:.0f} MB" for name, size in sizes.items()}
            for count, sizes in sizes_by_count.items()
        }
    )
    assert sizes_by_count[256]["peak"] <= 1.5 * sizes_by_count[32]["peak"]
    grown = {count: sizes["peak"] - sizes["before"] for count, sizes in sizes_by_count.items()}
    assert grown[256] <= 1.5 * grown[32]
