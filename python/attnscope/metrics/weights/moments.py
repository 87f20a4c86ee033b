# SPDX-License-Identifier: MIT
"""Second moments of the inputs and output gradients of a model's matrices, as sums that add over texts.

For every site (the input of one or more matrices, or the gradient at an output) and every group of texts:
tokens, Σ x, Σ x xᵀ, the same about the mean of each text, Σ‖x‖² and the largest ‖x‖². Groups are kept apart,
so that any number computed of the sums has a jackknife interval over them.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope._nearest import nearest
from attnscope.errors import ResultsError
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.weights.moment_sums import COUNTS, MomentBatch, MomentSums

#: What matrices of one site read: site -> roles.
READERS: Mapping[str, tuple[str, ...]] = {
    "attention": ("q", "k", "v", "kv", "q_gate", "mixer_in", "mixer_gates", "mixer_z", "mixer_a", "mixer_b"),
    "mlp": ("gate", "up", "router", "shared_gate", "shared_up", "shared_router"),
}
_SITE_OF = {role: site for site, roles in READERS.items() for role in roles}
#: An eigenvalue below d times that, relative to the largest, is rounding.
_RANK = torch.finfo(torch.float64).eps

Key = tuple[int, str, str]
#: The name of sums in a `state`: layer, site, side, group, width.
_STATE_NAME = re.compile(
    r"(?P<layer>\d+)/(?P<site>[^/]+)/(?P<side>in|out)/(?P<group>-?\d+)/(?P<width>[1-9]\d*)"
)


@shown_by_shape
class JackknifeInterval(NamedTuple):
    """A number computed of all groups, and its 95 % interval over them.

    Attributes:
        estimate: of all groups.
        low: NaN with fewer than two groups.
        high: likewise.
    """

    estimate: Tensor
    low: Tensor
    high: Tensor


def jackknife_interval(estimate: Tensor, rest: Iterable[Tensor], confidence: float) -> JackknifeInterval:
    """Return the interval of an estimate whose values without one group each are known.

    se² = (G − 1)/G·Σ(θ_i − mean)², and Student's t with G − 1 degrees of freedom.
    """
    from scipy.stats import t

    values = list(rest)
    count = len(values)
    if count < 2:
        undefined = torch.full_like(estimate, torch.nan)
        return JackknifeInterval(estimate, undefined, undefined)
    left_out = torch.stack(values)
    spread = (left_out - left_out.mean(0)).square().sum(0) * (count - 1) / count
    half = float(t.ppf((1 + confidence) / 2, count - 1)) * spread.sqrt()
    return JackknifeInterval(estimate, estimate - half, estimate + half)


def site_of(role: str, side: str) -> str:
    """Return the site of a role's inputs, such as "attention" for q, k and v; gradients are not shared."""
    return _SITE_OF.get(role, role) if side == "in" else role


