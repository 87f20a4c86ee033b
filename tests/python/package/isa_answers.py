# SPDX-License-Identifier: MIT
"""Every metric of maps of many sizes, full and causal, of four dtypes and ragged lengths, to one file.

Run by test_isa.py under each instruction set: python isa_answers.py FILE.npz
"""

import dataclasses
import sys

import numpy as np
import torch

import attnscope as asc
from attnscope.metrics.requests import metric_names

SIZES = (*range(1, 41), 64, 100, 257)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
OPTIONS = {
    "graph_statistics": {"thresholds": [0.02, 0.05, 0.1]},
    "betti_numbers": {"thresholds": [0.02, 0.05, 0.1]},
    "betti_curve": {"scales": [0.5, 0.9, 0.95, 1.0]},
    "top_mass": {"k": 1},
    "sink_removal": {"keys": [0]},
    "morlet_scalogram": {"scales": [2.0, 5.0]},
}


def maps(n, causal, dtype):
    """Two samples of three heads, the first a token or more longer than the second."""
    generator = torch.Generator().manual_seed(1000 * n + causal)
    logits = 2 * torch.randn(2, 3, n, n, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([[n], [max(1, n - 1 - n // 7)]])
    token = torch.arange(n)
    hidden = (token >= lengths[:, :, None, None]).expand(2, 3, n, n)
    if causal:
        hidden = hidden | (token[None, :] > token[:, None])
    states = torch.randn(2, n, 5, generator=generator, dtype=torch.float64)
    return torch.softmax(logits.masked_fill(hidden, -1e300), -1).to(dtype), lengths, states


def parts(result):
    """The arrays of a result, by name."""
    if isinstance(result, torch.Tensor):
        return {"": result.numpy()}
    if hasattr(result, "_asdict"):
        named = result._asdict()
    elif dataclasses.is_dataclass(result):
        named = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    else:
        named = {name: getattr(result, name) for name in ("birth", "death", "dimension", "offsets")}
    return {
        f".{name}{below}": array
        for name, value in named.items()
        if isinstance(value, torch.Tensor) or hasattr(value, "_asdict")
        for below, array in parts(value).items()
    }


def answers(n, causal, dtype):
    """The arrays of every metric of the maps of one size, by metric and part."""
    attention, lengths, states = maps(n, causal, dtype)
    head = -(-n // 2)
    shared = states[:, None]
    more = {
        "span_attention": {"spans": torch.tensor([0, 1])},
        "geometric_semantic_alignment": {"states": shared},
        "reference_influence": {"states": shared, "reference": torch.arange(n) % 3 == 0},
        "entropy_magnitude_correlation": {"before": shared, "after": shared.flip(-1)},
        "scale_sensitivity": {
            "prefix": attention[..., :head, :head],
            "prefix_lengths": lengths.clamp(max=head),
        },
    }
    asked = {name: {**OPTIONS, **more}.get(name, {}) for name in metric_names()}
    found = asc.measure(attention, asked, lengths=lengths)
    return {f"{name}{part}": array for name, one in found.items() for part, array in parts(one).items()}


def main(path):
    found = {}
    for n in SIZES:
        for causal in (False, True):
            for dtype in DTYPES:
                kind = f"{'causal' if causal else 'full'} {str(dtype).removeprefix('torch.')}"
                found |= {f"{name} {n} {kind}": array for name, array in answers(n, causal, dtype).items()}
    np.savez(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])
