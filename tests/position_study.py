# SPDX-License-Identifier: MIT
"""Settings of a small run of the study of absolute position."""

import attnscope as asc

N, GROUPS, TEXTS = 16, 4, 16
QUICK = {
    "groups": GROUPS,
    "vectors": 2,
    "matched": 2,
    "random_weights": 1,
    "permutations": 999,
    "null_draws": 20,
    "reader": 0.08,
    "leakage_samples": 4,
    "bands": 3,
}
#: Of the run that tests share.
FULL_OPTIONS = {"keep_sums": True, "lengths": [8, 16], "random_weights": 3}


def settings(folder, texts, output, *, name="a", samples=TEXTS, block=4, protocols="both", **options):
    return asc.Study(
        study="absolute_position",
        models=str(folder),
        texts={"path": str(texts), "per": "window", "samples": samples},
        max_tokens=N,
        block=block,
        output=str(output),
        protocols=protocols,
        name=name,
        options={**QUICK, **options},
    )
