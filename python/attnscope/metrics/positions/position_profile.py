# SPDX-License-Identifier: MIT
"""Sums over texts of scores split by offset, kept apart by groups of texts, and their products."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from attnscope import _checks
from attnscope.arguments import scalars
from attnscope.errors import NonFiniteWarning
from attnscope.metrics.positions.position_share import places_argument
from attnscope.metrics.positions.toeplitz import mask_only, offset_variance, toeplitz_split

Weights = Literal["uniform", "felt", "moved"]
#: Of so many queries the attention of all is kept, of more that of the first and at the ends of octaves.
_ALL_QUERIES = 32


class PositionProfile:
    """Streaming sums of `toeplitz_split` and `mask_only` over texts of n tokens.

    Every text belongs to a group, and the sums of a group are its texts' in the order in which they came: the
    same texts in other batches give the same bits. A head whose scores are NaN in a text is left out of that
    text and counted. Late queries m … 2m − 1, m = n // 2, are the reference for the early ones.

    Args:
        n: tokens of every text.
        groups: numbers that a group may have, 0 … groups − 1. Rank r of N texts goes to group r·groups // N,
            because neighbouring texts share a topic.
        queries: whose attention is kept for `felt` and `moved`; None: all of 1 … m − 1 for m <= 32, otherwise
            2 … 8 and 16, 32, … and m − 1.

    Raises:
        ValueError: n below 2, groups below 1, queries that do not ascend or are outside 1 … m − 1.

    Example:
        Scores 1 on the diagonal and 0 elsewhere, for one layer of one head and two texts.

        >>> import torch, attnscope as asc
        >>> profile = asc.PositionProfile(8, groups=2)
        >>> profile.add(torch.eye(8, dtype=torch.float64).expand(2, 1, 8, 8), group=[0, 1])
        >>> profile.texts, profile.mean("profile")[0, 0].tolist()
        (2, [1.0, 0.0, 0.0, 0.0])
        >>> profile.gram((2, 32)).shape
        torch.Size([1, 1, 2, 2])

    References:
        Ruscio, Nanni and Silvestri, arXiv 2606.06160, 2026, for what is measured; the
        estimator is attnscope's.
    """

    #: What is summed for each layer and head: its trailing axes in words.
    SUMS: ClassVar[dict[str, str]] = {
        "profile": "m",
        "residual": "mm",
        "row": "m",
        "first": "m",
        "lse": "m",
        "mask_lse": "m",
        "mask_cut": "m",
        "mask_share": "m",
        "offsets": "n",
        "body_variance": "m",
        "cut": "Qm",
        "moved": "Qm",
    }

    def __init__(self, n: int, *, groups: int = 16, queries: Sequence[int] | None = None) -> None:
        name = "PositionProfile"
        self.n = scalars.whole_number(name, "n", n)
        self.groups = scalars.whole_number(name, "groups", groups)
        if self.n < 2:
            raise ValueError(f"{name}: n must be at least 2, got {n}")
        if self.groups < 1:
            raise ValueError(f"{name}: groups must be at least 1, got {groups}")
        self.queries = (
            default_queries(self.m) if queries is None else places_argument(name, "queries", queries)
        )
        inside = all(1 <= query < self.m for query in self.queries)
        if not inside or sorted(set(self.queries)) != self.queries:
            raise ValueError(
                f"{name}: queries must ascend within 1 … m - 1 = {self.m - 1}, got {self.queries}"
            )
        # by group and layer: number of texts of each head, and the sums
        self._counts: dict[tuple[int, int], Tensor] = {}
        self._sums: dict[tuple[int, int], dict[str, Tensor]] = {}
        self._left_out = 0
        # means that were asked for, until a text is added
        self._means: dict[str, Tensor] = {}

    @property
    def m(self) -> int:
        """Early queries, and late ones."""
        return self.n // 2

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers that were added."""
        return sorted({layer for _, layer in self._sums})

    @property
    def heads(self) -> list[int]:
        """Numbers of heads of the layers. A layer may have fewer than others: results then have heads
        without texts behind its own.
        """
        return [
            max(len(self._counts[key]) for key in self._counts if key[1] == layer) for layer in self.layers
        ]

    @property
    def present(self) -> list[int]:
        """Groups with at least one text."""
        return sorted({group for group, _ in self._sums})

    @property
    def texts(self) -> int:
        """Number of texts: the largest of any head."""
        return int(self.counts().sum(0).max()) if self._counts else 0

    @property
    def left_out(self) -> int:
        """Number of maps with NaN or +inf among their scores."""
        return self._left_out

    def add(
        self, scores: Tensor, group: int | Iterable[int], *, layer: int = 0, sink_logit: Tensor | None = None
    ) -> None:
        """Add texts of one layer.

        Args:
            scores: [texts, heads, n, n], or [heads, n, n] of one text, as `toeplitz_split` takes them.
            group: of all texts, or one for each.
            layer: whose they are.
            sink_logit: of learned sinks, [heads].

        Raises:
            ValueError: another n or number of heads, a group outside 0 … groups − 1, another number of groups
                than texts.
        """
        name = "PositionProfile.add"
        maps = _checks.square_tensor(name, "scores", scores)
        maps = maps[None] if maps.ndim == 3 else maps
        if maps.ndim != 4 or maps.shape[-1] != self.n:
            raise ValueError(
                f"{name}: scores must have shape [texts, heads, n, n] with n = {self.n}, got "
                f"{tuple(scores.shape)}"
            )
        groups_of_texts = (
            places_argument(name, "group", group)
            if isinstance(group, Iterable)
            else [scalars.whole_number(name, "group", group)] * len(maps)
        )
        if len(groups_of_texts) != len(maps):
            raise ValueError(f"{name}: group must hold {len(maps)} numbers, got {len(groups_of_texts)}")
        for group_number in groups_of_texts:
            if not 0 <= group_number < self.groups:
                raise ValueError(
                    f"{name}: group must lie between 0 and {self.groups - 1}, got {group_number}"
                )
        for (_, other), counts in self._counts.items():
            if other == layer and len(counts) != maps.shape[1]:
                raise ValueError(
                    f"{name}: layer {layer} has {len(counts)} heads, got scores of {maps.shape[1]}"
                )
        terms, good = self._terms(maps, sink_logit)
        self._left_out += int((~good).sum())
        for text, group_number in enumerate(groups_of_texts):
            self._add_text(
                group_number, layer, {key: values[text] for key, values in terms.items()}, good[text]
            )

    def merge(self, other: PositionProfile) -> None:
        """Add the sums of another profile of the same n, groups and queries, of other texts.

        Raises:
            ValueError: another n, groups or queries.
        """
        settings, other_settings = (self.n, self.groups, self.queries), (other.n, other.groups, other.queries)
        if settings != other_settings:
            raise ValueError(
                f"PositionProfile.merge: n, groups and queries must be {settings}, got {other_settings}"
            )
        for key, sums in other._sums.items():
            if key in self._sums:
                self._counts[key] = self._counts[key] + other._counts[key]
                self._sums[key] = {name: self._sums[key][name] + values for name, values in sums.items()}
            else:
                self._counts[key] = other._counts[key].clone()
                self._sums[key] = {name: values.clone() for name, values in sums.items()}
        self._left_out += other._left_out
        self._means.clear()

    def state(self) -> dict[str, Tensor]:
        """Return all sums as tensors, from which `from_state` restores the profile.

        Returns:
            n, groups, queries, left_out, group [G], layer [L] and heads [L] of what is there, count [G, L,
            h], and every name of `SUMS` as float64 [G, L, h, ...], 0 behind the heads of a layer that has
            fewer. The sums of two profiles of the same groups and layers may be added.
        """
        groups, layers = self.present, self.layers
        state = {
            name: torch.tensor(value, device="cpu")
            for name, value in (("n", self.n), ("groups", self.groups), ("left_out", self._left_out))
        }
        places = (("queries", self.queries), ("group", groups), ("layer", layers), ("heads", self.heads))
        for name, values in places:
            state[name] = torch.tensor(values, dtype=torch.int64, device="cpu")
        if groups:
            state["count"] = self._stacked(self._counts, groups, layers)
            for name in self.SUMS:
                sums_by_key = {key: sums[name] for key, sums in self._sums.items()}
                state[name] = self._stacked(sums_by_key, groups, layers)
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PositionProfile:
        """Return a profile with the sums of a `state`, as tensors or arrays."""
        tensors = {name: torch.as_tensor(values, device="cpu") for name, values in state.items()}
        profile = cls(int(tensors["n"]), groups=int(tensors["groups"]), queries=tensors["queries"].tolist())
        profile._left_out = int(tensors["left_out"])
        layers = tensors["layer"].tolist()
        heads = tensors["heads"].tolist() if "heads" in tensors else [None] * len(layers)
        for g, group in enumerate(tensors["group"].tolist()):
            for k, (layer, count) in enumerate(zip(layers, heads, strict=True)):
                key = (int(group), int(layer))
                profile._counts[key] = tensors["count"][g, k, :count].to(torch.int64).clone()
                profile._sums[key] = {name: tensors[name][g, k, :count].double().clone() for name in cls.SUMS}
        return profile

    def counts(self) -> Tensor:
        """Texts of each head by group, int64 [G, L, h], over the groups that are present."""
        return self._stacked(self._counts, self.present, self.layers)

    def group_means(self, name: str) -> Tensor:
        """Means of one of `SUMS` over the texts of each group that is present, [G, L, h, ...].

        Args:
            name: of the sum; NaN where a group holds no text of that head.

        Raises:
            ValueError: an unknown name, a profile without texts.
        """
        return self._group_means(name).clone()

    def _group_means(self, name: str) -> Tensor:
        """Return the means of `group_means`, made once for all calls until a text is added."""
        if name not in self.SUMS:
            raise ValueError(f"PositionProfile: a sum must be one of {', '.join(self.SUMS)}, got {name!r}")
        if name not in self._means:
            sums_of_name = {key: sums[name] for key, sums in self._sums.items()}
            sums = self._stacked(sums_of_name, self.present, self.layers)
            counts = self.counts().reshape(*sums.shape[:3], *[1] * (sums.ndim - 3))
            self._means[name] = torch.where(counts > 0, sums / counts, torch.nan)
        return self._means[name]

    def mean(self, name: str) -> Tensor:
        """Mean of one of `SUMS` over all texts, [L, h, ...]; NaN for a head without a text."""
        counts = self.counts().double()
        means = self._group_means(name)
        # 0/0 of a head without a text stays NaN
        shares = (counts / counts.sum(0)).reshape(*means.shape[:3], *[1] * (means.ndim - 3))
        return torch.where(shares == 0, 0.0, means * shares).sum(0)

    def gram(
        self,
        queries: tuple[int, int] = (2, 32),
        other: PositionProfile | None = None,
        *,
        weights: Weights = "uniform",
        without: Sequence[int] = (),
    ) -> Tensor:
        """Products of group means: mean over queries of Σ_j w_ij (R_g − row)(R_f − row), [L, h, G, G].

        Args:
            queries: first and last, cut to m − 1.
            other: whose groups are on the second axis, of the same texts under another condition;
                None: this.
            weights: "uniform" over the body keys, "felt" by the attention of late queries that see as many
                keys (this profile's, for both), or "moved": products of early body attention less that.
            without: positions whose keys and queries are left out.

        Returns:
            float64 [L, h, G, G]; NaN for a head that lacks a text in one of the groups.

        Raises:
            ValueError: no query of the range is kept, other groups or layers, unknown weights.
        """
        vectors = self.vectors(queries, weights, without, self)
        other_vectors = vectors if other is None else self.vectors(queries, weights, without, other)
        if other_vectors.shape != vectors.shape:
            raise ValueError(
                f"PositionProfile.gram: both need the same groups, layers and heads, got "
                f"{tuple(vectors.shape[:3])} and {tuple(other_vectors.shape[:3])}"
            )
        return vectors.permute(1, 2, 0, 3) @ other_vectors.permute(1, 2, 3, 0)

    def rows_of(
        self, queries: tuple[int, int], *, attention_stored: bool, without: Sequence[int] = ()
    ) -> list[int]:
        """Return the numbers of the queries of a range.

        Args:
            queries: first and last.
            attention_stored: only those whose attention the profile stores.
            without: positions that are left out.

        Raises:
            ValueError: no such query.
        """
        if not isinstance(queries, (tuple, list)) or len(queries) != 2:
            raise ValueError(f"PositionProfile: queries must be the first and the last, got {queries!r}")
        low, high = (scalars.whole_number("PositionProfile", "queries", bound) for bound in queries)
        left_out = places_argument("PositionProfile", "without", without)
        among = self.queries if attention_stored else range(self.m)
        rows = [i for i in among if low <= i <= high and i not in left_out]
        if not rows:
            raise ValueError(
                f"PositionProfile: no query between {low} and {high} among {len(among)} below {self.m}"
            )
        return rows

    def vectors(
        self, queries: tuple[int, int], weights: Weights, without: Sequence[int], of: PositionProfile
    ) -> Tensor:
        """Group means of another condition's rows under this one's weights, [G, L, h, rows·m].

        Args:
            queries: first and last.
            weights: as `gram` takes them.
            without: positions that are left out.
            of: the profile of that condition.
        """
        scalars.choice_argument("PositionProfile.gram", "weights", weights, ("uniform", "felt", "moved"))
        rows = self.rows_of(queries, attention_stored=weights != "uniform", without=without)
        without = places_argument("PositionProfile", "without", without)
        places = [self.queries.index(i) for i in rows] if weights != "uniform" else []
        body = torch.tensor(
            [[1 <= j <= i and j not in without for j in range(self.m)] for i in rows],
            dtype=torch.bool,
            device="cpu",
        )
        if weights == "moved":
            moved = of._group_means("moved")[..., places, :]
            rows_of_groups = torch.where(body, moved, 0.0)
        else:
            residual = of._group_means("residual")[..., rows, :]
            is_known = body & ~self.mean("residual")[..., rows, :].isnan()
            w = (
                self.mean("cut")[..., places, :]
                if weights == "felt"
                else torch.ones(len(rows), self.m, device="cpu")
            )
            w = torch.where(is_known, w.double(), 0.0)
            w = w / w.sum(-1, keepdim=True)
            residual = torch.where(w > 0, residual, 0.0)
            centred = residual - (w * residual).sum(-1, keepdim=True)
            rows_of_groups = w.sqrt() * centred
        return rows_of_groups.flatten(-2) / float(len(rows) ** 0.5)

    def _terms(self, maps: Tensor, sink_logit: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        """Return the terms that every text adds, [texts, heads, ...], and a mask of the maps that hold
        scores.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NonFiniteWarning)  # they are counted
            offsets = offset_variance(maps)
            split = toeplitz_split(maps)
            mask = mask_only(maps, queries=self.queries, body=True, sink_logit=sink_logit)
        early = maps[..., self.queries, : self.m].double()
        keys, rows = torch.arange(self.m, device="cpu"), torch.tensor(self.queries, device="cpu")[:, None]
        early = early.masked_fill((keys == 0) | (keys > rows), -torch.inf)
        if sink_logit is None:
            body = torch.softmax(early, -1)
            lse = split.lse
        else:
            sink = sink_logit.double().reshape(-1, 1, 1).expand(*early.shape[:-1], 1)
            body = torch.softmax(torch.cat([early, sink], -1), -1)[..., :-1]
            lse = torch.logaddexp(split.lse, sink_logit.double().cpu()[:, None])
        terms = {
            "profile": split.profile,
            "residual": split.residual.tril(),
            "row": split.row,
            "first": split.first,
            "lse": lse,
            "mask_lse": mask.lse,
            "mask_cut": mask.cut,
            "mask_share": mask.share,
            "offsets": offsets.mean,
            "body_variance": self._body_variance(maps),
            "cut": mask.attention,
            "moved": body - mask.attention,
        }
        return terms, offsets.count[..., 0] >= 0

    def _body_variance(self, maps: Tensor) -> Tensor:
        """Return the population variance of each early query's scores over its visible body keys, [texts,
        heads, m].
        """
        early = maps[..., : self.m, : self.m].double()
        body = torch.ones(self.m, self.m, dtype=torch.bool, device="cpu").tril() & (
            torch.arange(self.m, device="cpu") > 0
        )
        seen = body & (early > -torch.inf)
        keys = seen.sum(-1)
        mean = torch.where(seen, early, 0.0).sum(-1) / keys
        squares = torch.where(seen, (early - mean[..., None]) ** 2, 0.0).sum(-1)
        return torch.where(keys >= 2, squares / keys, torch.nan)

    def _add_text(self, group: int, layer: int, terms: Mapping[str, Tensor], good: Tensor) -> None:
        key = (group, layer)
        self._means.clear()
        if key not in self._sums:
            self._counts[key] = torch.zeros(len(good), dtype=torch.int64, device="cpu")
            self._sums[key] = {name: torch.zeros_like(term) for name, term in terms.items()}
        self._counts[key] += good
        for name, term in terms.items():
            counted = good.reshape(-1, *[1] * (term.ndim - 1))
            self._sums[key][name] += torch.where(counted, term, 0.0)

    def _stacked(
        self, values: Mapping[tuple[int, int], Tensor], groups: list[int], layers: list[int]
    ) -> Tensor:
        if not groups:
            raise ValueError("PositionProfile: no text was added")
        for group, layer in itertools.product(groups, layers):
            if (group, layer) not in values:
                raise ValueError(f"PositionProfile: group {group} holds no text of layer {layer}")
        most = max(len(values[groups[0], layer]) for layer in layers)
        return torch.stack(
            [torch.stack([_with_heads(values[group, layer], most) for layer in layers]) for group in groups]
        )


def _with_heads(values: Tensor, count: int) -> Tensor:
    """Return values [h, ...] of so many heads, 0 for those that a layer does not have."""
    if len(values) == count:
        return values
    return torch.cat([values, values.new_zeros(count - len(values), *values.shape[1:])])


def default_queries(m: int) -> list[int]:
    """Return the queries whose attention a profile keeps."""
    if m <= _ALL_QUERIES:
        return list(range(1, m))
    ends = [2**power for power in range(4, m.bit_length()) if 2**power < m]
    return sorted({*range(2, 9), *ends, m - 1})
