# SPDX-License-Identifier: MIT
"""The implementation of a measure for a tensor: the core's, or torch operations on the tensor's device."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from attnscope.arguments.host_copies import host_copy, row_major
from attnscope.arguments.unmaterialized import Unmaterialized
from attnscope.devices import slabs
from attnscope.devices.call_counts import count_call
from attnscope.devices.slab import NotOnDevice, has_float64

#: Functions of the core that torch operations compute too, with the module of `attnscope.devices` for each.
MODULES = {
    "attention_entropy": "entropy",
    "cloud_distances": "cloud_distances",
    "far_attention": "sink_test",
    "fiedler_value": "graphs.fiedler",
    "fiedler_vector": "graphs.fiedler",
    "finite_matrices": "validity",
    "geometric_semantic_alignment": "alignment",
    "head_divergence": "divergence",
    "laplacian_eigenvalues": "graphs.laplacian",
    "local_global_ratio": "signals.locality",
    "lookback": "answers.lookback",
    "morlet_scalogram": "signals.wavelet",
    "participation_ratio": "participation_ratio",
    "pattern_share": "pattern_share",
    "persistence": "homology.persistence",
    "power_spectrum": "signals.power_spectrum",
    "prompt_divergence": "answers.prompt_divergence",
    "reference_influence": "reference_influence",
    "singular_values": "singular_values",
    "sink_removal": "divergence",
    "sink_statistics": "sinks",
    "sink_tokens": "sinks",
    "span_attention": "span_attention",
    "spectral_uncertainty": "signals.uncertainty",
    "wavelet_transform": "signals.wavelet",
}

#: Functions of MODULES that take rectangles; those of other functions are copied to the CPU.
TAKES_RECTANGLES = frozenset(
    {
        "attention_entropy",
        "far_attention",
        "geometric_semantic_alignment",
        "head_divergence",
        "local_global_ratio",
        "morlet_scalogram",
        "participation_ratio",
        "power_spectrum",
        "reference_influence",
        "singular_values",
        "sink_removal",
        "sink_statistics",
        "sink_tokens",
        "span_attention",
        "spectral_uncertainty",
        "wavelet_transform",
    }
)

#: Public functions whose maps or points stay on their device, because a function of MODULES or
#: `per_cloud` computes what is large of them.
STAYS_ON_DEVICE = frozenset(
    {
        "attention_entropy",
        "causal_spectrum",
        "cka",
        "cloud_components",
        "cloud_distances",
        "cloud_persistence",
        "cloud_spectrum",
        "effective_rank",
        "entropy_magnitude_correlation",
        "fiedler_value",
        "fiedler_vector",
        "fragmentation",
        "geometric_semantic_alignment",
        "gride",
        "harmonic_distortion",
        "head_divergence",
        "incoming_attention",
        "laplacian_eigenvalues",
        "laplacian_gap",
        "laplacian_shape",
        "local_dimension",
        "local_global_ratio",
        "log_volume",
        "lookback",
        "massive_activations",
        "matrix_entropy",
        "measure",
        "measure_quantities",
        "morlet_scalogram",
        "neighbourhood_overlap",
        "participation_ratio",
        "pattern_share",
        "persistence",
        "power_spectrum",
        "reference_influence",
        "scale_sensitivity",
        "singular_values",
        "sink_position",
        "sink_rate",
        "sink_removal",
        "sink_share",
        "sink_test",
        "sink_tokens",
        "span_attention",
        "spectral_gap",
        "spectral_ratio",
        "spectral_uncertainty",
        "stable_rank",
        "top_mass",
        "two_nn",
        "wavelet_transform",
    }
)

#: Decompositions that a CUDA device does slower than a pinned copy to the CPU and the core there, with the
#: number of tokens up to which that was measured: 32 maps, one H200 against 16 CPU threads, torch 2.11. The
#: rows "decompositions" of `benchmarks/devices.py` measure it again.
CUDA_IS_SLOWER = {"fiedler_value": 128, "laplacian_eigenvalues": 512, "singular_values": 2048}
#: Maps of fewer bytes are copied to the CPU, because launching the operations takes longer than the core
#: does.
FEWEST_BYTES = 4 << 20


#: Raised by torch where a device fails; older versions of torch raise plain errors, which pass as they are.
_DEVICE_FAILURES: tuple[type[Exception], ...] = (
    (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()
)


_TORCH_ON_CPU: ContextVar[bool] = ContextVar("torch operations for CPU tensors", default=False)


@contextmanager
def use(implementation: str) -> Iterator[None]:
    """Choose what measures tensors on the CPU, for the calls inside the `with` block.

    Args:
        implementation: "core", the compiled kernels, which is the default; "torch", the torch operations that
            tensors on an accelerator get.

    Raises:
        ValueError: any other name.

    Example:
        >>> import torch, attnscope as asc
        >>> with asc.devices.use("torch"):
        ...     asc.attention_entropy(torch.full((2, 2), 0.5), base=2)
        tensor([1., 1.], dtype=torch.float64)
    """
    if implementation not in ("core", "torch"):
        raise ValueError(f"use: implementation must be 'core' or 'torch', got {implementation!r}")
    token = _TORCH_ON_CPU.set(implementation == "torch")
    try:
        yield
    finally:
        _TORCH_ON_CPU.reset(token)


def takes_torch_on_cpu() -> bool:
    """Return True inside `use("torch")`."""
    return _TORCH_ON_CPU.get()


def computed_on(
    kernel: Callable[..., Any], tensor: Tensor | Unmaterialized, function: str | None = None
) -> Callable[..., Any]:
    """Return the function that computes `kernel`, a function of the core, for this tensor.

    It takes the arguments of `kernel` and returns its results, on the CPU. Its errors begin with the name of
    the public `function`, or that of the kernel.
    """
    if isinstance(tensor, Unmaterialized):
        measure = tensor.measure(kernel.__name__)
        if measure is None:
            raise TypeError(
                f"{kernel.__name__} needs the map, and {tensor} has none; LazyAttention.dense() makes one"
            )
        return measure
    if tensor.is_cpu and not _TORCH_ON_CPU.get():
        return kernel
    return _Placed(kernel, function or kernel.__name__)


def stays(function: str, tensor: Tensor) -> bool:
    """Return True if the maps of a public function are measured on the device that holds them."""
    return not tensor.is_cpu and function in STAYS_ON_DEVICE


class _Placed:
    """A function of the core as torch operations compute it, or the core itself on a copy of the tensor."""

    def __init__(self, kernel: Callable[..., Any], function: str) -> None:
        self._kernel, self._function = kernel, function

    def __call__(self, tensor: Tensor, lengths: Any, *arguments: Any) -> Any:
        with _named_failures(self._function, tensor.device):
            return self._measure(tensor, lengths, *arguments)

    def _measure(self, tensor: Tensor, lengths: Any, *arguments: Any) -> Any:
        name = self._kernel.__name__
        slower = _is_slower(tensor, name, tensor.shape[-1])
        fits = name in TAKES_RECTANGLES or not isinstance(lengths, tuple)
        if name in MODULES and fits and not slower:
            module = importlib.import_module(f"attnscope.devices.{MODULES[name]}")
            try:
                result = getattr(module, name)(tensor, lengths, *arguments)
            except NotOnDevice:
                pass
            else:
                count_call(name, tensor.device.type)
                return result
        if not tensor.is_cpu:
            count_call(name, "cpu (copied)")
        return self._kernel(host_copy(tensor), lengths, *map(host_copy, arguments))


def per_cloud(
    function: str,
    compute: Callable[..., Sequence[Tensor]],
    *tensors: Tensor | None,
    bytes_of_one: int,
    decomposition: str = "",
) -> tuple[Tensor, ...]:
    """Compute a measure that is written in torch operations where its points are.

    Args:
        function: the public one, with whose name errors begin.
        compute: takes the tensors, or some entries of their leading axes, and returns tensors.
        tensors: points [..., n, d], and what belongs to them with the same leading axes, or None.
        bytes_of_one: that `compute` holds at a time for one cloud.
        decomposition: the function of `CUDA_IS_SLOWER` whose size decides, with min(n, d) tokens.

    Returns:
        The tensors of `compute`, on the CPU.
    """
    points = tensors[0]
    assert points is not None
    if points.is_cpu and not _TORCH_ON_CPU.get():
        return tuple(compute(*map(_ordered_copy, tensors)))
    if not has_float64(points.device) or _is_slower(points, decomposition, min(points.shape[-2:])):
        if not points.is_cpu:
            count_call(function, "cpu (copied)")
        with _named_failures(function, points.device):
            copies = [_ordered_copy(tensor) for tensor in tensors]
        return tuple(compute(*copies))
    with _named_failures(function, points.device):
        results: tuple[Tensor, ...] = slabs.per_cloud(compute, tensors, bytes_of_one)
    count_call(function, points.device.type)
    return results


def _ordered_copy(tensor: Tensor | None) -> Tensor | None:
    """Return a tensor that the CPU can read, in the order of its rows."""
    return None if tensor is None else row_major(host_copy(tensor))


def _is_slower(tensor: Tensor, name: str, size: int) -> bool:
    """Return True where a CUDA device needs longer for a tensor than a copy to the CPU and the core do."""
    if tensor.device.type != "cuda":
        return False
    return size <= CUDA_IS_SLOWER.get(name, 0) or tensor.numel() * tensor.element_size() < FEWEST_BYTES


@contextmanager
def _named_failures(function: str, device: torch.device) -> Iterator[None]:
    """Let errors of a device that fails or has no memory begin with the name of a public function."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"{function}: {error}") from None
    except _DEVICE_FAILURES as error:
        words = f"{device} failed, and tensors on it may be lost: {error}"
        raise RuntimeError(f"{function}: {words}") from error
