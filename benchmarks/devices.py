# SPDX-License-Identifier: MIT
"""Times every measure of the sink study on an accelerator, where its tensors live.

    python benchmarks/devices.py [--quick] [--sizes 128,512] [--json benchmarks/results/devices.json]
    python benchmarks/devices.py --dry-run

Maps [32, n, n] in float32 lie on the device. Each measure is timed there, against (a) `maps.cpu()` and the
compiled core on all its threads, and (b) the forward pass of a layer of an 8-billion-parameter
shape over n tokens in bfloat16. Answers are compared first. Row measures are also given as a share of the
device's memory bandwidth, counting one read of the maps. Then come the last rows of maps, clouds of states,
the decompositions on the device whatever the package would choose, from which
`attnscope.devices.CUDA_IS_SLOWER` is read, the measures from queries and keys against the flash attention of
the same layer, and the measures with their gradients. Without an accelerator the script says so and ends with
exit status 3. A dry run does all but the flash attention on small CPU tensors, as torch operations: it shows
that the script works, and its times say nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

import attnscope as asc
from attnscope.devices import placement


class Shape(NamedTuple):
    """The shape of a layer, and the queries of the rectangles that are measured beside its maps."""

    heads: int
    key_heads: int
    width: int
    hidden: int
    feed_forward: int
    queries: int


#: Of an 8-billion-parameter Llama, and of a dry run.
FULL, SMALL = Shape(32, 8, 128, 4096, 14336, 64), Shape(4, 2, 16, 64, 128, 8)
#: Layers whose residual stream is measured as clouds, and the tokens up to which it is.
LAYERS, LARGEST_CLOUD = 8, 512
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
    elif device == "mps":
        torch.mps.synchronize()


def bandwidth(device: str, least: float, numbers: int) -> float:
    """Return bytes a second of a copy within the device, read and written bytes together."""
    source = torch.rand(numbers, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), least, device)


def causal_maps(n: int, device: str, heads: int) -> torch.Tensor:
    """Return attention of random logits with a first key that half of the heads prefer, [heads, n, n]."""
    generator = torch.Generator(device="cpu").manual_seed(n)
    logits = 2 * torch.randn(heads, n, n, generator=generator)
    logits[: heads // 2, :, 0] += 5
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    return logits.masked_fill_(hidden, -torch.inf).softmax(-1).to(device)


class Layer(torch.nn.Module):
    """A decoder layer of the architecture of Llama."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        linear = lambda inputs, outputs: torch.nn.Linear(inputs, outputs, bias=False)  # noqa: E731
        wide, narrow = shape.heads * shape.width, shape.key_heads * shape.width
        self.query, self.output = linear(shape.hidden, wide), linear(wide, shape.hidden)
        self.key, self.value = linear(shape.hidden, narrow), linear(shape.hidden, narrow)
        self.gate, self.up = (linear(shape.hidden, shape.feed_forward) for _ in range(2))
        self.down = linear(shape.feed_forward, shape.hidden)

    def attention(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        width = self.shape.width
        q = self.query(states).unflatten(-1, (self.shape.heads, width)).transpose(1, 2)
        k = self.key(states).unflatten(-1, (self.shape.key_heads, width)).transpose(1, 2)
        v = self.value(states).unflatten(-1, (self.shape.key_heads, width)).transpose(1, 2)
        return q, k, v

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attention(states)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        states = states + self.output(mixed.transpose(1, 2).flatten(2))
        return states + self.down(torch.nn.functional.silu(self.gate(states)) * self.up(states))


def measures(maps: torch.Tensor, states: torch.Tensor) -> dict[str, Callable[[torch.Tensor], Any]]:
    """Return what is timed, by name; each takes the maps on the device or on the CPU."""
    on = {maps.device.type: states, "cpu": states.cpu()}
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


def measures_of_rectangles(states: torch.Tensor) -> dict[str, Callable[[torch.Tensor], Any]]:
    """Return what is timed of the last rows of maps [h, q, k], with states [h, k, d] of their keys."""
    marked = torch.arange(states.shape[-2]) == 0
    return {
        "attention_entropy": asc.attention_entropy,
        "incoming_attention": asc.incoming_attention,
        "sink_share": asc.sink_share,
        "sink_test": asc.sink_test,
        "head_divergence": asc.head_divergence,
        "span_attention": lambda maps: asc.span_attention(maps, [0, 2]),
        "geometric_semantic_alignment": lambda maps: asc.geometric_semantic_alignment(
            maps, states.to(maps.device)
        ),
        "reference_influence": lambda maps: asc.reference_influence(maps, states.to(maps.device), marked),
        "participation_ratio": asc.participation_ratio,
        "power_spectrum": asc.power_spectrum,
        "spectral_uncertainty": asc.spectral_uncertainty,
    }


def measures_of_clouds() -> dict[str, Callable[[torch.Tensor], Any]]:
    """Return what is timed of the residual streams of some layers [layers, n, d]."""
    return {
        "cka": lambda points: asc.cka(points[:-1], points[1:]),
        "cloud_distances": asc.cloud_distances,
        "cloud_spectrum": asc.cloud_spectrum,
        "log_volume": asc.log_volume,
        "massive_activations": asc.massive_activations,
        "matrix_entropy": asc.matrix_entropy,
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


@contextmanager
def every_size_on_the_device() -> Iterator[None]:
    """Measure on the device inside the block whatever the package would copy because that is faster."""
    table, fewest = dict(placement.CUDA_IS_SLOWER), placement.FEWEST_BYTES
    placement.CUDA_IS_SLOWER.clear()
    placement.FEWEST_BYTES = 0
    try:
        yield
    finally:
        placement.CUDA_IS_SLOWER.update(table)
        placement.FEWEST_BYTES = fewest


def decomposition_rows(sizes: str, shape: Shape, least: float, device: str) -> list[dict[str, Any]]:
    """Time decompositions on the device at every size: the source of the table `CUDA_IS_SLOWER`."""
    rows = []
    print("\ndecompositions on the device, whatever the package chooses")
    for n in map(int, sizes.split(",")):
        maps = causal_maps(n, device, shape.heads)
        calls = {"fiedler_value": asc.fiedler_value}
        if n <= LARGEST_SPECTRUM:
            calls |= {
                "laplacian_eigenvalues": asc.laplacian_eigenvalues,
                "singular_values": asc.singular_values,
            }
        for name, call in calls.items():
            with every_size_on_the_device():
                rows.append(compared(name, call, maps, least, device) | {"n": n})
            print(f"  n {n:5d}  {name:24s} {rows[-1]['faster than copying']:7.2f}x copying", flush=True)
    return rows


def lazy_rows(layer: Layer, lengths: str, least: float, device: str) -> list[dict[str, Any]]:
    """Time measures from queries and keys against the flash attention of the same layer, in bfloat16."""
    from attnscope.devices.lazy.lazy_attention import key_measures, row_measures

    rows = []
    print("\nfrom queries and keys, as a share of scaled_dot_product_attention on the same tensors")
    for n in map(int, lengths.split(",")):
        with torch.no_grad():
            q, k, v = layer.attention(
                torch.randn(1, n, layer.shape.hidden, device=device, dtype=torch.bfloat16)
            )
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


def gradient_rows(sizes: str, shape: Shape, least: float, device: str) -> list[dict[str, Any]]:
    """Time a measure of maps that require a gradient, forward and back, against the forward pass alone."""
    rows = []
    print("\ngradients: forward and back, as a multiple of the forward pass alone")
    for n in map(int, sizes.split(",")):
        maps = causal_maps(n, device, shape.heads)
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
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="small CPU tensors, as torch operations: whether all of it runs",
    )
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


def compared(
    name: str, call: Callable[[torch.Tensor], Any], tensor: torch.Tensor, least: float, device: str
) -> dict[str, Any]:
    """Time a measure of a tensor on its device and on a copy, after the answers were compared."""
    implementation = "torch" if device == "cpu" else "core"

    def on_device() -> Any:
        with asc.devices.use(implementation):
            return call(tensor)

    def copied() -> Any:
        return call(tensor.to("cpu"))

    difference = largest_difference(on_device(), copied())
    device_time, copy_time = seconds(on_device, least, device), seconds(copied, least / 3, device)
    return {
        "measure": name,
        "ms": 1e3 * device_time,
        "ms copied to the CPU": 1e3 * copy_time,
        "faster than copying": copy_time / device_time,
        "largest difference": difference,
    }


def rows_of_size(n: int, layer: Layer, least: float, peak: float, device: str) -> list[dict[str, Any]]:
    """Time every measure of maps of n tokens, of their last rows and of states, against the layer."""
    shape = layer.shape
    maps = causal_maps(n, device, shape.heads)
    states = torch.randn(shape.heads, n, shape.width, device=device)
    tokens = torch.randn(1, n, shape.hidden, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        forward = seconds(lambda: layer(tokens), least, device)
    print(f"\nn = {n}: forward pass of the layer {1e3 * forward:.3f} ms, maps {maps.nbytes / 1e6:.0f} MB")
    analysed = {"whole analysis": lambda maps: analysis(maps, states.to(maps.device))}
    groups = [
        ("maps", maps, {**measures(maps, states), **analysed}),
        ("last rows", maps[:, -min(n, shape.queries) :].contiguous(), measures_of_rectangles(states)),
    ]
    if n <= LARGEST_CLOUD:
        clouds = torch.randn(LAYERS, n, shape.hidden, device=device)
        groups.append(("clouds", clouds, measures_of_clouds()))
    rows = []
    for group, tensor, calls in groups:
        for name, call in calls.items():
            if n > LARGEST_SPECTRUM and name in ("laplacian_eigenvalues", "singular_values"):
                continue
            row = {"n": n, "of": group} | compared(name, call, tensor, least, device)
            row["of the forward pass"] = row["ms"] / 1e3 / forward
            reads = group == "maps" and name in ROW_MEASURES
            row["of the bandwidth"] = tensor.nbytes / (row["ms"] / 1e3) / peak if reads else None
            rows.append(row)
            print_row(row)
    return rows


def print_row(row: dict[str, Any]) -> None:
    """Print a row of the measures in one line."""
    bandwidth_share = row["of the bandwidth"]
    share = "" if bandwidth_share is None else f"  {100 * bandwidth_share:.0f} % of bandwidth"
    times = f"{row['ms']:9.3f} ms  {row['faster than copying']:7.1f}x copying"
    against = f"{row['of the forward pass']:7.2f} of forward"
    difference = f"difference {row['largest difference']:.0e}"
    print(f"  {row['of']:10s} {row['measure']:30s} {times}  {against}  {difference}{share}", flush=True)


def main() -> int:
    options = read_options()
    shape, device = FULL, options.device
    if options.dry_run:
        shape, device = SMALL, "cpu"
        options.sizes, options.gradient_sizes, options.quick = "16,24", "16", True
        options.json = options.json.with_name("devices_dry_run.json")
    if device == "none":
        print("no accelerator: nothing was measured")
        return 3
    least = 0.05 if options.quick else 0.3
    least = 1e-3 if options.dry_run else least
    peak = bandwidth(device, least, 1 << 20 if options.dry_run else 1 << 28)
    report: dict[str, Any] = {"facts": machine_facts(device, peak), "dry run": options.dry_run, "rows": []}
    print(report["facts"], flush=True)

    def write() -> None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")

    torch.manual_seed(0)
    layer = Layer(shape).to(device, torch.bfloat16)
    for n in map(int, options.sizes.split(",")):
        report["rows"] += rows_of_size(n, layer, least, peak, device)
        write()
    report["decompositions"] = decomposition_rows(options.sizes, shape, least, device)
    if device == "cuda":
        report["from queries and keys"] = lazy_rows(layer, options.lengths, least, device)
    report["gradients"] = gradient_rows(options.gradient_sizes, shape, least, device)
    report["measured where"] = asc.devices.measured_where()
    write()
    print("\nmeasured where:", report["measured where"])
    for row in report["rows"] if not options.dry_run else []:
        if row["faster than copying"] < 1:
            slower = f"{1 / row['faster than copying']:.1f}x the time of copying to the CPU"
            print(f"below target: {row['of']}, {row['measure']} at n = {row['n']}: {slower}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
