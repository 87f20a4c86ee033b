# SPDX-License-Identifier: MIT
"""Workspaces are reused over a batch: ten thousand maps need no more memory than five hundred."""

import json
import subprocess
import sys

SCRIPT = """
import json, resource, torch, attnscope as asc
torch.set_num_threads(2)
one = torch.softmax(torch.randn(24, 24, generator=torch.Generator().manual_seed(0)), -1).tril()
metrics = {
    "fiedler_value": asc.fiedler_value,
    "singular_values": asc.singular_values,
    "marchenko_pastur_deviation": asc.marchenko_pastur_deviation,
    "participation_ratio": asc.participation_ratio,
    "attention_entropy": asc.attention_entropy,
    "sink_tokens": asc.sink_tokens,
    "top_mass": asc.top_mass,
    "graph_statistics": lambda a: asc.graph_statistics(a, [0.02, 0.1]).components,
    "betti_numbers": lambda a: asc.betti_numbers(a, [0.05]),
}
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def all_of(count):
    # One map seen `count` times: the batch itself takes no memory.
    for name, metric in metrics.items():
        metric(one.expand(count, 24, 24))
all_of(500)
before = peak()
growth = {}
for name, metric in metrics.items():
    start = peak()
    result = metric(one.expand(10_000, 24, 24))
    growth[name] = peak() - start - 3 * result.numel() * result.element_size()
print(json.dumps({"total": peak() - before, "growth": growth}))
"""


def test_ten_thousand_maps_need_no_more_memory_than_five_hundred():
    run = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    found = json.loads(run.stdout)
    # graph_statistics returns twelve fields of 10,000 x 2; everything else is smaller.
    assert max(found["growth"].values()) < 6e6, found
