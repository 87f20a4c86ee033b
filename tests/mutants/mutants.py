# SPDX-License-Identifier: MIT
"""The mutants: one wrong line each, of the kind that a hand makes."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """`old`, which stands in `file` once, becomes `new`; `equivalent` argues why no test can see it."""

    file: str
    old: str
    new: str
    equivalent: str = ""


MUTANTS = [
    Mutant("alignment.cpp", "(first == i || (weighted", "(first == i && (weighted"),
    Mutant(
        "alignment.cpp",
        "if (all.count < 2.0 ||",
        "if (all.count < 1.0 ||",
        "one pair does not vary, and the next condition says NaN",
    ),
    Mutant("alignment.cpp", "to.ac += part.ac + da * dc * cross;", "to.ac += part.ac;"),
    Mutant("betti.cpp", "if (weight < smallest) continue;", "if (weight <= smallest) continue;"),
    Mutant("betti.cpp", "return threshold < 1.0 ?", "return threshold <= 1.0 ?"),
    Mutant(
        "betti.cpp",
        "while (weight < thresholds[group]) ++group;",
        "while (weight <= thresholds[group]) ++group;",
    ),
    Mutant("divergence.cpp", "out.excluded[at] = !(left[h] > 0.0);", "out.excluded[at] = !(left[h] >= 0.0);"),
    Mutant(
        "divergence.cpp", "bounded_log(load(at) / survivors)", "bounded_log(load(at) / double(heads.size()))"
    ),
    Mutant("divergence.cpp", "bounded_log(total / scale)", "bounded_log(total)"),
    Mutant("entropy.cpp", "keys < 2 ? kNaN", "keys < 1 ? kNaN"),
    Mutant("entropy.cpp", "std::log(static_cast<double>(keys))", "std::log(static_cast<double>(n))"),
    Mutant("fiedler.cpp", "if (vector[i] < 0.0) vector = -vector;", "if (vector[i] > 0.0) vector = -vector;"),
    Mutant(
        "fiedler.cpp", "solver.eigenvectors().col(graph ? 0 : 1)", "solver.eigenvectors().col(graph ? 1 : 0)"
    ),
    Mutant("graph_statistics.cpp", "directed[i * n + i] = 0;", ";"),
    Mutant("graph_statistics.cpp", "(2 * rank + equal - n)", "(2 * rank + equal + n)"),
    Mutant("graph_statistics.cpp", "entries[k] >= threshold", "entries[k] > threshold"),
    Mutant("laplacian.cpp", "return 0.5 * (a + b);", "return std::max(a, b);"),
    Mutant("laplacian.cpp", "std::max(a, b) >= *options.threshold", "std::max(a, b) > *options.threshold"),
    Mutant("laplacian.cpp", "i < components ? 0.0 :", "i + 1 < components ? 0.0 :"),
    Mutant("laplacian.cpp", "w(i, i) = degree[i] == 0.0 ? 0.0 : 1.0;", "w(i, i) = 1.0;"),
    Mutant("marchenko_pastur.cpp", "static_cast<double>(1 + at_least)", "static_cast<double>(at_least)"),
    Mutant("marchenko_pastur.cpp", ">= result.ks) ++at_least", "> result.ks) ++at_least"),
    Mutant("marchenko_pastur.cpp", "left > 1; --left", "left > 2; --left"),
    Mutant("marchenko_pastur.cpp", "std::sqrt(size / variance)", "std::sqrt((size - 1) / variance)"),
    Mutant("participation_ratio.cpp", "return sum * sum / sum_of_squares;", "return sum / sum_of_squares;"),
    Mutant(
        "participation_ratio.cpp",
        "columns > diagonal ? two : (columns == diagonal ? one : Lanes{})",
        "columns > diagonal ? two : (columns == diagonal ? two : Lanes{})",
    ),
    Mutant("participation_ratio.cpp", "squares += degree * degree;", ";"),
    Mutant("persistence.cpp", "if (bar.death == 0.0) return;", ""),
    Mutant("persistence.cpp", "if (bar.birth == bar.death) continue;", ""),
    Mutant("persistence.cpp", "if (cycle.death == FlagHomology::kOpen) continue;", ""),
    Mutant("reference_influence.cpp", "if (reference[i * stride]) continue;", ""),
    Mutant("reference_influence.cpp", "norm > 0.0 ? norm_r / norm", "norm > 0.0 ? norm_n / norm"),
    Mutant("sinks.cpp", ">= rule.gamma", "> rule.gamma"),
    Mutant("sinks.cpp", "if (best < 0 || mean > largest)", "if (best < 0 || mean >= largest)"),
    Mutant("sinks.cpp", "if (queries < required) continue;", "if (queries <= required) continue;"),
    Mutant("sinks.cpp", "if (visible == 0) continue;", ""),
    Mutant("base/cycle_labels.cpp", "if (is_closed_[entry] != 0) {", "if (false) {"),
    Mutant("base/cycle_labels.cpp", "if (stale) {", "if (false) {"),
    Mutant(
        "base/flag_homology.cpp", "if (classes_[gone].birth < last_group_) --old_cycles_;", "--old_cycles_;"
    ),
    Mutant("base/flag_homology.cpp", "if (!left) return;", "return;"),
    Mutant("base/flag_homology.cpp", "if (a != b) {", "if (a == b) {"),
    Mutant(
        "base/edge_order.cpp",
        "const Signed ordered = bits < 0 ? -magnitude : magnitude;",
        "const Signed ordered = magnitude;",
    ),
    Mutant("base/edge_order.cpp", "return 0.5 * (a + b);", "return a + b;"),
    Mutant("base/quantile.cpp", "at + (next - at) * (position - rank)", "at"),
    Mutant("base/null_law.cpp", "sinc(t) * std::exp(t_cot(t))", "std::exp(t_cot(t))"),
]