class Moments:
    """Streaming second moments of many sites; returned by `second_moments`, or filled by `add`.

    Args:
        rank: columns of a one-pass sketch of each moment; None keeps moments whole.
        seed: of the sketch's directions.

    Example:
        The inputs (3, 0) and (0, 1): the first direction holds nine tenths of their energy.

        >>> import torch
        >>> from attnscope.metrics.weights.moments import Moments
        >>> moments = Moments()
        >>> moments.add(torch.diag(torch.tensor([3.0, 1.0])), layer=0, role="q")
        >>> moments.energies(0, "k").tolist(), moments.basis(0, "q", k=1).abs().flatten().tolist()
        ([4.5, 0.5], [1.0, 0.0])
        >>> moments.tokens(0, "q"), moments.trace(0, "v")
        (2, 5.0)
    """

    def __init__(self, rank: int | None = None, seed: int = 0) -> None:
        if rank is not None and rank < 1:
            raise ValueError(f"Moments: rank must be at least 1, got {rank}")
        self.rank, self.seed = rank, seed
        self._sums: dict[Key, dict[int, MomentSums]] = {}
        self._batches: dict[tuple[Key, int], MomentBatch] = {}
        self._widths: dict[Key, int] = {}
        self._directions: dict[int, Tensor] = {}

    def add(self, x: Tensor, *, layer: int, role: str, side: str = "in", group: int = 0) -> None:
        """Add the tokens of one text.

        Args:
            x: [tokens, d]; products are formed and summed in float64.
            layer: of the site.
            role: one of those that read it.
            side: "in", or "out" for gradients at the output.
            group: of the text.
        """
        key = (layer, site_of(role, side), side)
        x = x.detach().double()
        width = self._widths.setdefault(key, x.shape[1])
        if width != x.shape[1]:
            raise ValueError(f"Moments: layer {layer} {role} has {width} inputs, got {x.shape[1]}")
        batch = self._batches.get((key, group))
        if batch is None or not batch.takes(x):
            self._close(key, group)
            directions = None if self.rank is None else self._sketch(width)
            batch = self._batches[key, group] = MomentBatch(x, directions)
        batch.add(x)

    def _close(self, key: Key, group: int) -> None:
        """Add the sums of the last texts to those of their group."""
        batch = self._batches.pop((key, group), None)
        if batch is not None:
            self._keep(key, group, batch.sums())

    def _keep(self, key: Key, group: int, sums: MomentSums) -> None:
        groups = self._sums.setdefault(key, {})
        groups[group] = groups[group].add(sums) if group in groups else sums

    def _closed(self) -> dict[Key, dict[int, MomentSums]]:
        """Return all sums, brought up to date."""
        for key, group in list(self._batches):
            self._close(key, group)
        return self._sums

    def _sketch(self, d: int) -> Tensor:
        """Orthonormal directions [d, min(rank, d)], the same for every site of this width."""
        if d not in self._directions:
            assert self.rank is not None
            generator = torch.Generator().manual_seed(self.seed)
            drawn = torch.randn(d, min(self.rank, d), generator=generator, dtype=torch.float64, device="cpu")
            self._directions[d] = torch.linalg.qr(drawn).Q
        return self._directions[d]

    def merge(self, other: Moments) -> None:
        """Add the sums of other moments; groups of one number become one group.

        Raises:
            ValueError: another sketch.
        """
        if (self.rank, self.seed) != (other.rank, other.seed):
            raise ValueError(f"merge: sketches differ: rank {self.rank} and {other.rank}")
        self._closed()
        for key, group, sums in other.items():
            self._keep(key, group, sums)
            self._widths.setdefault(key, len(sums.total))

    def items(self) -> Iterator[tuple[Key, int, MomentSums]]:
        """(layer, site, side), group and sums of everything."""
        for key, groups in self._closed().items():
            for group, sums in groups.items():
                yield key, group, sums

    def store_sums(self, key: Key, group: int, sums: MomentSums) -> None:
        """Store sums as `items` returns them."""
        self._batches.pop((key, group), None)
        self._widths.setdefault(key, len(sums.total))
        self._sums.setdefault(key, {})[group] = sums

    def state(self) -> dict[str, Tensor]:
        """All sums by name, from which `from_state` makes the same moments."""
        return {
            f"{layer}/{site}/{side}/{group}/{len(sums.total)}": sums.packed()
            for (layer, site, side), group, sums in self.items()
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], *, rank: int | None = None, seed: int = 0) -> Moments:
        """Moments of a `state`.

        Raises:
            ValueError: what is no state of moments with this rank.
        """
        moments = cls(rank, seed)
        for name, packed in state.items():
            match = _STATE_NAME.fullmatch(name)
            width = int(match[5]) if match else 0
            columns = width if rank is None else min(rank, width)
            length = COUNTS + width + 2 * width * columns
            if match is None or packed.shape != (length,) or packed.dtype != torch.float64:
                raise ValueError(
                    f"Moments: {name!r:.80} of {packed.dtype} and shape {tuple(packed.shape)} is no sum of "
                    f"moments with rank {rank}"
                )
            key = (int(match[1]), match[2], match[3])
            moments.store_sums(key, int(match[4]), MomentSums.unpacked(packed, width))
        return moments

    def save(self, path: str | Path) -> None:
        """Write the sums to a safetensors file, whole or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = Path(path)
        settings = json.dumps({"rank": self.rank, "seed": self.seed})
        tensors = {name: tensor.contiguous() for name, tensor in self.state().items()}
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            save_file(tensors, temporary, {"moments": settings})
            os.replace(temporary, path)
        except SafetensorError as error:
            raise OSError(f"Moments.save: {path} cannot be written: {error}") from error
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> Moments:
        """Read moments that `save` wrote.

        Raises:
            FileNotFoundError: no such file.
            ResultsError: the file is damaged, or holds something else.
        """
        from safetensors import SafetensorError, safe_open

        if not Path(path).exists():
            raise FileNotFoundError(f"Moments.load: there is no file {path}")
        try:
            with safe_open(path, "pt") as file:
                settings = json.loads((file.metadata() or {}).get("moments", "null"))
                if not isinstance(settings, dict) or {*settings} != {"rank", "seed"}:
                    raise ValueError("it has no rank and no seed of moments")
                names = list(file.keys())
                return cls.from_state({name: file.get_tensor(name) for name in names}, **settings)
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            raise ResultsError(f"Moments.load: {path} holds no moments that can be read: {error}") from error

    def has(self, layer: int, role: str, side: str = "in") -> bool:
        """Return True if that site has sums."""
        return (layer, site_of(role, side), side) in self._closed()

    @property
    def groups(self) -> list[int]:
        """Numbers of all groups of texts."""
        return sorted({group for _, group, _ in self.items()})

    def without(self, group: int) -> Moments:
        """Return the same without one group of texts."""
        rest = Moments(self.rank, self.seed)
        rest._directions = self._directions
        for key, other, sums in self.items():
            if other != group:
                rest.store_sums(key, other, sums)
        return rest

    def only(self, layer: int) -> Moments:
        """Return the sums of one layer."""
        rest = Moments(self.rank, self.seed)
        rest._directions = self._directions
        for key, group, sums in self.items():
            if key[0] == layer:
                rest.store_sums(key, group, sums)
        return rest

    def sums(self, layer: int, role: str, side: str = "in") -> MomentSums:
        """Return the sums over all groups.

        Raises:
            ValueError: there are none of that site.
        """
        groups = self._closed().get((layer, site_of(role, side), side))
        if not groups:
            sites = sorted({site for _, site, _ in self._sums})
            raise ValueError(
                f"Moments: nothing was summed of layer {layer} {role} {side}"
                f"{nearest(site_of(role, side), sites)}"
            )
        total: MomentSums | None = None
        for group in sorted(groups):
            total = groups[group] if total is None else total.add(groups[group])
        assert total is not None
        return total

    def tokens(self, layer: int, role: str, side: str = "in") -> int:
        """Return the number of tokens."""
        return int(self.sums(layer, role, side).counts[0])

    def mean(self, layer: int, role: str, side: str = "in") -> Tensor:
        """Mean input [d] float64."""
        sums = self.sums(layer, role, side)
        return sums.total / sums.counts[0]

    def trace(self, layer: int, role: str, side: str = "in", *, centered: bool = False) -> float:
        """Mean squared norm, exact for sketches too."""
        counts = self.sums(layer, role, side).counts
        return float(counts[2 if centered else 1] / counts[0])

    def largest_share(self, layer: int, role: str, side: str = "in") -> float:
        """Share of Σ‖x‖² that the largest token has."""
        counts = self.sums(layer, role, side).counts
        return float(counts[3] / counts[1])

    def second(self, layer: int, role: str, side: str = "in", *, centered: bool = False) -> Tensor:
        """Second moment S [d, d] float64; of a sketch the Nyström approximation."""
        sums = self.sums(layer, role, side)
        product = (sums.centred if centered else sums.second) / sums.counts[0]
        if self.rank is None:
            return product.triu() + product.triu(1).mT
        values, vectors = self._nystroem(product)
        return vectors * values @ vectors.mT

    def _nystroem(self, product: Tensor) -> tuple[Tensor, Tensor]:
        """Eigenvalues, descending, and vectors of Y (ΩᵀY)⁻¹ Yᵀ, shifted so that the inner factor exists."""
        directions = self._sketch(len(product))
        shift = 1e-12 * float(product.norm())
        shifted = product + shift * directions
        inner = directions.mT @ shifted
        factor = torch.linalg.cholesky((inner + inner.mT) / 2)
        root = torch.linalg.solve_triangular(factor, shifted.mT, upper=False).mT
        vectors, values, _ = torch.linalg.svd(root, full_matrices=False)
        return (values.square() - shift).clamp_min(0), vectors

    def energies(self, layer: int, role: str, side: str = "in", *, centered: bool = False) -> Tensor:
        """Eigenvalues of S, descending, float64; of a sketch its leading ones."""
        return self._eigen(layer, role, side, centered)[0]

    def basis(
        self, layer: int, role: str, side: str = "in", k: int | None = None, *, centered: bool = False
    ) -> Tensor:
        """Return the main directions, [d, k] orthonormal float64, the largest eigenvalue first.

        Args:
            layer: of the matrix.
            role: of the matrix.
            side: "in", or "out" for gradients.
            k: number of directions; None takes all d (of a sketch those with an eigenvalue).
            centered: about the mean of each text.

        Raises:
            ValueError: fewer tokens than k, or k beyond the numerical rank: eigenvalues below d·eps times the
                largest are no directions.
        """
        values, vectors = self._eigen(layer, role, side, centered)
        if k is None:
            return vectors
        d, tokens = len(vectors), self.tokens(layer, role, side)
        if tokens < k:
            raise ValueError(f"basis: layer {layer} {role} has {tokens} tokens, too few for k = {k}")
        rank = int((values > d * _RANK * values[0]).sum())
        if not 1 <= k <= rank:
            raise ValueError(f"basis: layer {layer} {role} has {rank} directions, got k = {k}")
        return vectors[:, :k]

    def _eigen(self, layer: int, role: str, side: str, centered: bool) -> tuple[Tensor, Tensor]:
        sums = self.sums(layer, role, side)
        product = (sums.centred if centered else sums.second) / sums.counts[0]
        if self.rank is not None:
            return self._nystroem(product)
        values, vectors = torch.linalg.eigh(product, UPLO="U")
        return values.flip(0).clamp_min(0), vectors.flip(1)

    def jackknife(
        self, function: Callable[[Moments], Tensor | float], *, confidence: float = 0.95
    ) -> JackknifeInterval:
        """Return a number of the moments with an interval over groups of texts.

        Each group is left out in turn; se² = (G − 1)/G·Σ(θ_i − mean)², and t with G − 1 degrees of freedom.

        Args:
            function: moments -> number, or a tensor of numbers.
            confidence: of the interval.
        """
        groups = self.groups if len(self.groups) > 1 else []
        estimates = [function(self), *(function(self.without(group)) for group in groups)]
        estimate, *rest = (torch.as_tensor(value, dtype=torch.float64, device="cpu") for value in estimates)
        return jackknife_interval(estimate, rest, confidence)


def sketch_rank(k: int) -> int:
    """Columns of a sketch whose first k directions are wanted: min(5k, k + 64).

    >>> sketch_rank(8), sketch_rank(256)
    (40, 320)
    """
    return min(5 * k, k + 64)


def participation(values: Tensor) -> float:
    """(Σλ)²/Σλ² of eigenvalues; NaN where all are 0."""
    squares = float(values.square().sum())
    return float(values.sum()) ** 2 / squares if squares else math.nan
