# SPDX-License-Identifier: MIT
"""The benchmark of devices runs as a whole on small CPU tensors, before a machine with a device is lent."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_benchmark_of_devices_runs_dry(tmp_path):
    script = ROOT / "benchmarks" / "devices.py"
    command = [sys.executable, "-W", "ignore", script, "--dry-run", "--json", tmp_path / "devices.json"]
    subprocess.run(command, check=True, capture_output=True, timeout=600, cwd=ROOT)
    report = json.loads((tmp_path / "devices_dry_run.json").read_text(encoding="utf-8"))
    assert report["dry run"] is True
    measured = {(row["of"], row["measure"]) for row in report["rows"]}
    assert measured >= {
        ("maps", "bars of components"),
        ("maps", "wavelet_transform"),
        ("last rows", "geometric_semantic_alignment"),
        ("last rows", "span_attention"),
        ("clouds", "cka"),
        ("clouds", "cloud_distances"),
    }
    assert max(row["largest difference"] for row in report["rows"]) < 1e-9
    decompositions = {row["measure"] for row in report["decompositions"]}
    assert decompositions == {"fiedler_value", "laplacian_eigenvalues", "singular_values"}
