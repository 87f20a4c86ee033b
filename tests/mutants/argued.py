# SPDX-License-Identifier: MIT
# ruff: noqa: E501  a line stands as mutmut shows it
"""Mutants of the metrics in Python that no test can see, by stem and by the line that they put in place."""

SPARE = "a label more, which nothing has"
LEFT_OUT = "what has no sink is left out of the counts, whatever stands in its place"
SAME_TYPE = "the type that it is by default"
SAME_LENGTH = "both are made with one length"
SAME_AXIS = "the last axis of two"
ANY_ORDER = "equal p-values are adjusted to one value in any order"
FIRST_STEP = "the first step has covered nothing of the way"
ONE_LABEL = "with one label the entropy is 0 at any scale"

ONE_DEVICE = "without an accelerator there is one device"
SAME_FALSE = "None is as false"
NOT_READ = "what is computed besides is not read"

NAMED = "the name in an error, which test_arguments.py and test_arguments_elsewhere.py see"

BEHIND_A_TILE = "what is read behind a tile is written over before it is used; sanitizers see it read"
EMPTY_TILE = "behind the last one a tile is empty"

ARGUED: dict[str, dict[str, str]] = {
    "frames": {
        "by_position = _count(labels, found >= 0, groups, n + 2)": SPARE,
        "at_anchors = np.stack([_count(side, None, groups, 2)[..., 1] for side in (first, last)], -1)": LEFT_OUT,
        "at_anchors = np.stack([_count(side, found >= 0, groups, 3)[..., 1] for side in (first, last)], -1)": SPARE,
        'rows = _evidence("position", by_position.sum(0), at_anchors.sum(0), math.log(n) if n > 1 else 2.0)': ONE_LABEL,
        "totals = counts.sum(+1)": SAME_AXIS,
        'return "distributed", 1.0': "without a sink the margin is not read",
        "ends = np.zeros((len(found), 2), dtype=None)": "token numbers are small, and float64 holds them exactly",
        "ends = np.zeros((len(found), 2), )": "token numbers are small, and float64 holds them exactly",
        "own = np.array([names.setdefault(token, len(names)) for token in sample], dtype=None)": SAME_TYPE,
        "own = np.array([names.setdefault(token, len(names)) for token in sample], )": SAME_TYPE,
        "identities[index] = own[found[index].clip(min=None)]": LEFT_OUT,
        "_count((identities == ends[:, side, None, None]).astype(np.int64), found >= 0, groups, 3)[..., 1]": SPARE,
        'rows = _evidence("token", counts, at_anchors, math.log(len(names)) if len(names) > 1 else 2.0)': ONE_LABEL,
        "for third, (own, ends) in enumerate(zip(counts, at_anchors, strict=None)):": SAME_LENGTH,
        "for third, (own, ends) in enumerate(zip(counts, at_anchors, )):": SAME_LENGTH,
        "for third, (own, ends) in enumerate(zip(counts, at_anchors, strict=False)):": SAME_LENGTH,
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
        '"marchenko_pastur_deviation", attention, null, support, draws, seed, lengths, validate, whole=None': SAME_FALSE,
        '"marchenko_pastur_deviation", attention, null, support, draws, seed, lengths, validate, ).ks': NOT_READ,
        '"marchenko_pastur_deviation", attention, null, support, draws, seed, lengths, validate, whole=True': NOT_READ,
    },
    "fisher": {
        '"fisher_trace", text, tokenizer, max_tokens, None': ONE_DEVICE,
        "return {name: value[:, :max_tokens].to(None) for name, value in dict(text).items()}": ONE_DEVICE,
        "chance = torch.rand(ids.shape, generator=generator).to(None)": ONE_DEVICE,
        "scored = (real[:, 1:] & real[:, :-1]).to(None)": ONE_DEVICE,
        "wanted = torch.multinomial(shares, 1, generator=generator).squeeze(-1).to(None)": ONE_DEVICE,
        "wanted = torch.multinomial(shares, 1, generator=generator).squeeze(+1).to(ids.device)": SAME_AXIS,
        "shares = chosen.detach().softmax(+1).cpu()": SAME_AXIS,
        "chance = torch.where(real, chance, 3.0)": "above every chance",
        "scored = (chance <= mask_share) | (chance == chance.min())": "one chance in 2^24 is just as large",
        'table = table.groupby(["layer", "group"], as_index=None).agg({"trace": "mean", "n": "sum"})': SAME_FALSE,
        'table["parameters"] = [sizes[key] for key in zip(table["layer"], table["group"], strict=None)]': SAME_LENGTH,
        'table["parameters"] = [sizes[key] for key in zip(table["layer"], table["group"], )]': SAME_LENGTH,
        'table["parameters"] = [sizes[key] for key in zip(table["layer"], table["group"], strict=False)]': SAME_LENGTH,
        "names, parameters = zip(*model.named_parameters(), strict=None)": SAME_LENGTH,
        "names, parameters = zip(*model.named_parameters(), )": SAME_LENGTH,
        "names, parameters = zip(*model.named_parameters(), strict=False)": SAME_LENGTH,
        "for name, gradient in zip(names, gradients, strict=None):": SAME_LENGTH,
        "for name, gradient in zip(names, gradients, ):": SAME_LENGTH,
        "for name, gradient in zip(names, gradients, strict=False):": SAME_LENGTH,
    },
    "measure": {
        "for request, (source, identity, given) in zip(plan.requests, plan.calls, strict=None):": SAME_LENGTH,
        "for request, (source, identity, given) in zip(plan.requests, plan.calls, ):": SAME_LENGTH,
        "for request, (source, identity, given) in zip(plan.requests, plan.calls, strict=False):": SAME_LENGTH,
        'entropy = shared.get(("attention_entropy", plan.entropies.get(identity, None)))': "no entropy is known by it",
        'entropy = shared.get(("attention_entropy", plan.entropies.get(identity, )))': "no entropy is known by it",
        'shape = getattr(attention, "shape", None) or (1,)': "a plan for what is refused",
    },
    "divergence": {
        "checked.tensor, checked.lengths, _checks.support_argument(name, support, checked), None": (
            "the entropy at hand is half of the sum, to the same bits"
        ),
    },
    "laplacian": {
        "count = min(checked.n, 4)": "an eigenvalue more, which is not looked at",
    },
    "statistics": {
        "result[order] = np.minimum(np.minimum.accumulate(adjusted[::-1])[::-1], 2)": "the largest p times m/m is at most 1",
        "order = np.argsort(np.where(np.isnan(p), np.inf, p), kind=None)[: len(counted)]": ANY_ORDER,
        "order = np.argsort(np.where(np.isnan(p), np.inf, p), )[: len(counted)]": ANY_ORDER,
        'order = np.argsort(np.where(np.isnan(p), np.inf, p), kind="STABLE")[: len(counted)]': "NumPy reads its first letter",
        'order = np.argsort(np.where(None, np.inf, p), kind="stable")[: len(counted)]': "NumPy sorts NaN last too",
        'if table[metric].dtype.kind not in "XXbiufXX":': "no type is of kind X",
    },
    "barcodes": {
        "return torch.repeat_interleave(self.offsets.diff())": "without values it repeats their numbers",
        "return np.asarray(place.numpy(), dtype=None)": SAME_TYPE,
        "return np.asarray(place.numpy(), )": SAME_TYPE,
        "counts = torch.bincount(owner, )": "maps behind the last bar are not looked up, and none at all is provided for",
        "for entry, size in zip(entries, self.shape, strict=None):": SAME_LENGTH,
        "for entry, size in zip(entries, self.shape, ):": SAME_LENGTH,
        "for entry, size in zip(entries, self.shape, strict=False):": SAME_LENGTH,
        "terms = np.where(share >= 0.0, -share * np.log(np.where(share > 0.0, share, 1.0)), 0.0)": "0 log 1 is 0",
        "terms = np.where(share > 0.0, -share * np.log(np.where(share > 0.0, share, 2.0)), 0.0)": (
            "what stands for a logarithm that is not taken"
        ),
    },
    "emergence": {
        "each = each[each > 0]": FIRST_STEP,
        "each = each[each >= 1]": FIRST_STEP,
        "if at > 0 and len(each):": FIRST_STEP,
        "if at >= 1 and len(each):": FIRST_STEP,
        '"step": int(steps[at]) if at > 0 else -1,': FIRST_STEP,
        '"step": int(steps[at]) if at >= 1 else -1,': FIRST_STEP,
        "return np.where((way != 0) & ~np.isnan(way), first, -2)": "any negative place says that there is none",
    },
    "alignment": {
        "name = None": NAMED,
        'name = "XXgeometric_semantic_alignmentXX"': NAMED,
        'name = "GEOMETRIC_SEMANTIC_ALIGNMENT"': NAMED,
        "seen, beside = _checks.support_argument(None, support, checked), states_argument(name, states, checked)": NAMED,
        "seen, beside = _checks.support_argument(name, support, checked), states_argument(None, states, checked)": NAMED,
        'left_out = None if without is None else tokens_argument(None, "without", without, checked)': NAMED,
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
        "first = first.masked_fill(first < floor, math.nan)": "a threshold of rounding, met exactly",
    },
}

