# SPDX-License-Identifier: MIT
"""Public functions leave the settings that a process shares with the rest of a program as they were."""

import subprocess
import sys
import textwrap

STATE = """
import logging, os, signal, sys, warnings
import matplotlib, numpy, scipy.stats, torch, transformers

matplotlib.use("Agg")
import matplotlib.pyplot

def state():
    return {
        "environment": dict(os.environ),
        "path": list(sys.path),
        "filters": list(map(str, warnings.filters)),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "hook": sys.excepthook,
        "handlers": list(logging.getLogger().handlers),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "torch generator": torch.get_rng_state().tolist(),
        "numpy generator": str(numpy.random.get_state()),
        "numpy errors": numpy.geterr(),
        "drawing": dict(matplotlib.rcParams),
        "figures": matplotlib.pyplot.get_fignums(),
    }
"""
CALLS = """
import attnscope as asc
from attnscope import statistics
from attnscope.demo.texts import byte_tokenizer
from attnscope.protocols import ruscio2025

config = transformers.LlamaConfig(
    vocab_size=257, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
)
torch.manual_seed(0)
model, tokenizer = transformers.LlamaForCausalLM(config).eval(), byte_tokenizer()
texts = ["the cat sat on the mat", "a dog", "rain fell all night", "who knows"]
calls = {
    "measure": lambda: asc.measure(torch.eye(4)[None], ["fiedler_value", "persistence", "attention_entropy"]),
    "bulk": lambda: ruscio2025.bulk(torch.eye(9)),
    "analyze": lambda: asc.analyze(model, texts, ["sink_share", "fiedler_value"], tokenizer=tokenizer),
    "features": lambda: asc.features(model, texts, ["sink_share"], tokenizer=tokenizer),
    "view": lambda: asc.view(model, texts[0], tokenizer=tokenizer),
    "capture": lambda: asc.verify(model),
    "statistics": lambda: statistics.correlation(range(20), [7 * i % 20 for i in range(20)]),
}
for name, call in calls.items():
    before = state()
    call()
    after = state()
    assert before.keys() == after.keys()
    for kind in before:
        assert before[kind] == after[kind], (name, kind, before[kind], after[kind])
print("as it was")
"""


def test_public_functions_leave_no_trace_in_the_process():
    """Nor in the environment, which every process gets that is started afterwards."""
    code = textwrap.dedent(STATE + CALLS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip().endswith("as it was"), done.stdout + done.stderr
