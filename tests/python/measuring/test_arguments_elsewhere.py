# SPDX-License-Identifier: MIT
"""Arguments of what is no metric of one map: any value in the place of any argument is answered, or
refused by a ValueError, TypeError or MemoryError that begins with a function's name; never anything else."""

import inspect
import math
import os
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attnscope as asc
from attnscope import protocols
from attnscope.metrics.request import metric_names

quick = settings(
    max_examples=int(os.environ.get("ATTNSCOPE_EXAMPLES", "4")),
    suppress_health_check=list(HealthCheck),
)
TABLE = pd.DataFrame(
    {
        "step": [0, 0, 1, 1, 4, 4],
        "sample": [0, 1] * 3,
        "x": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        "word": list("abcdef"),
    }
)
MAPS = torch.softmax(torch.randn(3, 40, 40, generator=torch.Generator().manual_seed(1)), -1)
BARS = asc.persistence(MAPS[:, :6, :6])
SINK_TEST = asc.sink_test(MAPS)
STATES = torch.ones(40, 3).cumsum(0)
PROFILE = asc.PositionProfile(6, groups=4)
PROFILE.add(torch.randn(16, 1, 6, 6, generator=torch.Generator().manual_seed(2)), [k // 4 for k in range(16)])

# Valid arguments, positional first; each in turn is replaced by something else.
CALLS = {
    "bar_count": (BARS,),
    "betti_curve": (BARS, [0.5, 0.7]),
    "max_persistence": (BARS,),
    "persistent_entropy": (BARS,),
    "total_persistence": (BARS,),
    "measure": (MAPS, ["fiedler_value", "head_divergence"]),
    "scale_sensitivity": (MAPS, MAPS[:, :34, :34]),
    "transformation_magnitude": (STATES, STATES * 2),
    "entropy_magnitude_correlation": (MAPS, STATES, STATES * 2),
    "harmonic_distortion": (torch.sin(torch.arange(60.0)), 1.0),
    "softmax_harmonics": (2.0, 4),
    "classify_frames": (torch.zeros(4, 3, 2, dtype=torch.int64), [7, 8, 9, 7], True),
    "emergence_step": (TABLE, "x"),
    "sink_sums": (SINK_TEST,),
    "pooled_sinks": (asc.sink_sums(SINK_TEST), 3),
    "toeplitz_split": (MAPS,),
    "mask_only": (MAPS,),
    "offset_variance": (MAPS,),
    "offset_fit": (MAPS,),
    "position_share": (STATES.reshape(5, 8, 3),),
    "rope_bands": (MAPS, MAPS),
    "boundary": (STATES, 2 * STATES),
    "cloud_components": (STATES, [0.1, 0.5]),
    "cloud_distances": (STATES,),
    "cloud_persistence": (STATES,),
    "cloud_spectrum": (STATES,),
    "fragmentation": (STATES,),
    "haar_basis": (4, 2),
    "local_dimension": (STATES,),
    "null_clouds": (STATES, "gaussian"),
    "null_directions": (STATES,),
    "two_nn": (STATES,),
    "gride": (STATES, 2),
    "log_volume": (STATES,),
    "matrix_entropy": (STATES,),
    "massive_activations": (STATES,),
    "cka": (STATES, STATES),
    "neighbourhood_overlap": (STATES, STATES, 3),
    "value_norms": (STATES[None], torch.ones(2, 1, 3, dtype=torch.float64)),
    "attention_rollout": ([MAPS],),
    "recurrent_uncertainty": (MAPS[:, :4, :6], -torch.ones(6, dtype=torch.float64)),
    "bar_statistics": (BARS,),
    "diagram_distance": (BARS, BARS),
    "residual_size": (PROFILE,),
    "removed": (PROFILE, PROFILE),
    "statistics.jackknife": ([1.0, 2.0, 4.0], np.mean),
    "statistics.sign_flips": ([1.0, 2.0, 4.0],),
    "statistics.exchange_labels": (lambda drawn: drawn[:, :3].sum(-1), [0, 0, 1, 1, 1, 0]),
    "statistics.max_t": ([1.0, 2.0], [[0.0, 1.0], [2.0, 1.0], [1.0, 0.0]]),
    "statistics.per_sample": (TABLE, "x"),
    "statistics.bootstrap": ([1.0, 2.0, 4.0],),
    "statistics.paired_test": ([1.0, 2.0, 4.0], [1.0, 3.0, 4.0]),
    "statistics.welch_test": ([1.0, 2.0, 4.0], [1.0, 3.0, 4.0]),
    "statistics.correlation": ([1.0, 2.0, 4.0], [1.0, 3.0, 4.0]),
    "statistics.partial_correlation": ([1.0, 2.0, 4.0], [1.0, 3.0, 4.0], [2.0, 1.0, 5.0]),
    "statistics.within_correlation": ([1.0, 2.0, 4.0], [1.0, 3.0, 4.0], [0, 0, 0]),
    "statistics.holm": ([0.1, 0.2],),
    "statistics.benjamini_hochberg": ([0.1, 0.2],),
}
OURS = protocols.ruscio2025
for name in OURS.__all__:
    parameters = (
        list(inspect.signature(getattr(OURS, name)).parameters)
        if not inspect.isclass(getattr(OURS, name))
        else []
    )
    if parameters and parameters[0] in ("attention", "heads"):
        plain = {"hidden": STATES, "before": STATES, "after": 2 * STATES, "thresholds": [0.1]}
        CALLS[f"protocols.ruscio2025.{name}"] = (
            MAPS[0] if parameters[0] == "attention" else MAPS,
            *(plain[other] for other in parameters[1:] if other in plain),
        )
WORDS = {
    "protocols.ruscio2025.sink_tokens": {"rule": "kl"},
    "rope_bands": {"layout": "half", "scaling": 0.5},
}
# What may speak for a function: those that it calls on the caller's behalf.
ALSO = {
    "measure": tuple(metric_names()),
    "scale_sensitivity": ("wavelet_transform",),
    "position_share": ("PositionMoments.add",),
    "rope_bands": ("rotary_layout",),
    "residual_size": ("PositionProfile", "PositionProfile.gram", "jackknife", "sign_flips"),
    "removed": ("PositionProfile", "PositionProfile.gram", "jackknife"),
    "entropy_magnitude_correlation": ("transformation_magnitude", "attention_entropy"),
}
# A number of draws or harmonics that takes minutes says nothing about arguments.
COSTLY = {"draws", "orders", "resample"}
ANYTHING = {
    "None": None,
    "a word": "x",
    "no word": "",
    "an object": object(),
    "minus one": -1,
    "nought": 0,
    "a half": 0.5,
    "not a number": math.nan,
    "infinity": math.inf,
    "more than 64 bits": 2**70,
    "true": True,
    "an empty list": [],
    "a list of numbers": [1.0, 2.0],
    "a list of words": ["x", "y"],
    "a list of lists": [[1.0], [2.0]],
    "a list of all sorts": [None, "x", 1.0],
    "a mapping": {"fiedler_value": 3},
    "a scalar": torch.tensor(1.0),
    "integers": torch.ones(3, 3, dtype=torch.int64),
    "no matrices": torch.zeros(0, 4, 4),
    "no tokens": torch.zeros(2, 0, 0),
    "three tokens": torch.full((3, 3), 1 / 3),
    "five axes": torch.full((1, 1, 2, 3, 3), 1 / 3),
    "nothing but NaN": torch.full((3, 3), math.nan),
    "sparse": torch.eye(4).to_sparse(),
    "meta": torch.eye(4).to("meta"),
    "complex": torch.complex(torch.eye(4), torch.eye(4)),
    "booleans": torch.ones(4, dtype=torch.bool),
    "words": np.array([["a"]]),
    "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "a table": TABLE,
    "an empty table": TABLE[:0],
    "a table of words": TABLE.assign(x=list("abcdef"), step="now"),
    "bars": BARS,
    "a function": np.mean,
}


def function(name):
    place = asc
    for part in name.split("."):
        place = getattr(place, part)
    return place


def answered(name, **instead):
    """Calls it with some arguments replaced; an error must be of a documented type and begin with a name."""
    options = {**dict(zip(arguments(name), CALLS[name], strict=False)), **WORDS.get(name, {}), **instead}
    failed = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(name)(**options)
        except (ValueError, TypeError, MemoryError) as error:
            failed = error
    if failed is None:
        return
    function_name = name.removeprefix("statistics.").removeprefix("protocols.")
    words = str(failed)
    names_itself = words.startswith((function_name + ":", *(other + ":" for other in ALSO.get(name, ()))))
    if function_name.startswith("ruscio2025."):
        names_itself = names_itself or words.startswith(
            ("ruscio2025.", *(other + ":" for other in OURS.__all__))
        )
    assert names_itself, f"{type(failed).__name__}: {words}"


def arguments(name):
    return [p.name for p in inspect.signature(function(name)).parameters.values() if p.kind != p.VAR_KEYWORD]


def test_every_public_function_has_a_test_of_arguments():
    public = {name for name in asc.__all__ if inspect.isfunction(getattr(asc, name))}
    from test_arguments import METRICS

    # They take a model or a run, and have tests of bad input of their own.
    elsewhere = {
        "analyze",
        "capture",
        "edit",
        "fingerprint",
        "first_token_trajectory",
        "fisher_trace",
        "load",
        "detection",
        "output_kl",
        "output_projection",
        "features",
        "figures",
        "head_circuits",
        "position_profile",
        "replacements",
        "report",
        "resume",
        "row_logits",
        "run",
        "sensitivity",
        "show_config",
        "token_likelihood",
        "verify",
        "word_likelihood",
        "word_spans",
        # They take weight matrices or what was summed of their inputs.
        "alignment_gain",
        "concentration",
        "delta_statistics",
        "effective_unembedding",
        "haar_deviation",
        "prediction_subspace",
        "rank_one_effect",
        "readout",
        "relative_subspace_fraction",
        "second_moments",
        "subspace_fraction",
        "verify_weight_map",
        "view",
        "weight_deltas",
        "weight_map",
        "weight_spectrum",
    }
    assert public - set(METRICS) - set(CALLS) == elsewhere


def costly(key, value):
    return key in COSTLY and isinstance(value, (int, float)) and not -10 < value < 50


@pytest.mark.parametrize("name", CALLS)
def test_anything_in_the_place_of_any_argument(name):
    function(name)(**dict(zip(arguments(name), CALLS[name], strict=False)), **WORDS.get(name, {}))
    for key in set(arguments(name)) - set(WORDS.get(name, {})):
        for value in ANYTHING.values():
            if not costly(key, value):
                answered(name, **{key: value})


@pytest.mark.parametrize("name", CALLS)
@quick
@given(data=st.data())
def test_any_arguments_together(name, data):
    names = sorted(set(arguments(name)) - set(WORDS.get(name, {})))
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    instead = {}
    for key in chosen:
        kind = data.draw(st.sampled_from(sorted(ANYTHING)), label=key)
        value = data.draw(st.floats()) if kind == "a half" else ANYTHING[kind]
        if not costly(key, value):
            instead[key] = value
    answered(name, **instead)