#: Mutants of the core that no test can see, by file below cpp and by a part of the line that they put in place.
ARGUED_KERNELS: dict[str, dict[str, str]] = {
    "graphs/block_inverse_lanczos.cpp": {
        "if (false) {": "a rest of rounding, made orthogonal, leads on as well as a vector that is drawn",
    },
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
    "kernels/signals/power_spectrum.cpp": {
        "if (t == 0) {": "a rotation's error grows by less than a rounding a step"
    },
    "kernels/spectra/singular_values.cpp": {
        "if (n < kLargestPacked - 1) {": "both ways give the same values"
    },
    "kernels/states/alignment.cpp": {
        "if (all.count < 1.0 ||": "one pair does not vary, and the next condition says NaN",
    },
    "kernels/weights/delta_statistics.cpp": {
        "for (; k + kPackWidth < count; k += kPackWidth) {": "a last pack that is whole is masked by nothing",
        "for (Index r = 0; r <= rows; ++r) {": BEHIND_A_TILE,
        "for (Index c = 0; c <= columns; ++c) {": BEHIND_A_TILE,
        "for (Index k = 0; k <= count; ++k) d[k]": BEHIND_A_TILE,
        "one.bits <= other.bits": "two types of equally many bits are one type",
        "const bool row_by_row": "tiles of one row and of many hold the same entries",
        "if (storage.size() <= 3 * kTileSize)": "made as large as it is",
        "for (Index row = 0; row <= m;": EMPTY_TILE,
        "for (Index column = 0; column <= n;": EMPTY_TILE,
    },
    "kernels/weights/delta_statistics.h": {
        " = 1.0;": "the kernel puts its sums in their place; a sum of parts starts from them, in the tests",
    },
    "matrix/quantile.cpp": {
        "rank >= below + kept": "behind the last entry nothing is read, and no other lies at the end",
    },
}
