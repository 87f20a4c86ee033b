# SPDX-License-Identifier: MIT
"""What the package answers when the folder of one study is not there.

Run by test_studies_apart.py: python without_study.py, and a line of JSON on its input for each question, with
the file of the answer in it. A fork of its own answers each, so that what the package imports besides is
imported once; the package itself is new in each.
"""

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import sys
import traceback
from pathlib import Path


def package_without(folder, name):
    """A copy of the package made of links, without one study ("": whole); the folder to import it from."""
    copy = Path(folder) / (f"without_{name}" if name else "whole") / "attnscope"
    (copy / "studies").mkdir(parents=True)
    for place in importlib.util.find_spec("attnscope").submodule_search_locations:
        for inside in ("", "studies"):
            for one in (Path(place) / inside).glob("*"):
                link = copy / inside / one.name
                if one.name not in ("studies", "__pycache__", name) and not link.exists():
                    link.symlink_to(one)
    return copy.parent


def answers(question):
    """Everything general that the package says of itself, and the tables of a small run by their digest."""
    import typer.main

    import attnscope
    from attnscope import studies
    from attnscope.commands import catalogue, doctor
    from attnscope.commands.cli import app
    from attnscope.engine import discovery, packaged
    from attnscope.engine.config import Study
    from attnscope.engine.run import run
    from attnscope.metrics.discovery import found
    from attnscope.published import papers, published_numbers

    loaded = [one.__file__ for one in (attnscope, studies)]
    command = typer.main.get_command(app)
    groups = {"": command, **command.commands}
    helps = {}
    for name, one in groups.items():
        with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
            one.main(["--help"], prog_name=f"attnscope {name}")
        helps[name] = text.getvalue()
    runs = {}
    for name in question["runs"]:
        settings = {"models": question["model"], "texts": question["texts"], "output": question["output"]}
        results = run(Study(study=name, name=name, **settings), progress=False, say=lambda text: None)
        files = sorted(results.path.rglob("*.parquet"))
        runs[name] = {
            str(file.relative_to(results.path)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files
            if "units" not in file.parts
        }
    return {
        "from": loaded,
        "studies": {one.name: list(one.aliases) for one in discovery.studies().values()},
        "papers": {paper: [one.name, len(published_numbers(paper))] for paper, one in papers().items()},
        "configs": packaged.packaged(),
        "metrics": {name: catalogue.describe(name) for name in catalogue.first_lines()},
        "quantities": [repr(one) for one in found().quantities],
        "doctor": {name: [one.name for one in group] for name, group in doctor._by_metric().items()},
        "help": helps,
        "runs": runs,
    }


def main():
    import matplotlib.pyplot  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch
    from transformers import LlamaForCausalLM  # noqa: F401

    sys.meta_path[:] = [one for one in sys.meta_path if not type(one).__module__.startswith("_editable")]
    for line in sys.stdin:
        question = json.loads(line)
        if not os.fork():
            torch.set_num_threads(1)
            sys.path.insert(0, question["package"])
            os.dup2(2, 1)  # what a run prints is no answer
            try:
                Path(question["answer"]).write_text(json.dumps(answers(question)), "utf-8")
            finally:  # a fork ends here whatever it was
                if sys.exc_info()[0]:
                    traceback.print_exc()
                os._exit(0)
        os.wait()
        print("answered", flush=True)


if __name__ == "__main__":
    main()
