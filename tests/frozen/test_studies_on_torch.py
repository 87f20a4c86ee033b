# SPDX-License-Identifier: MIT
"""Every study concludes the same where torch operations measure its maps, as they do on an accelerator."""

import json
import sys
from pathlib import Path

import pytest

import attnscope as asc

sys.path.insert(0, str(Path(__file__).resolve().parent))
import frozen_runs

STORED = json.loads(frozen_runs.FILE.read_text("utf-8"))
#: Studies whose maps or clouds torch operations measure; the others measure weights, states and scores.
MEASURED = {"attention_likelihood", "attention_sinks", "hallucination_geometry", "wavelet_heads"}
#: Tables of reports that print rounding errors themselves: energies that are 0, errors of reconstruction.
OF_ROUNDING = {"wavelet_heads": ("Scales of attention", "Uncertainty")}


def differences_beyond_rounding(study, measured):
    """Return what differs from the stored run, but for parts of the report that print rounding errors."""
    parts = [f"part {at}: {title}" for title in OF_ROUNDING.get(study, ()) for at in range(30)]
    differences = frozen_runs.differences(STORED[study], measured)
    return [words for words in differences if not any(part in words for part in parts)]


@pytest.mark.slow
@pytest.mark.parametrize("study", sorted(STORED))
def test_tables_claims_report_and_figures_are_those_of_the_core(study, unarranged, tmp_path):
    home = tmp_path / "frozen-run-on-torch"
    home.mkdir()
    with asc.devices.use("torch"):
        results = frozen_runs.RUNS[study](home)
    measured_on = results.provenance["measured_on"]
    measured = json.loads(json.dumps(frozen_runs.digest_results(results, home)))
    assert differences_beyond_rounding(study, measured) == []
    assert bool(measured_on) == (study in MEASURED), measured_on
    assert set(measured_on) <= {"cpu"}
    assert all(count > 0 for counts in measured_on.values() for count in counts.values())
