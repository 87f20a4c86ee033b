# SPDX-License-Identifier: MIT
"""Times every measure of the sink study on an accelerator, where its tensors live.

    python benchmarks/devices.py [--quick] [--sizes 128,512] [--json benchmarks/results/devices.json]

Maps [32, n, n] in float32 lie on the device. Each measure is timed there, against (a) `maps.cpu()` and the
compiled core on all its threads, and (b) the forward pass of a layer of an 8-billion-parameter
shape over n tokens in bfloat16. Answers are compared first. Row measures are also given as a share of the
device's memory bandwidth, counting one read of the maps. Then come the measures from queries and keys against
the flash attention of the same layer, and the measures with their gradients. Without an accelerator the
script says so and ends with exit status 3.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import attnscope as asc

HEADS, KEY_HEADS, WIDTH, HIDDEN, FEED_FORWARD = 32, 8, 128, 4096, 14336
ROW_MEASURES = ("incoming_attention", "attention_entropy", "sink_share", "top_mass", "fused rows and columns")
#: Whole spectra are timed up to this size; beyond it one call takes longer than all other rows.
LARGEST_SPECTRUM = 512
#: The exact analysis of a sink study without the bars.
ANALYSIS = (
    "attention_entropy",
    "fiedler_value",
    "geometric_semantic_alignment",
    "head_divergence",
    "incoming_attention",
    "local_global_ratio",
    "participation_ratio",
    "sink_share",
    "sink_test",
    "top_mass",
)


def seconds(call: Callable[[], Any], least: float, device: str) -> float:
    """Return the median time of a call, the device's queue included."""
    call()
    times = []
    end = time.perf_counter() + least
    while not times or time.perf_counter() < end:
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - start)
        if len(times) >= 200:
            break
    return statistics.median(times)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def bandwidth(device: str, least: float) -> float:
    """Return bytes a second of a copy within the device, read and written bytes together."""
    source = torch.rand(1 << 28, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), least, device)


