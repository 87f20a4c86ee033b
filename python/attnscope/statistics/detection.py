# SPDX-License-Identifier: MIT
"""Detection of two kinds of texts from states, on texts of templates that were not fitted.

Everything is scored on held-out folds: a probe of more dimensions than texts fits any labels, random ones
included. Words, lengths or other features are scored next to it, on the same folds.

Drawing clusters again with their scores as they are leaves out that every score rests on the training rows of
its fold. Without a difference a pair of rows adds as much to the area when the first is scored by a probe
that learned from the second as the other way round, and both times the same: the variance is twice that of
the drawn clusters, and 1 + K/(K − 1) times of K folds. So intervals are one and a half times as wide; where
there is a difference they are on the safe side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from attnscope.arguments.number_lists import number_array
from attnscope.arguments.scalars import flag
from attnscope.statistics._arguments import check_draws, label_numbers
from attnscope.statistics.resamples import reach_tail

if TYPE_CHECKING:
    import pandas as pd

Vector = npt.NDArray[Any]

#: Ridge penalties in units of the mean squared length of the centred features.
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
_STEPS, _INNER = 30, 3
#: Variance of a held-out area over that of its scored rows: the training rows add as much and, of five
#: folds, a quarter more, because a probe is fitted on four of them.
WITH_TRAINING = 2.25
#: Clusters below which intervals are studentised.
FEW = 30
#: Dimensions from which a Hessian costs more than it saves.
WIDE = 128


def detection(
    states: Any,
    labels: Any,
    *,
    folds: Any,
    baselines: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    clusters: Any = None,
    scale: bool = False,
    draws: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Return the area under the ROC curve of probes fitted on all folds but one and scored on it, pooled
    over folds.

    A ridge-penalised logistic probe, its penalty chosen on folds of the training part, its log-odds less
    those of the training labels; and the projection on the training part's difference of means. `auc_excess`
    is the probe's area minus that of the best baseline.

    Args:
        states: [n, D]; or [n] for scores that need no fit.
        labels: [n] of 0 and 1.
        folds: [n], which rows are held out together; rows that share words, templates or pairs belong to one.
        baselines: name -> features [n, f] of something else; each gets the same probe on the same folds.
        clusters: [n], what intervals draw whole (templates); None takes the folds.
        scale: standardise columns by mean and deviation of each training part, for features of different
            units; a column that does not vary there is left out.
        draws: of the bootstrap over clusters, studentised below 30 of them, its variance counted
            2.25 times because the rows that probes are fitted on vary too.
        confidence: of the intervals.
        seed: of the draws.

    Returns:
        A row for each score: `auc`, `auc_direction`, the baselines by their names, and with baselines
        `auc_excess`; columns score, auc (in [0, 1]; the excess in [-1, 1]), low, high, n. NaN for one fold
        only, for one label only, and for states that are not finite.

    Raises:
        ValueError: lengths that differ, other labels than 0 and 1, confidence outside (0, 1), draws below 1.
        TypeError: states that are no numbers.

    Example:
        A feature that is the label, held out by halves.

        >>> import numpy as np, attnscope as asc
        >>> labels = np.arange(40) % 2
        >>> areas = asc.detection(labels[:, None], labels, folds=np.arange(40) // 10)
        >>> dict(zip(areas["score"], areas["auc"]))
        {'auc': 1.0, 'auc_direction': 1.0}

    References:
        Belinkov, Probing classifiers, 2022, for the results of a probe that need controls. Nadeau and Bengio,
        Inference for the generalization error, 2003, for the variance.
    """
    name = "detection"
    confidence, draws, seed = check_draws(name, confidence, draws, seed)
    scale = flag(name, "scale", scale)
    features = _features(name, "states", states, scale)
    target = number_array(name, "labels", labels, None)
    if target.ndim != 1:
        raise ValueError(f"{name}: labels must have one dimension, got shape {target.shape}")
    if set(target.tolist()) - {0, 1}:
        raise ValueError(f"{name}: labels must be 0 and 1, got {sorted(set(target.tolist()), key=str)[:5]}")
    if np.ndim(folds) != 1:
        raise ValueError(
            f"{name}: folds must be the fold of each of {len(features)} rows, got {folds!r:.60}; "
            f"np.arange({len(features)}) % 5 makes five folds"
        )
    held = label_numbers(name, "folds", folds)[1]
    units = held if clusters is None else label_numbers(name, "clusters", clusters)[1]
    for argument, value in (("labels", target), ("folds", held), ("clusters", units)):
        if len(value) != len(features):
            raise ValueError(f"{name}: {argument} must have {len(features)} entries, got {len(value)}")
    scores = {
        "auc": probe_scores(features, target, held, scale=scale),
        "auc_direction": direction_scores(features, target, held, scale=scale),
    }
    others = [*dict(baselines)]
    for other, baseline in dict(baselines).items():
        baseline_features = _features(name, other, baseline, scale)
        if len(baseline_features) != len(features):
            raise ValueError(f"{name}: {other} must have {len(features)} rows, got {len(baseline_features)}")
        scores[other] = probe_scores(baseline_features, target, held, scale=scale)
    return areas(scores, target, units, best_of=others, draws=draws, confidence=confidence, seed=seed)


