# SPDX-License-Identifier: MIT
"""The subspaces in which a pair's changes are measured: main inputs of matrices, main directions of
predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnscope.errors import ConfigError
from attnscope.metrics.weights.matrix_spectrum import EXACT
from attnscope.metrics.weights.moments import Moments, site_of
from attnscope.metrics.weights.subspace_fraction import Side
from attnscope.models.head import subspace_of
from attnscope.models.unembedding import effective_unembedding

if TYPE_CHECKING:
    from attnscope.studies.pretraining_writes.options import WeightsOptions
    from attnscope.studies.pretraining_writes.sums import Sums
    from attnscope.study_api.stage_run import StageRun

#: Sides that face the residual stream.
RESIDUAL = {**dict.fromkeys(("q", "k", "v", "gate", "up"), "in"), **dict.fromkeys(("o", "down"), "out")}
#: Directions that are kept in memory, which pairs of one base ask for again.
KEPT_BYTES = 256 * 2**20
#: A gap to the next eigenvalue below that leaves the k-th direction undetermined.
UNIQUE = 1e-6


@dataclass
class Directions:
    """Ordered orthonormal directions of one side.

    Attributes:
        basis: [d, K], the main ones first, without those that are rounding.
        energies: eigenvalues, descending, at least K.
        trace: their sum, directions left out included.
        complete: all d directions; empty for a sketch.
        left_out: group -> the tested directions without that group of texts.
    """

    basis: Tensor
    energies: Tensor
    trace: float
    complete: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.float32, device="cpu"))
    left_out: dict[int, Tensor] = field(default_factory=dict)

    @property
    def moment(self) -> Tensor:
        """The moment [d, d] that all directions and energies are of."""
        moment = (self.complete * self.energies) @ self.complete.mT
        return (moment + moment.mT) / 2

    @property
    def bytes(self) -> int:
        """Memory of the directions."""
        tensors = (self.basis, self.energies, self.complete, *self.left_out.values())
        return sum(tensor.nelement() * tensor.element_size() for tensor in tensors)

    def share(self, k: int) -> float:
        """Return the energy of the first k as a share of all."""
        return float(self.energies[:k].sum()) / self.trace

    def gap(self, k: int) -> float:
        """Return (λ_k − λ_{k+1})/λ_k; NaN behind the last."""
        if k >= len(self.energies):
            return float("nan")
        return float((self.energies[k - 1] - self.energies[k]) / self.energies[k - 1])


class Subspaces:
    """The subspaces of one base, made once for all matrices that share them.

    Args:
        run: of a stage that reads `sums` and `unembeddings`.
        sums: moments of the base.
        folder: of the base.
        options: of the study.
    """

    def __init__(self, run: StageRun, sums: Sums, folder: Path, options: WeightsOptions) -> None:
        self._run, self._sums, self._options, self._folder = run, sums, options, folder
        self._made: dict[tuple[object, ...], Directions | None] = {}
        self._bytes = 0

    def continued(self, run: StageRun) -> None:
        """Continue reading in a later unit of the same stage."""
        self._run = self._sums.run = run

    def of_moment(
        self, layer: int, role: str, side: str, *, centered: bool = False, control: str = "", draw: int = 0
    ) -> Directions | None:
        """Return the main directions of a matrix's inputs ("in") or output gradients ("out"); None without
        any.
        """
        key = (layer, site_of(role, side), side, centered, control, draw)

        def make() -> Directions | None:
            moments = self._sums.layer(layer, control, draw)
            if not moments.has(layer, role, side):
                return None
            return self._directions(moments, layer, role, side, centered, jackknife=not (control or centered))

        return self._cached(key, make)

    def _directions(
        self, moments: Moments, layer: int, role: str, side: str, centered: bool, *, jackknife: bool
    ) -> Directions:
        values, vectors = (
            moments.energies(layer, role, side, centered=centered),
            moments.basis(layer, role, side, centered=centered),
        )
        d = len(vectors)
        k = self._options.directions(d)
        of_groups = moments.groups if jackknife and len(moments.groups) > 1 else []
        part = ""
        try:
            moments.basis(layer, role, side, k, centered=centered)
            part = ", one group of texts left out (options.groups)"
            left_out = {group: moments.without(group).basis(layer, role, side, k) for group in of_groups}
        except ValueError as error:  # too few tokens
            raise ConfigError(f"options.k: {error}{part}") from None
        rank = int((values > d * torch.finfo(torch.float64).eps * values[0]).sum())
        complete = (
            vectors
            if vectors.shape[1] == d and d <= 1024
            else torch.empty(d, 0, dtype=torch.float32, device="cpu")
        )
        keep = min(rank, max(self._options.curve, k))
        trace = moments.trace(layer, role, side, centered=centered)
        return Directions(vectors[:, :keep], values, trace, complete, left_out)

    def mean_input(self, layer: int, role: str) -> Tensor:
        """Return the mean input [d] of a matrix."""
        return self._sums.layer(layer).mean(layer, role)

    def prediction(self, draw: int | None = None) -> Directions | None:
        """Return the directions of the unembedding: the base's, or that of a random-weight control."""

        def make() -> Directions | None:
            if draw is None:
                folding = {"fold_norm": self._options.fold_norm, "center": self._options.center}
                try:
                    gram = effective_unembedding(self._folder, **folding).gram
                except NotImplementedError as reason:
                    self._run.note(str(reason))
                    return None
            else:
                grams = self._run.reduced("unembeddings", (), of=self._sums.of, draw=draw)
                if not grams:
                    return None
                gram = torch.as_tensor(grams[()].sum, device="cpu")
            subspace = subspace_of(gram)
            keep = max(self._options.curve, self._options.directions(len(gram)))
            complete = (
                torch.linalg.eigh(gram).eigenvectors.flip(1)
                if len(gram) <= 1024
                else torch.empty(0, 0, dtype=torch.float32, device="cpu")
            )
            trace = float(subspace.energies.sum())
            return Directions(subspace.basis[:, :keep], subspace.energies, trace, complete)

        return self._cached(("prediction", draw), make)

    def _cached(self, key: tuple[object, ...], make: Callable[[], Directions | None]) -> Directions | None:
        if key in self._made:
            self._made[key] = self._made.pop(key)
            return self._made[key]
        directions = self._made[key] = make()
        self._bytes += 0 if directions is None else directions.bytes
        while self._bytes > KEPT_BYTES and len(self._made) > 1:
            oldest = self._made.pop(next(iter(self._made)))
            self._bytes -= 0 if oldest is None else oldest.bytes
        return directions

    def of_weights(self, key: tuple[object, ...], matrix: Tensor) -> Iterator[tuple[Side, Directions]]:
        """Yield the main singular directions of a matrix [out, in] on both sides; none of too wide ones."""
        if max(matrix.shape) > EXACT:
            return
        wide = matrix.double()
        sides: tuple[tuple[Side, Tensor], ...] = (("in", wide), ("out", wide.mT))
        for side, turned in sides:

            def make(turned: Tensor = turned) -> Directions:
                values, vectors = torch.linalg.eigh(turned.mT @ turned)
                values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
                keep = max(self._options.curve, self._options.directions(len(vectors)))
                return Directions(vectors[:, :keep], values, float(values.sum()))

            directions = self._cached((*key, side), make)
            assert directions is not None
            yield side, directions

    def of_matrix(self, layer: int, role: str) -> Iterator[tuple[str, str, Directions]]:
        """Yield side, name and directions of every subspace in which a matrix's change is measured."""
        for side, name, centered in (
            ("in", "inputs", False),
            ("in", "inputs_centred", True),
            ("out", "gradients", False),
        ):
            directions = self.of_moment(layer, role, side, centered=centered)
            if directions is not None:
                yield side, name, directions
        if role in RESIDUAL:
            directions = self.prediction()
            if directions is not None:
                yield RESIDUAL[role], "prediction", directions