def causal_maps(n: int, device: str) -> torch.Tensor:
    """Return attention of random logits with a first key that half of the heads prefer, [32, n, n]."""
    generator = torch.Generator(device="cpu").manual_seed(n)
    logits = 2 * torch.randn(HEADS, n, n, generator=generator)
    logits[: HEADS // 2, :, 0] += 5
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    return logits.masked_fill_(hidden, -torch.inf).softmax(-1).to(device)


class Layer(torch.nn.Module):
    """A decoder layer of the shape of an 8-billion-parameter Llama."""

    def __init__(self) -> None:
        super().__init__()
        linear = lambda inputs, outputs: torch.nn.Linear(inputs, outputs, bias=False)  # noqa: E731
        self.query, self.output = linear(HIDDEN, HEADS * WIDTH), linear(HEADS * WIDTH, HIDDEN)
        self.key, self.value = linear(HIDDEN, KEY_HEADS * WIDTH), linear(HIDDEN, KEY_HEADS * WIDTH)
        self.gate, self.up = linear(HIDDEN, FEED_FORWARD), linear(HIDDEN, FEED_FORWARD)
        self.down = linear(FEED_FORWARD, HIDDEN)

    def attention(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q = self.query(states).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        k = self.key(states).unflatten(-1, (KEY_HEADS, WIDTH)).transpose(1, 2)
        v = self.value(states).unflatten(-1, (KEY_HEADS, WIDTH)).transpose(1, 2)
        return q, k, v

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attention(states)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        states = states + self.output(mixed.transpose(1, 2).flatten(2))
        return states + self.down(torch.nn.functional.silu(self.gate(states)) * self.up(states))


def measures(maps: torch.Tensor, states: torch.Tensor) -> dict[str, Callable[[torch.Tensor], Any]]:
    """Return what is timed, by name; each takes the maps on the device or on the CPU."""
    on = {"cpu": states.cpu(), maps.device.type: states}
    return {
        "incoming_attention": asc.incoming_attention,
        "attention_entropy": asc.attention_entropy,
        "sink_share": asc.sink_share,
        "top_mass": asc.top_mass,
        "fused rows and columns": lambda maps: asc.measure(
            maps, ["incoming_attention", "attention_entropy", "sink_share", "top_mass"]
        ),
        "sink_test": asc.sink_test,
        "local_global_ratio": asc.local_global_ratio,
        "head_divergence": asc.head_divergence,
        "geometric_semantic_alignment": lambda maps: asc.geometric_semantic_alignment(
            maps, on[maps.device.type]
        ),
        "participation_ratio": asc.participation_ratio,
        "fiedler_value": asc.fiedler_value,
        "laplacian_eigenvalues": asc.laplacian_eigenvalues,
        "singular_values": asc.singular_values,
        "power_spectrum": asc.power_spectrum,
        "spectral_uncertainty": asc.spectral_uncertainty,
        "wavelet_transform": asc.wavelet_transform,
        "bars of components": lambda maps: asc.persistence(maps, max_dimension=0).death,
    }


def analysis(maps: torch.Tensor, states: torch.Tensor) -> Any:
    """Measure everything of ANALYSIS in one call."""
    return asc.measure(maps, {name: {} for name in ANALYSIS}, states=states)


def largest_difference(left: Any, right: Any) -> float:
    """Return the largest difference of two results, relative to 1 + their size."""
    if isinstance(left, dict):
        return max(largest_difference(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return max(largest_difference(*pair) for pair in zip(left, right, strict=True))
    if left is None:
        return 0.0
    left, right = left.cpu().double(), right.cpu().double()
    if not torch.equal(left.isnan(), right.isnan()):
        return float("inf")
    apart = torch.where(left == right, 0.0, (left - right).abs() / (1 + left.abs()))
    return float(apart.nan_to_num(0.0).max()) if apart.numel() else 0.0


def lazy_rows(layer: Layer, lengths: str, least: float, device: str) -> list[dict[str, Any]]:
    """Time measures from queries and keys against the flash attention of the same layer, in bfloat16."""
    from attnscope.devices.lazy_attention import key_measures, row_measures

    rows = []
    print("\nfrom queries and keys, as a share of scaled_dot_product_attention on the same tensors")
    for n in map(int, lengths.split(",")):
        with torch.no_grad():
            q, k, v = layer.attention(torch.randn(1, n, HIDDEN, device=device, dtype=torch.bfloat16))
        attend = torch.nn.functional.scaled_dot_product_attention

        def run_both() -> Any:
            result = row_measures(q, k)  # noqa: B023
            return key_measures(q, k, result.log_z)  # noqa: B023

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run_both()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        peer = seconds(lambda: attend(q, k, v, is_causal=True, enable_gqa=True), least, device)  # noqa: B023
        row: dict[str, Any] = {
            "n": n,
            "attention (ms)": 1e3 * peer,
            "row measures": seconds(lambda: row_measures(q, k), least, device) / peer,  # noqa: B023
            "entropy alone": seconds(lambda: row_measures(q, k, ["entropy"]), least, device) / peer,  # noqa: B023
            "rows and incoming attention": seconds(run_both, least, device) / peer,
            "peak memory (MB)": peak / 1e6,
        }
        rows.append(row)
        print("  " + "  ".join(f"{name} {value:.3g}" for name, value in row.items()), flush=True)
    return rows


def gradient_rows(sizes: str, least: float, device: str) -> list[dict[str, Any]]:
    """Time a measure of maps that require a gradient, forward and back, against the forward pass alone."""
    rows = []
    print("\ngradients: forward and back, as a multiple of the forward pass alone")
    for n in map(int, sizes.split(",")):
        maps = causal_maps(n, device)
        leaf = maps.clone().requires_grad_()
        functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "attention_entropy": asc.attention_entropy,
            "sink_share": lambda maps: asc.sink_share(maps).share,
            "head_divergence": asc.head_divergence,
            "participation_ratio": asc.participation_ratio,
            "fiedler_value": asc.fiedler_value,
        }
        for name, function in functions.items():
            if n > LARGEST_SPECTRUM and name == "fiedler_value":
                continue
            forward = seconds(lambda: function(maps), least, device)  # noqa: B023
            back = seconds(
                lambda: torch.autograd.grad(function(leaf).sum(), leaf),  # noqa: B023
                least,
                device,
            )
            row = {"n": n, "measure": name, "forward (ms)": 1e3 * forward, "and back": back / forward}
            rows.append(row)
            print(
                f"  n {n:5d}  {name:20s} {row['forward (ms)']:8.3f} ms  {row['and back']:6.2f}x", flush=True
            )
    return rows


def read_options() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "none")
    parser.add_argument("--sizes", default="128,512,1024,2048")
    parser.add_argument(
        "--lengths", default="512,4096,16384,32768", help="tokens of the measures from q and k"
    )
    parser.add_argument("--gradient-sizes", default="512", help="tokens of the maps with a gradient")
    parser.add_argument("--quick", action="store_true", help="less time for each row")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "devices.json")
    return parser.parse_args()


def machine_facts(device: str, peak: float) -> dict[str, Any]:
    """Return what a reader must know to judge the numbers."""
    return {
        "card": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu threads": torch.get_num_threads(),
        "attnscope": asc.__version__,
        "bandwidth (GB/s)": round(peak / 1e9),
    }


def rows_of_size(n: int, layer: Layer, least: float, peak: float, device: str) -> list[dict[str, Any]]:
    """Time every measure of maps of n tokens on the device, on a copy and against the layer."""
    maps = causal_maps(n, device)
    states = torch.randn(HEADS, n, WIDTH, device=device)
    tokens = torch.randn(1, n, HIDDEN, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        forward = seconds(lambda: layer(tokens), least, device)
    print(f"\nn = {n}: forward pass of the layer {1e3 * forward:.3f} ms, maps {maps.nbytes / 1e6:.0f} MB")
    calls = {**measures(maps, states), "whole analysis": lambda maps: analysis(maps, states.to(maps.device))}
    rows = []
    for name, call in calls.items():
        if n > LARGEST_SPECTRUM and name in ("laplacian_eigenvalues", "singular_values"):
            continue
        difference = largest_difference(call(maps), call(maps.cpu()))
        on_device = seconds(lambda: call(maps), least, device)  # noqa: B023
        copied = seconds(lambda: call(maps.to("cpu")), least / 3, device)  # noqa: B023
        rows.append(
            {
                "n": n,
                "measure": name,
                "ms": 1e3 * on_device,
                "ms copied to the CPU": 1e3 * copied,
                "faster than copying": copied / on_device,
                "of the forward pass": on_device / forward,
                "of the bandwidth": maps.nbytes / on_device / peak if name in ROW_MEASURES else None,
                "largest difference": difference,
            }
        )
        print_row(rows[-1])
    return rows


def print_row(row: dict[str, Any]) -> None:
    """Print a row of the measures in one line."""
    bandwidth_share = row["of the bandwidth"]
    share = "" if bandwidth_share is None else f"  {100 * bandwidth_share:.0f} % of bandwidth"
    print(
        f"  {row['measure']:30s} {row['ms']:9.3f} ms  {row['faster than copying']:7.1f}x copying  "
        f"{row['of the forward pass']:7.2f} of forward  difference {row['largest difference']:.0e}{share}",
        flush=True,
    )


def main() -> int:
    options = read_options()
    device = options.device
    if device == "none":
        print("no accelerator: nothing was measured")
        return 3
    least = 0.05 if options.quick else 0.3
    peak = bandwidth(device, least)
    report: dict[str, Any] = {"facts": machine_facts(device, peak), "rows": []}
    print(report["facts"], flush=True)

    def write() -> None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")

    torch.manual_seed(0)
    layer = Layer().to(device, torch.bfloat16)
    for n in map(int, options.sizes.split(",")):
        report["rows"] += rows_of_size(n, layer, least, peak, device)
        write()
    if device == "cuda":
        report["from queries and keys"] = lazy_rows(layer, options.lengths, least, device)
    report["gradients"] = gradient_rows(options.gradient_sizes, least, device)
    write()
    print("\nmeasured where:", asc.devices.measured_where())
    for row in report["rows"]:
        if row["faster than copying"] < 1:
            slower = f"{1 / row['faster than copying']:.1f}x the time of copying to the CPU"
            print(f"below target: {row['measure']} at n = {row['n']}: {slower}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
