# SPDX-License-Identifier: MIT
# ruff: noqa: E501  a line stands as mutmut shows it
"""Mutants of the metrics in Python that no test can see, by stem and by the line that they put in place."""

LEFT_OUT = "what has no sink is left out of the counts, whatever stands in its place"
SAME_TYPE = "the type that it is by default"
SAME_LENGTH = "both are made with one length"
SAME_AXIS = "the last axis of two"

ONE_DEVICE = "without an accelerator there is one device"
SAME_FALSE = "None is as false"
NOT_READ = "what is computed besides is not read"

NAMED = "the name in an error, which test_arguments.py and test_arguments_elsewhere.py see"

BEHIND_A_TILE = "what is read behind a tile is written over before it is used; sanitizers see it read"
EMPTY_TILE = "behind the last one a tile is empty"

ARGUED: dict[str, dict[str, str]] = {
    "frames": {
        "totals = counts.sum(+1)": SAME_AXIS,
        "ends = np.zeros((len(found), 2), dtype=None)": "token numbers are small, and float64 holds them exactly",
        "ends = np.zeros((len(found), 2), )": "token numbers are small, and float64 holds them exactly",
        "own = np.array([names.setdefault(token, len(names)) for token in sample], dtype=None)": SAME_TYPE,
        "own = np.array([names.setdefault(token, len(names)) for token in sample], )": SAME_TYPE,
        "identities[index] = own[found[index].clip(min=None)]": LEFT_OUT,
        "shares = own / total if total else np.full_like(own, None)": "None is NaN in an array of numbers",
        '"entropy": abs(float(+(positive * np.log(positive)).sum())) / scale if total else math.nan,': (
            "its magnitude is taken"
        ),
        "ends = np.stack([np.zeros_like(sizes), sizes - 1], +1)": SAME_AXIS,
    },
    "_named": {
        "fields = zip(self._fields, self, strict=None)  # type: ignore[attr-defined]": SAME_LENGTH,
        "fields = zip(self._fields, self, )  # type: ignore[attr-defined]": SAME_LENGTH,
        "fields = zip(self._fields, self, strict=False)  # type: ignore[attr-defined]": SAME_LENGTH,
    },
    "architecture": {
        "parameters = dict(source.named_parameters(remove_duplicate=None))": SAME_FALSE,
        "return _read(dict(source), {}, config, None)": SAME_FALSE,
    },
    "marchenko_pastur": {
        "return _compared(name, checked, null, support, draws, seed, whole=None).ks": SAME_FALSE,
        "return _compared(name, checked, null, support, draws, seed, whole=True).ks": NOT_READ,
    },
    "fisher": {
        'chance = torch.rand(ids.shape, generator=generator, device="cpu").to(None)': ONE_DEVICE,
        "scored = (real[:, 1:] & real[:, :-1]).to(None)": ONE_DEVICE,
        "wanted = torch.multinomial(shares, 1, generator=generator).squeeze(-1).to(None)": ONE_DEVICE,
        "wanted = torch.multinomial(shares, 1, generator=generator).squeeze(+1).to(device)": SAME_AXIS,
        "shares = chosen.detach().softmax(+1).cpu()": SAME_AXIS,
        "chance = torch.where(real, chance, 3.0)": "above every chance",
        "scored = (chance <= mask_share) | (chance == chance.min())": "one chance in 2^24 is just as large",
        'table["parameters"] = [sizes[key] for key in zip(table["layer"], table["group"], strict=None)]': SAME_LENGTH,
        'table["parameters"] = [sizes[key] for key in zip(table["layer"], table["group"], )]': SAME_LENGTH,
        'table["parameters"] = [sizes[key] for key in zip(table["layer"], table["group"], strict=False)]': SAME_LENGTH,
    },
    "measure": {
        'shape = getattr(attention, "shape", None) or (1,)': "a plan for what is refused",
    },
    "divergence": {
        "result, non_finite = _checks.call_kernel(_core.head_divergence, checked, seen, None)": (
            "the entropy at hand is half of the sum, to the same bits"
        ),
    },
    "laplacian": {
        "count = min(checked.n, 4)": "an eigenvalue more, which is not looked at",
    },
    "barcodes": {
        "for entry, size in zip(entries, self.shape, strict=None):": SAME_LENGTH,
        "for entry, size in zip(entries, self.shape, ):": SAME_LENGTH,
        "for entry, size in zip(entries, self.shape, strict=False):": SAME_LENGTH,
        "terms = np.where(share >= 0.0, -share * np.log(np.where(share > 0.0, share, 1.0)), 0.0)": "0 log 1 is 0",
        "terms = np.where(share > 0.0, -share * np.log(np.where(share > 0.0, share, 2.0)), 0.0)": (
            "what stands for a logarithm that is not taken"
        ),
    },
    "alignment": {
        "name = None": NAMED,
        'name = "XXgeometric_semantic_alignmentXX"': NAMED,
        'name = "GEOMETRIC_SEMANTIC_ALIGNMENT"': NAMED,
        "seen, beside = _checks.support_argument(None, support, checked), states_argument(name, states, checked)": NAMED,
        "seen, beside = _checks.support_argument(name, support, checked), states_argument(None, states, checked)": NAMED,
        'without = _checks.flags_argument(None, "without", without, (*checked.leading, checked.n))': NAMED,
        "if leading and own and own[-1] >= 1 and leading[-1] % own[-1] == 0:": (
            "one state for all heads has been broadcast already, or fits no axis before them"
        ),
        "scale = torch.where(largest > 0, largest, 2.0)": "zeros by any scale are zeros",
        "rounding = 5 * torch.finfo(torch.float64).eps * size * count.squeeze(-1).sqrt()": "a threshold of rounding",
        "return torch.where(length >= rounding, length, torch.nan)": "a threshold of rounding, met exactly",
    },
    "power_spectrum": {
        "name = None": NAMED,
        'name = "XXsoftmax_harmonicsXX"': NAMED,
        'name = "SOFTMAX_HARMONICS"': NAMED,
        "return torch.from_numpy(np.asarray(values, dtype=None))": SAME_TYPE,
        "return torch.from_numpy(np.asarray(values, ))": SAME_TYPE,
        "return powers[..., 1:] / first.masked_fill(first < floor, math.nan)": "a threshold of rounding, met exactly",
    },
}

