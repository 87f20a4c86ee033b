#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whether a wrong metric fails its tests: mutmut breaks one expression at a time and expects a red test.

    python tests/mutants/metrics.py [--jobs N] [--least SHARE] [MODULE ...]

MODULE is a stem such as intervals or frames; all of MODULES without one. N mutants are tried at a time, as
many as there are processors without it. Works on a copy in build/mutmut. Every survivor is printed with its
change: some no test can see, because the expression means the same (another name for the default type, one
length of both lists). Exit status 1 when the share of the killed is below --least. Needs mutmut.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "attnscope"
WORK = ROOT / "build" / "mutmut"
# Beside the copy: mutmut takes the folder that it runs in off Python's path.
BESIDE = WORK / "beside"
# What has metrics or the map of a model's weights in Python, and the files of quick tests that are to see it
# broken.
MODULES = {
    "intervals": ["intervals", "mean_intervals"],
    "correlations": ["correlations", "intervals", "partial"],
    "comparisons": ["intervals"],
    "_named": ["names"],
    "alignment": ["alignment", "reference_influence", "arguments"],
    "architecture": ["structure", "weight_map", "weight_map_settings"],
    "barcodes": ["barcodes"],
    "boundary": ["boundary"],
    "betti": ["betti", "measure", "arguments"],
    "cloud_distances": ["cloud_distances"],
    "cloud_persistence": ["cloud_persistence"],
    "cloud_spectrum": ["cloud_spectrum"],
    "exchange": ["exchange"],
    "fragmentation": ["fragmentation"],
    "local_dimension": ["local_dimension"],
    "null_clouds": ["null_clouds"],
    "divergence": ["divergence", "measure", "arguments"],
    "emergence": ["emergence"],
    "entropy": ["entropy", "arguments"],
    "fiedler": ["fiedler", "arguments"],
    "fisher": ["fisher"],
    "frames": ["frames"],
    "graph_statistics": ["graph_statistics", "arguments"],
    "laplacian": ["laplacian", "measure", "arguments"],
    "locality": ["locality", "arguments"],
    "marchenko_pastur": ["marchenko_pastur", "measure", "arguments"],
    "measure": ["measure", "arguments_elsewhere"],
    "participation_ratio": ["participation_ratio", "arguments"],
    "persistence": ["persistence", "betti", "arguments"],
    "power_spectrum": ["power_spectrum", "uncertainty", "wavelet", "arguments"],
    "reference_influence": ["reference_influence", "arguments"],
    "singular_values": ["singular_values", "measure", "arguments"],
    "sinks": ["sinks", "measure", "arguments"],
    "uncertainty": ["uncertainty", "arguments"],
    "wavelet": ["wavelet", "arguments", "arguments_elsewhere"],
    "weight_entries": ["weight_map", "weight_map_settings"],
}
# Wording of errors and names that are only passed on to them.
LEFT_ALONE = [
    r"\braise \w+Error",
    r'^\s*f"',
    r'^\s*"[^"]*"\s*$',
    r"choice_argument|_checks\.(real|whole|flag|as_tensor|float_tensor)",
    r"_check\(|check_draws\(|fraction_argument\(|table_argument\(|pairs\(|vector\(|number\(",
]
# An editable install finds the package by a finder of its own, which would hand out the unbroken files.
# pandas, which the package imports when it is needed, is imported once and not in every mutant.
SITE = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if not type(one).__module__.startswith("_editable")]
import pandas
"""
# One failure is enough: the quickest tests first, no smaller example looked for, no garbage collected.
PLUGIN = """
import gc
import json
import pathlib
from hypothesis import Phase, settings

gc.disable()
settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], database=None)
settings.load_profile("mutants")


def pytest_collection_modifyitems(items):
    known = pathlib.Path("mutmut-stats.json")
    if known.is_file():
        seconds = json.loads(known.read_text())["duration_by_test"]
        items.sort(key=lambda item: seconds.get(item.nodeid, 0))