def areas(
    scores: Mapping[str, Any],
    labels: Vector,
    clusters: Vector,
    *,
    best_of: Sequence[str] = (),
    draws: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Return areas of held-out scores, and the excess of `auc` over the best of some, as `detection` gives
    them.
    """
    import pandas as pd

    parts = {score: cluster_wins(np.asarray(value), labels, clusters) for score, value in scores.items()}
    rng = np.random.default_rng(seed)
    count = int(clusters.max()) + 1
    drawn = rng.multinomial(count, np.full(count, 1 / count), draws).astype(float)
    rows = [(score, *_interval([part], drawn, confidence)) for score, part in parts.items()]
    if best_of:
        best = max(best_of, key=lambda score: np.nan_to_num(area(parts[score]), nan=-1.0))
        rows.append(("auc_excess", *_interval([parts["auc"], parts[best]], drawn, confidence)))
    table = pd.DataFrame(rows, columns=["score", "auc", "low", "high"])
    table["n"] = len(labels)
    return table


def auc(scores: Any, labels: Any) -> Any:
    """Return the share of pairs of a 1 and a 0 in which the 1 scores higher, ties half; by the last axis.

    Args:
        scores: [..., n].
        labels: [..., n] of 0 and 1, broadcast.
    """
    import pandas as pd

    values, target = np.broadcast_arrays(np.asarray(scores, dtype=np.float64), np.asarray(labels))
    rows = pd.DataFrame(values.reshape(-1, values.shape[-1]))
    ranks = rows.rank(axis=1).to_numpy().reshape(values.shape)
    positives = target.sum(-1)
    negatives = target.shape[-1] - positives
    with np.errstate(divide="ignore", invalid="ignore"):
        return ((ranks * target).sum(-1) - positives * (positives + 1) / 2) / (positives * negatives)


def probe_scores(features: Vector, labels: Vector, folds: Vector, *, scale: bool = False) -> Vector:
    """Return log-odds of held-out rows by a ridge logistic probe of the others; NaN where nothing can be
    fitted.

    They are less the log-odds of the training labels: a fold that holds more of a label leaves fewer of it to
    be fitted, and folds that are pooled would rank the wrong way round (an area of .41 for noise of 80 rows).
    """
    return _held_out(features, labels, folds, _fitted, scale)


def direction_scores(features: Vector, labels: Vector, folds: Vector, *, scale: bool = False) -> Vector:
    """Return projections of held-out rows on the others' difference of means, from the middle between
    these, in units of the features' largest distance from their mean.
    """
    return _held_out(in_units(features), labels, folds, _difference, scale)


def in_units(features: Vector) -> Vector:
    """Return features [n, D] less their mean over their largest size: what is rounded then has no unit.

    Features that are all alike, or not finite, stay as they are.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        rest = features - features.mean(0)
        largest = np.abs(rest).max()
    return rest / largest if 0 < largest < np.inf else features


def cluster_wins(scores: Vector, labels: Vector, clusters: Vector) -> tuple[Vector, Vector]:
    """Count the wins between two clusters [G, G]: how often a 1 of the first beats a 0 of the second, and
    the pairs compared.
    """
    is_positive, is_negative = labels == 1, labels == 0
    if not np.isfinite(scores).all():
        count = int(clusters.max()) + 1
        return np.full((count, count), np.nan), np.ones((count, count))
    wins = (scores[is_positive][:, None] > scores[is_negative]) + 0.5 * (
        scores[is_positive][:, None] == scores[is_negative]
    )
    member = np.eye(int(clusters.max()) + 1)[clusters]
    return member[is_positive].T @ wins @ member[is_negative], np.outer(
        member[is_positive].sum(0), member[is_negative].sum(0)
    )


def area(part: tuple[Vector, Vector], weights: Vector | None = None) -> Any:
    """Return the area under the curve when clusters are weighted by [..., G]."""
    wins, pairs = part
    w = np.ones(len(wins)) if weights is None else weights
    with np.errstate(divide="ignore", invalid="ignore"):
        return ((w @ wins) * w).sum(-1) / ((w @ pairs) * w).sum(-1)


def _interval(
    parts: Sequence[tuple[Vector, Vector]], drawn: Vector, confidence: float
) -> tuple[float, float, float]:
    """Return the area, or difference of two areas, with its bootstrap interval over clusters."""

    def value(weights: Vector) -> Any:
        values_of_parts = [area(part, weights) for part in parts]
        return values_of_parts[0] if len(values_of_parts) == 1 else values_of_parts[0] - values_of_parts[1]

    count = drawn.shape[-1]
    estimate = float(value(np.ones(count)))
    if not np.isfinite(estimate) or count < 5 or not reach_tail(len(drawn), (1 - confidence) / 2):
        return estimate, np.nan, np.nan
    tails = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
    values = value(drawn)
    low, high = (-1.0, 1.0) if len(parts) == 2 else (0.0, 1.0)
    bounds = np.quantile(values[np.isfinite(values)], tails)
    without_cluster = value(1 - np.eye(count))
    error = float(np.sqrt((count - 1) / count * ((without_cluster - without_cluster.mean()) ** 2).sum()))
    if count < FEW and error > 0:
        # Jackknife errors of each draw, one of a cluster's copies left out at a time.
        without = np.nan_to_num(value(np.maximum(drawn[:, None, :] - np.eye(count), 0)))
        centre = np.average(without, axis=1, weights=drawn)
        errors = np.sqrt((drawn * (without - centre[:, None]) ** 2).sum(1) * (count - 1) / count)
        usable = np.isfinite(values) & (errors > 0)
        if usable.mean() >= 0.9:
            ratios = (values[usable] - estimate) / errors[usable]
            bounds = estimate - error * np.quantile(ratios, tails)[::-1]
    bounds = estimate + np.sqrt(WITH_TRAINING) * (bounds - estimate)
    return estimate, float(np.clip(bounds[0], low, high)), float(np.clip(bounds[1], low, high))


def _features(function: str, argument: str, values: Any, scale: bool) -> Vector:
    is_tensor = torch.is_tensor(values)
    data = values.detach().cpu().double().numpy() if is_tensor else number_array(function, argument, values)
    data = data[:, None] if data.ndim == 1 else data
    if data.ndim != 2 or not len(data):
        raise ValueError(f"{function}: {argument} must be [n, D], got shape {data.shape}")
    # what is scaled is turned afterwards, once per fold
    return data if scale else narrowed(data)


def _standardized(features: Vector, train: Vector) -> Vector:
    """Return all rows by mean and deviation of the training rows, turned into fewer dimensions than rows."""
    centred = features - features[train].mean(0)
    deviation = np.sqrt((centred[train] ** 2).mean(0))
    varies = deviation > 1e-12 * np.abs(features[train]).max(0)
    return narrowed(centred[:, varies] / deviation[varies]) if varies.any() else np.zeros((len(features), 1))


def _held_out(features: Vector, labels: Vector, folds: Vector, fit: Any, scale: bool) -> Vector:
    scores = np.full(len(labels), np.nan)
    if not np.isfinite(features).all():
        return scores
    for fold in np.unique(folds):
        test = folds == fold
        if len(set(labels[~test].tolist())) == 2:
            rows = _standardized(features, ~test) if scale else features
            # rows that differ in rounding alone are ties
            scores[test] = np.round(fit(rows[~test], labels[~test], folds[~test], rows[test]), 9)
    return scores


def _difference(train: Vector, labels: Vector, folds: Vector, test: Vector) -> Vector:
    mean_of_ones, mean_of_zeros = train[labels == 1].mean(0), train[labels == 0].mean(0)
    length = np.linalg.norm(mean_of_ones - mean_of_zeros)
    return (test - (mean_of_ones + mean_of_zeros) / 2) @ (mean_of_ones - mean_of_zeros) / max(length, 1e-300)


def _fitted(train: Vector, labels: Vector, folds: Vector, test: Vector) -> Vector:
    """Return the probe with the penalty that scores best on inner folds."""
    inner = np.unique(folds, return_inverse=True)[1] % _INNER
    losses = np.zeros(len(PENALTIES))
    for inner_fold in np.unique(inner) if len(np.unique(inner)) > 1 else ():
        held = inner == inner_fold
        if len(set(labels[~held].tolist())) == 2:
            logits = _paths(train[~held], labels[~held], train[held])
            signed = np.where(labels[held] == 1, logits, -logits)
            losses += np.logaddexp(0, -signed).sum(1)
    # of equal losses the strongest penalty
    best = len(PENALTIES) - 1 - int(np.argmin(np.round(losses[::-1], 12)))
    share = labels.mean()
    return _paths(train, labels, test, PENALTIES[best : best + 1])[0] - np.log(share / (1 - share))


def _paths(train: Vector, labels: Vector, test: Vector, penalties: Sequence[float] = PENALTIES) -> Any:
    """Return log-odds [penalties, test rows] of ridge logistic probes."""
    centre = train.mean(0)
    centred, held = train - centre, test - centre
    size = np.sqrt((centred**2).sum(1).mean())
    if not size > 0:
        share = labels.mean()
        return np.full((len(penalties), len(test)), np.log(share / (1 - share)))
    centred, held = centred / size, held / size
    theta = np.zeros(centred.shape[1] + 1)
    log_odds = np.empty((len(penalties), len(test)))
    # from the strongest penalty on, each starting where the one before it ended
    for place in np.argsort(penalties)[::-1]:
        theta = _minimum(centred, labels, penalties[place] * len(centred) / 100, theta)
        log_odds[place] = held @ theta[:-1] + theta[-1]
    return log_odds


def _minimum(x: Vector, y: Vector, penalty: float, start: Vector) -> Vector:
    """Return weights and bias of least Σ log-loss + penalty·‖w‖²/2: Newton's method, L-BFGS where it is
    wide.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    signs = np.where(y == 1, 1.0, -1.0)
    ridge = np.append(np.full(x.shape[1], penalty), 1e-9)
    theta = start

    def loss(at: Vector) -> tuple[float, Vector]:
        margin = signs * (x @ at[:-1] + at[-1])
        pull = -signs * expit(-margin)
        slope = np.append(x.T @ pull, pull.sum()) + ridge * at
        return float(np.logaddexp(0, -margin).sum() + (ridge * at**2).sum() / 2), slope

    if x.shape[1] > WIDE:
        return minimize(loss, theta, jac=True, method="L-BFGS-B", options={"gtol": 1e-6}).x
    design = np.column_stack([x, np.ones(len(x))])
    for _ in range(_STEPS):
        p = expit(design @ theta)
        hessian = design.T @ (design * np.maximum(p * (1 - p), 1e-12)[:, None]) + np.diag(ridge)
        move = np.linalg.solve(hessian, loss(theta)[1])
        theta = theta - move / (1 + np.linalg.norm(move) / 10)
        if np.linalg.norm(move) < 1e-9 * (1 + np.linalg.norm(theta)):
            break
    return theta


def narrowed(data: Vector) -> Vector:
    """Return features [n, D] turned into no more dimensions than there are rows, their distances kept."""
    n, d = data.shape
    if d <= n or not np.isfinite(data).all():
        return data
    centred = data - data.mean(0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    keep = values > 1e-12 * max(values[-1], 1e-300)
    turned: Vector = vectors[:, keep] * np.sqrt(values[keep])
    return turned if keep.any() else np.zeros((n, 1))
