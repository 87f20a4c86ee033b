# SPDX-License-Identifier: MIT
"""The studies of another package in tests/studies, installed for a test, and small runs of them."""

from pathlib import Path

import attnscope as asc

TESTS = Path(__file__).resolve().parents[2]
STUDIES = TESTS / "studies"
NAMES = sorted(path.name for path in STUDIES.iterdir() if (path / "study.py").is_file())


def site(home, *packages):
    """Folders for the path; one of them tells of the studies as an installed distribution does.

    `packages` are those in the folder `processes` beside this file.
    """
    metadata = Path(home) / "foreign_studies-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: foreign-studies\nVersion: 0.1\n", "utf-8"
    )
    lines = "".join(f"{name} = {name}\n" for name in [*NAMES, *packages])
    (metadata / "entry_points.txt").write_text(f"[attnscope.studies]\n{lines}", "utf-8")
    return [str(home), str(STUDIES), str(Path(__file__).resolve().parent / "processes")]


def settings(name, inputs, output, run="a", **options):
    """A small run of a study: `inputs` are a model and a file of texts."""
    texts = {} if name == "weight_changes" else {"texts": str(inputs[1])}
    return asc.Study(
        study=name, models=str(inputs[0]), output=str(output), name=run, block=2, options=options, **texts
    )
