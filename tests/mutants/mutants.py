# SPDX-License-Identifier: MIT
"""The mutants: one wrong line each, of the kind that a hand makes, by file below cpp."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """`old`, which stands in its file once, becomes `new`; `argued` says why no test can see it."""

    old: str
    new: str
    argued: str = ""


# A header's mutant is seen through one kernel, or one test, that includes it.
THROUGH = {
    "homology/bit_row.h": "homology/flag_homology.cpp",
    "homology/hellinger.h": "homology/edge_order.cpp",
    "simd/logarithm.h": "matrix/row_statistics.cpp",
    "matrix/radix_sort.h": "homology/edge_order.cpp",
    "matrix/row_logs.h": "matrix/row_statistics.cpp",
    "matrix/row_products.h": "kernels/states/alignment.cpp",
    "matrix/rows.h": "lanes/counts_test.cpp",
    "linalg/shifted_lanczos.h": "lanes/shifted_lanczos_test.cpp",
    "signals/signal_reader.h": "kernels/signals/wavelet.cpp",
    "random_matrices/standard_rows.h": "kernels/spectra/marchenko_pastur.cpp",
    "linalg/panel_cholesky.h": "lanes/panel_cholesky_test.cpp",
    "linalg/panel_gram.h": "lanes/panel_tridiagonal_test.cpp",
    "linalg/panel_tridiagonal.h": "lanes/panel_tridiagonal_test.cpp",
    "linalg/sturm_bisection.h": "graphs/simple_graph_spectrum.cpp",
}

MUTANTS: dict[str, list[Mutant]] = {
    "kernels/states/alignment.cpp": [
        Mutant("(first == i || (weighted", "(first == i && (weighted"),
        Mutant(
            "if (all.count < 2.0 ||",
            "if (all.count < 1.0 ||",
            "one pair does not vary, and the next condition says NaN",
        ),
        Mutant("to.ac += part.ac + da * dc * cross;", "to.ac += part.ac;"),
        Mutant("if (directed[i] == 0.0) continue;", ""),
        Mutant("width, tile, depth, k > 0,", "width, tile, depth, false,"),
        Mutant("if (causal && first >= i + rows) continue;", "if (causal && first >= i) continue;"),
        Mutant("weights[j] = 0.0;\n      }", "weights[j] = 1.0;\n      }"),
        Mutant("last - first - (i >= first && i < last ? 1 : 0)", "last - first - 1"),
        Mutant("!(all.cc > all.count * kRounding * kRounding)", "!(all.cc > 0.0)"),
    ],
    "kernels/homology/betti.cpp": [
        Mutant("if (weight < smallest) return;", "if (weight <= smallest) return;"),
        Mutant("return threshold < 1.0 ?", "return threshold <= 1.0 ?"),
        Mutant("while (weight < thresholds[group]) ++group;", "while (weight <= thresholds[group]) ++group;"),
        Mutant("(j > i && back >= smallest)", "j > i"),
        Mutant("if (row[j] >= cut) visit(j);", "if (row[j] > cut) visit(j);"),
        Mutant("visit(j + std::countr_zero(bits))", "visit(j)"),
        Mutant("return std::min(std::min(a, b), 1.0);", "return std::min(std::max(a, b), 1.0);"),
    ],
    "kernels/information/divergence.cpp": [
        Mutant("out.excluded[at] = !(left[h] > 0.0);", "out.excluded[at] = !(left[h] >= 0.0);"),
        Mutant("bounded_log(load(at) / survivors)", "bounded_log(load(at) / double(heads.size()))"),
        Mutant("bounded_log(total / scale)", "bounded_log(total)"),
        Mutant("end_ = std::max(end_, readers_[h].end(i));", "end_ = readers_[h].end(i);"),
        Mutant("return -entropy - row_cross(", "return -entropy + row_cross("),
        Mutant("std::fill(rescaled + rows.end(), rescaled + n, 0.0);", ""),
        Mutant("j < n && !removed[j * key_stride] ? 1.0", "j < n && !removed[j] ? 1.0"),
    ],
    "kernels/information/entropy.cpp": [
        Mutant("keys < 2 ? kNaN", "keys < 1 ? kNaN"),
        Mutant("std::log(static_cast<double>(keys))", "std::log(static_cast<double>(n))"),
        Mutant("if (!normalized) return true;", "if (normalized) return true;"),
        Mutant("std::fill(out, out + n, kNaN);", ""),
    ],
    "kernels/graphs/fiedler.cpp": [
        Mutant("if (vector[i] < 0.0) scale_vector(vector", "if (vector[i] > 0.0) scale_vector(vector"),
        Mutant("solver.eigenvectors().col(graph ? 0 : 1)", "solver.eigenvectors().col(graph ? 1 : 0)"),
    ],
    "kernels/graphs/graph_statistics.cpp": [
        Mutant("(2 * rank + equal - n)", "(2 * rank + equal + n)"),
    ],
    "kernels/graphs/laplacian.cpp": [
        Mutant("return 0.5 * (a + b);", "return std::max(a, b);"),
        Mutant("std::max(a, b) >= *options.threshold", "std::max(a, b) > *options.threshold"),
        Mutant("i < components ? 0.0 :", "i + 1 < components ? 0.0 :"),
        Mutant("w(i, i) = degree[i] == 0.0 ? 0.0 : 1.0;", "w(i, i) = 1.0;"),
        Mutant("own[j - first] = -row[j];", ";"),
        Mutant("if (components == 0 || !options.normalized) return components;", "return components;"),
        Mutant("if (i != j) row[j - first] *=", "row[j - first] *="),
    ],
    "kernels/signals/locality.cpp": [
        Mutant("i + window + 1, from", "i + window, from"),
        Mutant("i - window, first", "i - window + 1, first"),
        Mutant("drop_first ? 1 : 0", "drop_first ? 0 : 1"),
        Mutant("global += sum_between(row, first, from) + ", "global += "),
        Mutant("local / global", "local / (local + global)"),
    ],
    "kernels/spectra/marchenko_pastur.cpp": [
        Mutant("static_cast<double>(1 + at_least)", "static_cast<double>(at_least)"),
        Mutant(">= result.ks) ++at_least", "> result.ks) ++at_least"),
        Mutant("left > 1; --left", "left > 2; --left"),
    ],
    "kernels/spectra/participation_ratio.cpp": [
        Mutant("return sum * sum / sum_of_squares;", "return sum / sum_of_squares;"),
        Mutant("squares += 2.0 * inner_product(panel,", "squares += inner_product(panel,"),
        Mutant("std::min(ld, end + kPanel)", "end"),
        Mutant("squares += degree * degree;", ";"),
    ],
    "kernels/homology/persistence.cpp": [
        Mutant("if (death == 0.0) return;", ""),
        Mutant("if (bar.birth == bar.death) continue;", ""),
        Mutant("if (cycle.death == FlagHomology::kOpen) continue;", ""),
        Mutant(
            "write_edge(edges[cycle.death], bar.death_edge);",
            "write_edge(edges[cycle.birth], bar.death_edge);",
        ),
        Mutant("if (!std::is_sorted(bars.begin() + first, bars.end(), sorts_before)) {", "if (false) {"),
        Mutant("if (attention.rows() > 1) {", "if (attention.rows() > 2) {"),
        Mutant(
            "if (rest == FlagHomology::Rest::nothing) return;",
            "if (rest != FlagHomology::Rest::unknown) return;",
        ),
    ],
    "kernels/signals/power_spectrum.cpp": [
        Mutant("x[t] * (0.5 - 0.5 * c)", "x[t] * (0.5 + 0.5 * c)"),
        Mutant(
            "if (t % 64 == 0) {", "if (t == 0) {", "a rotation's error grows by less than a rounding a step"
        ),
        Mutant("if (k > 0 && k < bins - 1) power[k] *= 2.0;", "if (k > 0) power[k] *= 2.0;"),
        Mutant("power[k] <= kRounding * total", "power[k] < 0.0"),
        Mutant("4 * k < bins - 1 ? 0", "4 * k <= bins - 1 ? 0"),
        Mutant("power[k] / total * part / (high - low)", "power[k] / total * part"),
        Mutant(
            "static_cast<double>(peak) / nyquist", "static_cast<double>(peak) / static_cast<double>(bins)"
        ),
    ],
    "kernels/states/reference_influence.cpp": [
        Mutant("if (!reference[i * stride])", "if (true)"),
        Mutant("norm > 0.0 ? norm_r / norm", "norm > 0.0 ? norm_n / norm"),
        Mutant("std::min(depth, begin + i + count - j)", "std::min(depth, begin + i - j)"),
        Mutant("j > 0, from_rest", "false, from_rest"),
        Mutant("r > 0, from_reference", "false, from_reference"),
        Mutant("(squared_r + across) / norm_r", "squared_r / norm_r"),
        Mutant("to[key] = 0.0;", ""),
        Mutant("norm > 0.0 && norm_n > 0.0", "norm > 0.0"),
    ],
    "kernels/spectra/singular_values.cpp": [
        Mutant("values[i] /= scales[lane];", "values[i] *= scales[lane];"),
        Mutant("std::min(kPackWidth, count - first)", "std::min(kPackWidth, count)"),
        Mutant(
            "if (n <= kLargestPacked) {", "if (n < kLargestPacked - 1) {", "both ways give the same values"
        ),
        Mutant("larger(largest, magnitude(entries[j]))", "larger(largest, entries[j])"),
    ],
    "kernels/information/sinks.cpp": [
        Mutant(">= rule.gamma", "> rule.gamma"),
        Mutant("if (best < 0 || mean > largest)", "if (best < 0 || mean >= largest)"),
        Mutant("if (queries < required) continue;", "if (queries <= required) continue;"),
        Mutant("if (visible == 0) continue;", ""),
    ],
    "kernels/signals/uncertainty.cpp": [
        Mutant(
            "std::sqrt(x / mass) : x / mass", "std::sqrt(x) : x / mass", "divided by its norm right after"
        ),
        Mutant(
            "alternating += t % 2 == 0 ? x : -x;",
            "alternating += t % 2 == 0 ? -x : x;",
            "only its square is read",
        ),
        Mutant("static_cast<double>(t) - mean", "static_cast<double>(t)"),
        Mutant("(k % 2 == 0 ? 4.0 : -4.0)", "(k % 2 == 0 ? -4.0 : 4.0)"),
        Mutant("open * open / 4.0", "open / 4.0"),
        Mutant("[](double x) { return x < 0.0; }", "[](double x) { return x < -1.0; }"),
    ],
    "kernels/signals/wavelet.cpp": [
        Mutant(
            "const Index half = halved(n);\n  const auto filter",
            "const Index half = n / 2;\n  const auto filter",
        ),
        Mutant("{-kLow[3], kLow[2], -kLow[1], kLow[0]}", "{kLow[3], kLow[2], kLow[1], kLow[0]}"),
        Mutant("while (6 * (Index{1} << levels) <= n)", "while (6 * (Index{1} << levels) < n)"),
        Mutant("own > kRounding * total ?", "own > 0.0 ?"),
        Mutant("odd(half - 1, 0);", "odd(half - 1, half - 1);"),
        Mutant(
            "std::exp(-0.5 * z * z), -omega * z",
            "std::exp(-0.5 * z * z), omega * z",
            "only the power is read",
        ),
        Mutant("std::exp(-0.5 * z * z)", "std::exp(-z * z)"),
        Mutant("/ static_cast<double>(signals);", "/ 1.0;"),
        Mutant("2 * exponent)", "exponent)"),
        Mutant("std::ldexp(1.0, exponent)", "1.0"),
    ],
    "linalg/bidiagonal.cpp": [
        Mutant("if (i < size) even += x[i] * x[i];", ""),
        Mutant("const LaneMask needed = tail > 0.0;", "const LaneMask needed = tail >= 0.0;"),
    ],
    "homology/bit_row.h": [
        Mutant(
            "put(in, k, both & near);\n    put(out, k, both & ~near);",
            "put(in, k, both & near);\n    put(out, k, both);",
            "every vertex is its own neighbour: what is reached already is moved at once",
        ),
        Mutant("const int offset = low != 0 ? 0 : 64;", "const int offset = 0;"),
        Mutant(
            "return at(a, k, kind) & at(b, k, kind) & ~at(c, k, kind);",
            "return at(a, k, kind) & at(b, k, kind);",
        ),
        Mutant("put(in, k, both & near);", "put(in, k, both);"),
    ],
    "homology/cycle_labels.cpp": [
        Mutant("if (is_closed_[entry] != 0) {", "if (false) {"),
        Mutant("if (stale) {", "if (false) {"),
    ],
    "linalg/dqds.cpp": [
        Mutant("constexpr double kNegligible = 1e-29;", "constexpr double kNegligible = 1e-20;"),
        Mutant("larger(a * a, broadcast(kFloor))", "a * a"),
        Mutant("broadcast(-1.0);", "broadcast(0.0);"),
        Mutant("choose(good, at(s.shift, number) + c.tau", "choose(good, at(s.shift, number)"),
    ],
    "homology/edge_order.cpp": [
        Mutant(
            "const Signed ordered = bits < 0 ? -magnitude : magnitude;", "const Signed ordered = magnitude;"
        ),
        Mutant("return 0.5 * (a + b);", "return a + b;"),
    ],
    "homology/flag_homology.cpp": [
        Mutant("if (classes_[gone].birth < last_group_) --old_cycles_;", "--old_cycles_;"),
        Mutant("if (!left) return;", "return;"),
        Mutant("if (a != b) {", "if (a == b) {"),
    ],
    "signals/fourier.cpp": [
        Mutant("std::min(k, length - k)", "k < length / 2 ? k : length / 2"),
        Mutant("if (k > 0) values[static_cast<std::size_t>(size) - k] = values[k];", ""),
        Mutant("(count + 3) / 4", "count / 4"),
        Mutant("std::polar(1.0, -angle)", "std::polar(1.0, angle)"),
    ],
    "homology/hellinger.h": [
        Mutant("std::sqrt(0.5 * (a - b)", "std::sqrt((a - b)"),
        Mutant("entry > 0.0 ? std::sqrt(entry) : 0.0", "std::sqrt(std::abs(entry))"),
    ],
    "simd/logarithm.h": [
        Mutant("1.818357216161805012e-01", "1.918357216161805012e-01"),
    ],
    "matrix/matrix_view.cpp": [
        Mutant("return largest < infinity_bits<Scalar>();", "return largest <= infinity_bits<Scalar>();"),
        Mutant("if (n < 2) return false;", ""),
        Mutant("for (const double strand : strands) sum += strand;", "sum = strands[0];"),
        Mutant("for (Index k = 0; k < kBlock; ++k) found |= seen[k];", "found = seen[0];"),
        Mutant("by_rows ? n - k - 1 : k, by_rows", "by_rows ? n - k - 1 : k + 1, by_rows"),
    ],
    "random_matrices/null_law.cpp": [
        Mutant("sinc(t) * std::exp(t_cot(t))", "std::exp(t_cot(t))"),
        Mutant("(bulk - atom)", "(bulk + atom)"),
        Mutant("1.0 - t / pi + s * s / (pi * t)", "1.0 - t / pi - s * s / (pi * t)"),
        Mutant("x - (kind_ == Kind::triangular ? 0.5 : 1.0)", "x - 1.0"),
        Mutant("return x * cdf_at(t) - moment;", "return x * cdf_at(t);"),
    ],
    "matrix/quantile.cpp": [
        Mutant("at + (next - at) * (position - rank)", "at"),
        Mutant(
            "rank + 1 >= below + kept",
            "rank >= below + kept",
            "behind the last entry nothing is read, and no other lies at the end of four standard deviations",
        ),
        Mutant("if (!masked || support.visible(i, j)) visit", "visit"),
        Mutant("next_inside ? low : above", "above"),
        Mutant("return (bits & kSign) != 0 ? ~bits : bits | kSign;", "return bits | kSign;"),
    ],
    "matrix/radix_sort.h": [
        Mutant("if (shift == low) return;", "return;"),
        Mutant("from != entries) std::copy(", "false) std::copy("),
    ],
    "matrix/row_logs.h": [
        Mutant("std::any_of(row, row + end, [](WideType x) { return x < 0; })", "false"),
        Mutant("store(mass + j + kPackWidth, load(mass + j + kPackWidth) + b);", ""),
        Mutant("if (left > kPackWidth) {", "if (left > kPackWidth + 1) {"),
    ],
    "matrix/rows.h": [
        Mutant("return lane < count - LaneMask{};", "return lane <= count - LaneMask{};"),
        Mutant("if (readable >= kPackWidth) {", "if (readable >= kPackWidth - 1) {"),
    ],
    "matrix/row_products.h": [
        Mutant("sums[r][2] += factor * c;", "sums[r][2] += factor * b;"),
    ],
    "matrix/row_statistics.cpp": [
        Mutant("if (left <= 0) continue;", "if (left <= 1) continue;"),
        Mutant("if (find_support) read.kind = Support::Kind::full;", ""),
        Mutant("return rest == 0.0 ||", "return"),
    ],
    "linalg/shifted_lanczos.h": [
        Mutant("(k > 0 ? beta[k - 1] : 0.0) + ", ""),
        Mutant("* ritz[k] - beyond) / beta[k - 1]", "* ritz[k]) / beta[k - 1]"),
        Mutant("|| result.residual <= allowed;", "|| result.residual <= 1e9 * allowed;"),
        Mutant("result.residual = beta[j] / std::sqrt(norm);", "result.residual = beta[j];"),
    ],
    "signals/signal_reader.h": [
        Mutant("if (!(rest > 0.0)) return false;", ""),
        Mutant("for (double& value : signal) value /= rest;", ""),
        Mutant("signal[t] /= per[t];", ";"),
        Mutant("if (options.detrend) detrend(signal);", ""),
        Mutant("- first < options.min_keys) continue;", "< options.min_keys) continue;"),
        Mutant("std::frexp(largest, &exponent);", "exponent = 1;"),
    ],
    "graphs/simple_graph_spectrum.cpp": [
        Mutant("if (in_pieces >= 3) return;", "if (in_pieces >= 2) return;"),
        Mutant("if (n >= 3) *gap = 2.0;", "if (n >= 3) *gap = 1.0;"),
        Mutant("(((bits & 1) - 1) & one)", "(-(bits & 1) & one)"),
    ],
    "graphs/threshold_levels.cpp": [
        Mutant("directed.row(i)[i] = 0;", ";"),
        Mutant("if (i == j) continue;", "continue;"),
        Mutant("next0 = x0 >= threshold,", "next0 = x0 > threshold,"),
        Mutant("begin += 255)", "begin += 510)"),
        Mutant("for (Index t = 0; t < most; ++t)", "for (Index t = 1; t < most; ++t)"),
    ],
    "graphs/block_inverse_lanczos.cpp": [
        Mutant(
            "if (!(beta[1][1] > none)) {",
            "if (false) {",
            "a rest of rounding, made orthogonal, leads on as well as a vector that is drawn",
        ),
        Mutant("bound += 0x1p-50 * at.theta[0];", ";", "a rounding more on a bound that is no tighter"),
        Mutant("steps.locked = 2;\n  }", "}"),
        Mutant("beta[0][1] = inner_product(w[0], w[1], padded);", ";"),
    ],
    "linalg/sturm_bisection.h": [
        Mutant("minors2.changes <= -2", "minors2.changes <= -1"),
        Mutant(
            "p = p == 0.0 ? 1e-20 * q : p;",
            ";",
            "zeros have signs too, and theirs are right up to the two changes that are asked for",
        ),
    ],
    "homology/spanning_tree.cpp": [
        Mutant("if (places > 1) {", "if (false) {"),
        Mutant("(similarity == old) & (self < other)", "(similarity == old) & (self > other)"),
        Mutant("lower = !any_nonzero(", "lower = any_nonzero("),
    ],
    "random_matrices/spectral_distance.cpp": [
        Mutant("gap) * (right - left);", "gap) * right;"),
        Mutant("static_cast<double>(size * (count - 1))", "static_cast<double>(size * count)"),
        Mutant("distance -= above(left, right);", "distance += above(left, right);"),
    ],
    "matrix/states.cpp": [
        Mutant("squares > kSmallest && squares < kLargest", "squares > 0.0"),
        Mutant("finite = finite && std::all_of", "finite = std::all_of"),
        Mutant("if (!(largest > 0.0)) continue;", ""),
        Mutant("if (!unit) continue;", ""),
    ],
    "linalg/panel_cholesky.h": [
        Mutant("if (!(pivot > 0.0)) return false;", "if (pivot < -1.0) return false;"),
    ],
    "random_matrices/row_spectrum.cpp": [
        Mutant("row + (varies ? count : 0)", "row + count"),
        Mutant("kept += varies ? 1 : 0;", "++kept;"),
    ],
    "random_matrices/standard_rows.h": [
        Mutant("std::sqrt(size / variance)", "std::sqrt((size - 1) / variance)"),
    ],
    "linalg/panel_gram.h": [
        Mutant("terms, from > 0,", "terms, false,"),
        Mutant("std::min(depth, i + size - from)", "std::min(depth, i - from)"),
        Mutant("std::fill(panel + end * kPanel, panel + (first + kPanel) * kPanel, 0.0);", ";"),
        Mutant("(causal ? end : n) - from", "end - from"),
        Mutant("causal ? from / kPanel : 0", "from / kPanel"),
    ],
    "linalg/panel_tridiagonal.h": [
        Mutant("sum2 += f * rows[2];", "sum2 += f * rows[1];"),
        Mutant("to[k] += row_sums(part);", ""),
        Mutant("std::fill(w + k, w + padded, 0.0);", ""),
        Mutant("-0.5 * tau * tau *", "-0.5 * tau *"),
        Mutant("basis + (t ^ 1) * padded", "basis + t * padded"),
        Mutant("factors[2 * t] = basis[(2 * t + 1) * padded", "factors[2 * t] = basis[2 * t * padded"),
        Mutant("if (!(tail > 1e-280)) {", "if (!(tail > 1.0)) {"),
        Mutant("there ? factors[c + k] : 0.0", "factors[c + k]"),
    ],
    "matrix/widen.cpp": [
        Mutant("largest > 1e-30 && largest < 1e30", "largest > 0.0"),
        Mutant(
            "largest = std::max(largest, largest_magnitude(row, n));", "largest = largest_magnitude(row, n);"
        ),
        Mutant("bits & std::numeric_limits<long>::max()", "bits"),
        Mutant("std::clamp(-exponent, -1022, 1022)", "std::clamp(exponent, -1022, 1022)"),
    ],
}
