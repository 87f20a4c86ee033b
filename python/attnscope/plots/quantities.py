# SPDX-License-Identifier: MIT
"""What the columns of the tables are called on an axis and in a sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """A measured column: its name on an axis, its symbol, and one sentence that says what it is."""

    label: str
    symbol: str
    meaning: str
    low: float | None = None
    high: float | None = None

    @property
    def axis(self) -> str:
        """Label and symbol, for an axis."""
        return f"{self.label} {self.symbol}" if self.symbol else self.label


#: Columns of `heads` and `graphs` by name.
QUANTITIES: dict[str, Quantity] = {
    "sink_share": Quantity(
        "attention to first key", "", "Mean over queries of the attention given to the first key.", 0, 1
    ),
    "sink_boost": Quantity(
        "sink share / uniform", "", "Attention to the first key over what uniform attention gives it.", 0
    ),
    "sink_rate": Quantity(
        "share of heads with a sink",
        "",
        "1 where the first key receives more than 0.3 on average; its mean is the share of heads.",
        0,
        1,
    ),
    "top_mass": Quantity(
        "mass of the top key", "", "Share of all attention held by the strongest key.", 0, 1
    ),
    "sink_count": Quantity(
        "sink tokens per map",
        "",
        "Keys that at least 40 % of the queries which see them attend to strongly.",
        0,
    ),
    "entropy": Quantity("entropy (nats)", "", "Mean over queries of the entropy of a row.", 0),
    "entropy_normalized": Quantity(
        "entropy / maximum",
        "",
        "Row entropy over the logarithm of the number of visible keys, mean over queries.",
        0,
        1,
    ),
    "fiedler_value": Quantity(
        "Fiedler value",
        r"$\lambda_2$",
        "Second smallest eigenvalue of the Laplacian of the graph with weights (A + Aᵀ)/2: how hard the "
        "graph is to cut.",
        0,
    ),
    "fiedler_value_normalized": Quantity(
        "normalised Fiedler",
        r"$\hat\lambda_2$",
        "The same for the degree-normalised Laplacian, which weak nodes cannot cap.",
        0,
    ),
    "laplacian_gap": Quantity(
        "spectral gap", r"$\lambda_3-\lambda_2$", "Distance to the next eigenvalue of the Laplacian.", 0
    ),
    "participation_ratio": Quantity(
        "participation ratio",
        "PR",
        "(Σe)²/Σe² over the squared singular values e of A: how many directions carry the map.",
        1,
    ),
    "participation_ratio_eigen": Quantity(
        "participation ratio (eigenvalues)", "", "The participation ratio of |eigenvalues of A|.", 1
    ),
    "participation_ratio_laplacian": Quantity(
        "participation ratio (Laplacian)", "", "The participation ratio of the Laplacian's eigenvalues.", 1
    ),
    "stable_rank": Quantity("stable rank", "", "Squared Frobenius norm over squared spectral norm.", 1),
    "effective_rank": Quantity(
        "effective rank", "", "Exponential of the entropy of the normalised singular values.", 1
    ),
    "spectral_gap": Quantity("singular gap", r"$\sigma_1-\sigma_2$", "First minus second singular value.", 0),
    "spectral_ratio": Quantity(
        "singular ratio", r"$\sigma_1/\sigma_2$", "First over second singular value.", 1
    ),
    "mp_ks": Quantity(
        "KS from random law",
        "",
        "Kolmogorov-Smirnov distance between the spectrum of the row-standardised map and the law of "
        "random entries on the same support.",
        0,
        1,
    ),
    "mp_wasserstein": Quantity(
        "distance from random law", r"$W_1$", "Wasserstein distance from the law of random entries.", 0
    ),
    "mp_over_edge": Quantity(
        "largest / edge", "", "Largest eigenvalue over the upper edge of the random law.", 0
    ),
    "mp_outliers": Quantity("outliers", "", "Eigenvalues above the edge of the random law.", 0),
    "mp_outlier_energy": Quantity(
        "energy of outliers", "", "Share of the spectrum's sum held by outliers.", 0, 1
    ),
    "bar_count_0": Quantity("H0 bars", "", "Number of bars in dimension 0, the infinite one included.", 0),
    "bar_count_1": Quantity("H1 bars", "", "Number of loops that appear anywhere in the filtration.", 0),
    "total_persistence_0": Quantity(
        "total H0 persistence", "", "Sum of the lengths of finite bars in dimension 0.", 0
    ),
    "total_persistence_1": Quantity(
        "total H1 persistence", "", "Sum of the lengths of finite bars in dimension 1.", 0
    ),
    "max_persistence_0": Quantity(
        "longest H0 bar", "", "Length of the longest finite bar in dimension 0.", 0
    ),
    "max_persistence_1": Quantity(
        "longest H1 bar", "", "Length of the longest finite bar in dimension 1.", 0
    ),
    "persistent_entropy_0": Quantity(
        "persistent entropy H0", "", "Entropy of the lengths of finite bars in dimension 0.", 0
    ),
    "persistent_entropy_1": Quantity(
        "persistent entropy H1", "", "Entropy of the lengths of finite bars in dimension 1.", 0
    ),
    "head_divergence": Quantity(
        "KL from head mean", "", "Mean over queries of KL(head ‖ mean of the heads).", 0
    ),
    "alignment_value": Quantity(
        "alignment with values",
        "r",
        "Correlation of attention with the cosine of value vectors, over visible pairs.",
    ),
    "alignment_hidden": Quantity(
        "alignment with states",
        "r",
        "Correlation of attention with the cosine of hidden states, over visible pairs.",
    ),
    "alignment_value_without_sinks": Quantity(
        "alignment with values, no sinks", "r", "The same with the head's sink tokens left out of the keys."
    ),
    "alignment_hidden_without_sinks": Quantity(
        "alignment with states, no sinks", "r", "The same with the head's sink tokens left out of the keys."
    ),
    "reference_magnitude": Quantity(
        "reference, magnitude",
        "",
        "Norm of what the sink tokens contribute to a query's output, over the norm of the output.",
        0,
    ),
    "reference_directional": Quantity(
        "reference, direction", "", "Cosine between that contribution and the whole output.", -1, 1
    ),
    "reference_information": Quantity(
        "reference, turn", "", "How far the output turns without it: 1 − cosine.", 0
    ),
    "entropy_magnitude_correlation": Quantity(
        "entropy with change",
        "r",
        "Correlation over tokens of a row's entropy with how far the block moves the token.",
        -1,
        1,
    ),
    "transformation_magnitude": Quantity(
        "change by the block", "", "Mean over tokens of the distance between a block's output and input.", 0
    ),
    "mean_persistence_0": Quantity("mean H0 bar", "", "Mean length of finite bars in dimension 0.", 0),
    "mean_persistence_1": Quantity("mean H1 bar", "", "Mean length of finite bars in dimension 1.", 0),
    "density": Quantity("density", "", "Edges of the thresholded graph over all pairs.", 0, 1),
    "components": Quantity("components", "", "Connected components of the thresholded graph.", 0),
    "hub_share": Quantity("hub share", "", "Largest degree over n − 1.", 0, 1),
    "gini": Quantity("Gini of degrees", "", "Inequality of the degrees of the thresholded graph.", 0, 1),
    "centralization": Quantity("centralisation", "", "Freeman's degree centralisation; 1 for a star.", 0, 1),
    "star_likeness": Quantity("star-likeness", "", "Hub share times the sparsity among the others.", 0, 1),
    "betti_0": Quantity(
        "components", r"$\beta_0$", "Connected components of the pairs at or above the threshold.", 0
    ),
    "betti_1": Quantity(
        "loops",
        r"$\beta_1$",
        "Independent loops of the pairs at or above the threshold, cliques filled in.",
        0,
    ),
}


def quantity(name: str) -> Quantity:
    r"""What is known about a column; an unknown one is called by its own name.

    Args:
        name: a column of a table.

    Returns:
        The entry of `QUANTITIES`, or a bare one.

    >>> quantity("fiedler_value").axis, quantity("my_metric").axis
    ('Fiedler value $\\lambda_2$', 'my metric')
    """
    return QUANTITIES.get(name) or Quantity(name.replace("_", " "), "", "")
