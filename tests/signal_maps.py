# SPDX-License-Identifier: MIT
"""Maps whose rows are given signals, and the signals of a map read by NumPy."""

import numpy as np
import torch


def of_signal(x, dtype=torch.float64):
    """A map whose every row is x."""
    x = np.asarray(x, dtype=float)
    return torch.tensor(np.tile(x, (len(x), 1))).to(dtype)


def signals(attention, *, signal="rows", min_keys=32, drop_first=False, visible=None):
    """{query: signal} of one map [n, n], as the definition says; query 0 where there is one signal."""
    a = np.asarray(attention, dtype=float)
    n = len(a)
    if visible is None:
        visible = np.tri(n, dtype=bool) if n > 1 and not np.triu(a, 1).any() else np.ones((n, n), bool)
    keys = np.arange(n) >= (1 if drop_first else 0)
    a = np.where(visible & keys, a, 0.0)
    if drop_first:
        with np.errstate(invalid="ignore", divide="ignore"):
            a = a / a.sum(1, keepdims=True)
    rows = {i: a[i, visible[i] & keys] for i in range(n) if np.isfinite(a[i]).all()}
    if signal == "rows":
        return {i: x for i, x in rows.items() if len(x) >= min_keys}
    if signal == "last":
        return {0: rows[n - 1]} if n - 1 in rows and len(rows[n - 1]) >= min_keys else {}
    if signal == "mean":
        long = [i for i, x in rows.items() if len(x) >= min_keys]
        seen = (visible & keys)[long].sum(0)
        x = a[long].sum(0)[seen > 0] / seen[seen > 0] if long else np.zeros(0)
    else:
        i, j = np.indices((n, n))
        seen = visible & keys & np.isin(i, list(rows))
        far = np.abs(i - j)[seen].max(initial=-1)
        x = np.array([a[seen & (np.abs(i - j) == d)].sum() / max((seen & (np.abs(i - j) == d)).sum(), 1)
                      for d in range(far + 1)])  # fmt: skip
    return {0: x} if len(x) >= min_keys else {}
