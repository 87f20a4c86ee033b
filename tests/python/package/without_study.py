# SPDX-License-Identifier: MIT
"""What the package answers when the folder of one study is not there.

Run by test_studies_apart.py: python without_study.py PACKAGE MODEL TEXTS FOLDER STUDY ..., which writes to
FOLDER/answer.json what a copy of attnscope in the folder PACKAGE says of itself, and the digests of tables
of a run of each STUDY.
"""

import contextlib
import hashlib
import importlib.util
import io
import json
import sys
from pathlib import Path


def package_without(folder, name):
    """A copy of the package made of links, without one study ("": whole); the folder to import it from."""
    copy = Path(folder) / (f"without_{name}" if name else "whole") / "attnscope"
    (copy / "studies").mkdir(parents=True, exist_ok=True)
    for place in importlib.util.find_spec("attnscope").submodule_search_locations:
        for inside in ("", "studies"):
            for path in (Path(place) / inside).glob("*"):
                link = copy / inside / path.name
                if path.name not in ("studies", "__pycache__", name) and not link.exists():
                    link.symlink_to(path)
    return copy.parent


def answers(model, texts, folder, *names):
    """Everything general that the package says of itself, and the tables of small runs by their digest."""
    import typer.main
    import yaml

    import attnscope
    from attnscope import studies
    from attnscope.cli import doctor
    from attnscope.cli.application import app
    from attnscope.config import packaged_configs as packaged
    from attnscope.config import study_folders as discovery
    from attnscope.config.run_config import RunConfig
    from attnscope.engine.run_study import run
    from attnscope.metrics.discovery import registry
    from attnscope.published import papers, published_numbers

    loaded = [module.__file__ for module in (attnscope, studies)]
    command = typer.main.get_command(app)
    groups = {"": command, **command.commands}
    helps = {}
    for name, members in groups.items():
        with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
            members.main(["--help"], prog_name=f"attnscope {name}")
        helps[name] = text.getvalue()
    runs = {}
    for name in names:
        settings = RunConfig(study=name, name=name, models=model, texts=texts, output=folder)
        results = run(settings, progress=False, say=lambda text: None)
        runs[name] = {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted((results.path / "tables").glob("*"))
        }
    configs = {name: yaml.safe_load(packaged.packaged_text(name)) for name in packaged.packaged()}
    return {
        "from": loaded,
        "studies": sorted(discovery.studies()),
        "papers": {paper: [study.name, len(published_numbers(paper))] for paper, study in papers().items()},
        "configs": configs,
        "metrics": {name: doctor.describe(name) for name in doctor.first_lines()},
        "quantities": [
            (quantity.protocol, quantity.metric, quantity.name, quantity.meaning)
            for quantity in registry().quantities
        ],
        "doctor": {name: [check.name for check in group] for name, group in doctor._by_metric().items()},
        "help": helps,
        "runs": runs,
    }


if __name__ == "__main__":
    package, folder = sys.argv[1], Path(sys.argv[4])
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable")
    ]
    sys.path.insert(0, package)
    (folder / "answer.json").write_text(json.dumps(answers(*sys.argv[2:])), "utf-8")