"""
# What the tests of a module import when they run, imported once.
PRELOADED = {
    "architecture": "from transformers import LlamaForCausalLM",
    "fisher": "from transformers import BertForMaskedLM, LlamaForCausalLM",
    "weight_entries": "from transformers import LlamaForCausalLM",
}
PYTEST = "-x -q -p no:cacheprovider -p no:unraisableexception -p quickest_first"


def settings(stems: list[str]) -> str:
    tests = {name for stem in stems for name in MODULES[stem]}
    lists = {
        "source_paths": ["src"],
        "only_mutate": [
            f"src/attnscope/{path.relative_to(PACKAGE)}" for stem in stems for path in sources(stem)
        ],
        "also_copy": ["src/attnscope"],
        "do_not_mutate_patterns": LEFT_ALONE,
        "pytest_add_cli_args": [*PYTEST.split(), "-m", "not slow"],
        "pytest_add_cli_args_test_selection": [
            str(path.relative_to(ROOT))
            for name in sorted(tests)
            for path in (ROOT / "tests/python").rglob(f"test_{name}.py")
        ],
    }
    lines = [f"{name} = [{', '.join(map(literal, values))}]" for name, values in lists.items()]
    return "\n".join(
        [
            "[tool.mutmut]",
            *lines,
            'process_isolation = "forkserver"',
            "track_dependencies = false",
            "use_git_change_detection = false",
            "[tool.pytest.ini_options]",
            'markers = ["slow: slow"]',
        ]
    )


def sources(stem: str) -> list[Path]:
    """The file of a module, in whichever folder its concept has put it."""
    folders = ("metrics", "statistics", "models")
    return [path for folder in folders for path in (PACKAGE / folder).rglob(f"{stem}.py")]


def literal(text: str) -> str:
    return "'" + text + "'"


def mutmut(*arguments: str, read: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments],
        cwd=WORK,
        # Mutants are tried beside each other, each on one thread.
        env={**os.environ, "PYTHONPATH": str(BESIDE), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE if read else None,
        text=True,
        check=False,
    )


def copy_package() -> None:
    """The package and its compiled core, which an editable install keeps elsewhere."""
    package = WORK / "src" / "attnscope"
    shutil.copytree(PACKAGE, package)
    installed = importlib.util.find_spec("attnscope")
    for folder in (installed.submodule_search_locations or []) if installed else []:
        for file in [*Path(folder).glob("_core*.so"), *Path(folder).glob("_build.py")]:
            shutil.copy2(file, package)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--jobs", metavar="N", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--least", metavar="SHARE", type=float, default=0.9)
    arguments = parser.parse_args()
    stems = arguments.modules or list(MODULES)
    if unknown := set(stems) - set(MODULES):
        parser.error(f"no module {', '.join(sorted(unknown))}; there are: {', '.join(MODULES)}")
    shutil.rmtree(WORK, ignore_errors=True)
    (WORK / "src").mkdir(parents=True)
    copy_package()
    shutil.copytree(ROOT / "tests", WORK / "tests", ignore=shutil.ignore_patterns("corpus", "cpp"))
    (WORK / "pyproject.toml").write_text(settings(stems))
    BESIDE.mkdir()
    (BESIDE / "sitecustomize.py").write_text(SITE)
    preloaded = [PRELOADED[stem] for stem in stems if stem in PRELOADED]
    (BESIDE / "quickest_first.py").write_text("\n".join([PLUGIN, *preloaded, ""]))
    if status := mutmut("run", "--max-children", str(arguments.jobs), read=False).returncode:
        return status
    listed = mutmut("results", "--all", "true").stdout
    verdicts = [line.strip().rpartition(": ") for line in listed.splitlines() if line.strip()]
    counts = Counter(verdict for *_, verdict in verdicts)
    for name, _, verdict in verdicts:
        if verdict != "killed":
            shown = mutmut("show", name).stdout.splitlines()
            changed = [line for line in shown if line[:1] in ("+", "-") and line[1:2] == " "]
            print(f"{verdict} {name}", *changed, sep="\n    ")
    killed = counts["killed"] + counts["timeout"]
    share = killed / max(counts.total(), 1)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"{kinds}; {share:.1%} killed, at least {arguments.least:.0%}")
    return int(share < arguments.least)


if __name__ == "__main__":
    sys.exit(main())
