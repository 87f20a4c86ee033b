# SPDX-License-Identifier: MIT
"""What the report says of single maps: sinks, information, graphs, spectra, topology.

The texts are our own HTML; nothing that comes from a run is put into them.
"""

from __future__ import annotations

from attnscope.report.numbers import Wanted
from attnscope.report.section import Section, analysis

#: The threshold at which graphs and Betti numbers stand in a table.
THRESHOLD = 0.02

SECTIONS: tuple[Section, ...] = (
    analysis(
        "sinks",
        "Attention sinks",
        tables=("heads", "ablation"),
        words=(
            "A sink is a key, usually the first, that many queries attend to although it says little. How "
            "much a head attends to it means something only beside what uniform attention would give: a "
            "short sequence makes any first key look heavy."
        ),
        definition=(
            "Attention to the first key: the mean over queries <i>i</i> of <i>A</i><sub><i>i</i>0</sub>. "
            "Uniform causal attention gives (1/<i>n</i>) Σ<sub><i>i</i>=1..<i>n</i></sub> 1/<i>i</i> = "
            "<i>H<sub>n</sub></i>/<i>n</i>, in a window of <i>w</i> tokens <i>H<sub>w</sub></i>/<i>n</i>. "
            "The usual bound of a sink is that queries which see the first key give it more than 0.3 (Gu et "
            "al., arXiv 2410.10781); in a window of nine tokens or fewer, uniform attention does. Every row "
            "has a largest entry, so a key is called a sink only when it receives from far queries more than "
            "any key would if the far entries of each row were exchangeable (chance 0.01 a map, Bernstein's "
            "inequality) and more than twice what uniform attention gives it; texts of fewer than 256 tokens "
            "are also judged together. Sink tokens per map count by frequency instead: keys that 40 % of the "
            "queries attend to strongly."
        ),
        figures=("sink_emergence", "sink_maps", "ablation"),
        metrics=(
            *("sink_share", "sink_boost", "sink_rate", "sink_count_test", "sink_excess", "sink_count"),
            *("top_mass", "learned_sink_mass"),
        ),
        pairs=(
            Wanted("head_means", "sink_count", "sink tokens per map"),
            Wanted(
                "head_means",
                "top_mass",
                "mass of the top key; published: of the top tenth",
                "sink_concentration",
            ),
        ),
        published=(
            "The published concentration is the mass of the keys at or above the 90th percentile of column "
            "sums: a tenth of the keys by construction, whatever the model.",
        ),
        published_causal=(
            "Uniform causal attention already gives a tenth of the keys 0.31 to 0.32 (n = 20 to 40), so "
            "“sinks take 30 to 40 %” is close to what no sink at all gives.",
        ),
    ),
    analysis(
        "information",
        "Entropy and agreement of heads",
        tables=("heads", "layers"),
        words=(
            "Entropy says over how many keys a query spreads its attention; divided by its maximum "
            "it can be compared between positions. The divergence from the head mean says how much a "
            "head differs from its neighbours in the layer."
        ),
        definition=(
            "−Σ<sub><i>j</i></sub> <i>A<sub>ij</sub></i> log <i>A<sub>ij</sub></i> in nats, mean over "
            "queries; normalised by log of the number of visible keys. Divergence: mean over queries of "
            "KL(<i>A<sup>h</sup><sub>i</sub></i> ‖ <i>Ā<sub>i</sub></i>)."
        ),
        figures=("sink_removal", "divergence"),
        metrics=("entropy", "entropy_normalized", "head_divergence"),
        pairs=(
            Wanted("layers", "kl_reduction_80", "KL reduction, 80th percentile"),
            Wanted("layers", "kl_reduction_90", "KL reduction, 90th percentile"),
            Wanted("layers", "kl_reduction_95", "KL reduction, 95th percentile"),
        ),
        published=(
            "In the published KL a row that loses all its keys becomes uniform; here it is left out and "
            "counted.",
        ),
        published_causal=(
            "The published sinks are the keys of the largest total mass over heads and queries: early keys "
            "are seen by more queries of a causal model and win by that alone.",
        ),
    ),
    analysis(
        "graph",
        "Attention as a graph",
        tables=("heads", "graphs"),
        words=(
            "Tokens are nodes and attention the weight of their links; the Fiedler value λ₂ says how hard "
            "the graph is to cut in two. Thresholded graphs show at which strength links, hubs and pieces "
            "appear."
        ),
        definition=(
            "<i>W</i> = (<i>A</i> + <i>A</i>ᵀ)/2 with zero diagonal, <i>L</i> = <i>D</i> − <i>W</i>, "
            "λ₂ its second smallest eigenvalue; normalised: of <i>I</i> − <i>D</i><sup>−1/2</sup><i>W</i>"
            "<i>D</i><sup>−1/2</sup>. Thresholded graph: a link where max(<i>A<sub>ij</sub></i>, "
            "<i>A<sub>ji</sub></i>) ≥ <i>t</i>, unweighted. A learned sink is no node."
        ),
        figures=("thresholds",),
        metrics=("fiedler_value", "fiedler_value_normalized", "laplacian_gap"),
        pairs=(
            Wanted("head_mean_graphs", "graph_fiedler_value", "λ₂ of the graph at 0.02", threshold=THRESHOLD),
            Wanted("head_mean_graphs", "density", "density at 0.02", threshold=THRESHOLD),
            Wanted("head_mean_graphs", "hub_share", "hub share at 0.02", threshold=THRESHOLD),
            Wanted("head_mean_graphs", "gini", "Gini of degrees at 0.02", threshold=THRESHOLD),
            Wanted("head_mean_graphs", "centralization", "centralisation at 0.02", threshold=THRESHOLD),
            Wanted("head_mean_graphs", "star_likeness", "star-likeness at 0.02", threshold=THRESHOLD),
        ),
        published=(
            "The published graph keeps self-loops and counts in-degrees over them, halves every "
            "one-way link (so λ₂ of a causal graph is half of the simple graph's), and lets the hub "
            "share exceed 1: n/(n − 1) for a star. Star-likeness is 0.3 hub share + 0.7 Gini: a full "
            "causal graph, no star at all, scores 0.54.",
        ),
        caveats=(
            "λ₂ of causal maps is capped: λ₂ ≤ <i>n</i>/(<i>n</i>−1) · smallest degree, about 0.5, because "
            "the last token is seen by no other query. Sink heads and diffuse heads reach the same cap, so a "
            "λ₂ near 0.5 tells them not apart; the normalised value beside it has no such cap.",
            "Uniform attention of a causal model without windows sits at the cap already. A falling λ₂ over "
            "training says that attention becomes selective, not that it becomes disconnected by meaning.",
        ),
    ),
    analysis(
        "random-matrices",
        "Spectra against random matrices",
        tables=("heads",),
        words=(
            "The participation ratio counts the directions that carry a map: 1 for a pure sink, <i>n</i> "
            "for a permutation. The Kolmogorov-Smirnov distance says how far the spectrum is from that of "
            "random entries under the same mask."
        ),
        definition=(
            "Participation ratio: (Σ<i>e</i>)²/Σ<i>e</i>² over squared singular values <i>e</i> of "
            "<i>A</i>. Distance from the random law: rows are standardised over their visible keys, "
            "and the squared singular values over <i>n</i> are compared with the Marchenko-Pastur "
            "law (full maps), the triangular law of Dykema and Haagerup (causal maps, support [0, e]), or "
            "shuffled copies of the map's own rows (windows and other masks)."
        ),
        figures=("spectra",),
        pairs=(
            Wanted("head_means", "participation_ratio", "participation ratio"),
            Wanted("head_means", "spectral_ratio", "first over second value"),
            Wanted("head_means", "stable_rank", "stable rank"),
            Wanted(
                "head_means",
                "mp_ks",
                "distance from the null law; published: KL",
                "marchenko_pastur_deviation",
            ),
        ),
        published_causal=(
            "The published spectrum is |eigenvalues| of the attention matrix. Those of a causal map "
            "are its diagonal, the self-attentions A<sub>ii</sub>: their gap is the ratio of the two "
            "largest self-attentions, their participation ratio the evenness of self-attention. The "
            "first row attends to itself with 1, so untrained uniform attention gives a gap of exactly 2.",
        ),
        published=(
            "Its Marchenko-Pastur deviation compares a histogram of ten eigenvalues with the law at aspect "
            "0.99 by a KL that is infinite where a bin is empty; such samples are left out of the mean.",
        ),
        metrics=(
            "participation_ratio",
            "stable_rank",
            "effective_rank",
            "mp_ks",
            "mp_outliers",
            "mp_outlier_energy",
        ),
        caveats=(
            "A square Marchenko-Pastur law is wrong under a causal mask, so it is not used there.",
            "Random causal maps themselves show an outlier in 4, 10 and 14 % of cases at <i>n</i> = 64, "
            "128, 256 (3 % without a mask), and a distance of about 0.03 at <i>n</i> = 128.",
            "Uniform attention has no distance: all visible entries of a row are equal, and such rows are "
            "left out. An untrained model is close to it, so what is left of its rows after standardising "
            "is not random either, and its distance need not be small.",
        ),
    ),
    analysis(
        "topology",
        "Topology",
        tables=("heads", "bars"),
        words=(
            "Persistent homology lowers a threshold on attention and watches pieces join (H0) and loops "
            "appear and fill (H1). A pure sink is a star, one piece without a loop; loops count links "
            "that go around."
        ),
        definition=(
            "Weights <i>w</i> = max(<i>A<sub>ij</sub></i>, <i>A<sub>ji</sub></i>), distance 1 − <i>w</i>, "
            "Vietoris-Rips filtration over Z/2. β₀ and β₁ at a threshold <i>t</i> count components "
            "and loops of the clique complex of {<i>w</i> ≥ <i>t</i>}. A learned sink is no point."
        ),
        figures=("persistence",),
        metrics=(
            "bar_count_1",
            "total_persistence_0",
            "total_persistence_1",
            "max_persistence_1",
            ("betti_0", THRESHOLD),
            ("betti_1", THRESHOLD),
        ),
        pairs=(
            Wanted("head_means", "bar_count_0", "β₀, bars of the whole diagram"),
            Wanted("head_means", "bar_count_1", "β₁, bars of the whole diagram"),
            Wanted("head_means", "mean_persistence_0", "mean length of finite H0 bars"),
            Wanted("head_means", "mean_persistence_1", "mean length of finite H1 bars"),
        ),
        published_causal=(
            "The published β₀ is min(<i>n</i>, 30) and β₁ is 0 for every causal model whose kept tokens give "
            "themselves some attention, whatever else it attends to: the distance matrix is not symmetrised, "
            "its diagonal makes vertex <i>i</i> be born at 1 − A<sub>ii</sub>, and only entries above the "
            "diagonal, which are 1 − 0, are read as edges. The mean length of finite H0 bars is the mean "
            "self-attention of the tokens after the first. A query that gives itself nothing has no bar.",
        ),
        published=(
            "Texts of more than 30 tokens are thinned to 30 rows and columns before the published "
            "topology, which removes most keys.",
        ),
        caveats=(
            "1 − <i>w</i> is no metric (no triangle inequality); none is needed for the bars to be defined.",
        ),
    ),
)