#: Mutants of the core that no test can see, by file below cpp and by a part of the line that they put in place.
ARGUED_KERNELS: dict[str, dict[str, str]] = {
    "kernels/clouds/fragmentation.cpp": {
        "a >= b ? a : b": "of two equal distances either is the larger",
        "square[i * n + i] = 1.0": "a spanning tree reads no diagonal",
        "if (n >= 1) tree.assign": "the tree of one point has no edge",
        "edges = n >= 1 ?": "one point has 0 edges both ways",
        "? n : 0, n, 1.0}": "the share is computed before it is stored",
    },
    "kernels/clouds/local_dimension.cpp": {
        "a.index <= b.index": "no two entries have one index",
        "a.distance <= b.distance": "the distances that are compared differ",
        "wanted <= count": "nothing is set apart behind all of them",
        "for (Index j = 0; j <= count; ++j) {": "behind the last neighbour nothing is read",
        "used[a] >= 0": "nothing over nothing is NaN",
        "sum >= 0.0": "nothing over nothing is NaN",
        "std::max(n, *std::max_element": "more neighbours than the largest k change no sum",
        "j + 1 <= k; ++j) sum": "the ratio of the farthest to itself has the logarithm 0",
        "j < k; ++j) sum": "the ratio of the farthest to itself has the logarithm 0",
    },
    "kernels/weights/delta_statistics.cpp": {
        "for (; k + kPackWidth < count; k += kPackWidth) {": "a last pack that is whole is masked by nothing",
        "for (Index r = 0; r <= rows; ++r) {": BEHIND_A_TILE,
        "for (Index c = 0; c <= columns; ++c) {": BEHIND_A_TILE,
        "one.bits <= other.bits": "two types of equally many bits are one type",
        "const bool row_by_row": "tiles of one row and of many hold the same entries",
        "for (Index column = 0; column <= n;": EMPTY_TILE,
    },
    "kernels/weights/delta_statistics.h": {
        " = 1.0;": "the kernel puts its sums in their place; a sum of parts starts from them, in the tests",
    },
    "matrix/quantile.cpp": {
        "rank >= below + kept": "behind the last entry nothing is read, and no other lies at the end",
    },
}
