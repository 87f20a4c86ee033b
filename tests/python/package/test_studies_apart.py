# SPDX-License-Identifier: MIT
"""A study is its folder: taken away, everything else answers as before, to the byte of a stored table."""

import ast
import json
import re
from pathlib import Path

import pytest
import without_study

import attnscope
from folders import Launcher, model_folder, sentences

PACKAGE = Path(__file__).resolve().parents[3] / "python" / "attnscope"
STUDIES = sorted(file.parent.name for file in (PACKAGE / "studies").glob("*/study.py"))
#: What is run where the study of the name is absent: a study that is there.
RUN, INSTEAD = "wavelet_heads", "attention_sinks"
#: A demo stands above the studies and is of one; the package of studies says which is meant without a name.
ABOVE = {"demo", "studies/__init__.py"}


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """The answers of a package without one study, from a process that has imported what it needs besides."""
    home = tmp_path_factory.mktemp("apart")
    model = model_folder(home / "tiny" / "hf")
    texts = sentences(home / "texts.txt", 2, shortest=40)
    script = Path(without_study.__file__).read_text("utf-8")

    def answers(name, runs):
        package = without_study.package_without(home, name)
        folder = home / f"runs_{name}_{'_'.join(runs)}"
        folder.mkdir()
        done = launcher.script(script, package, model, texts, folder, *runs)
        assert done.returncode == 0, done.stderr
        answer = json.loads((folder / "answer.json").read_text("utf-8"))
        assert all(origin.startswith(str(package)) for origin in answer.pop("from"))
        return answer

    imports = "import matplotlib.pyplot, pandas, pyarrow.parquet, pydantic, typer.main, transformers\n"
    imports += "from transformers import LlamaForCausalLM, PreTrainedTokenizerFast"
    with Launcher(home, imports=imports) as launcher:
        yield answers


@pytest.fixture(scope="module")
def with_all_studies(ask):
    result = ask("", [RUN])
    assert sorted(result["studies"]) == STUDIES
    return result


def study_of(configs, config):
    """The study of a packaged config, which it names or has from the one that it extends."""
    keys = configs[config]
    return keys["study"] if "study" in keys else study_of(configs, keys["extends"])


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_without_a_study_everything_else_is_as_it_was(name, ask, with_all_studies):
    run = INSTEAD if name == RUN else RUN
    result = ask(name, [run])
    runs = ask("", [run])["runs"] if run == INSTEAD else with_all_studies["runs"]
    assert any("heads" in name for name in runs[run])
    home = PACKAGE / "studies" / name
    own_papers = {file.stem for file in home.glob("published/*.csv")}
    configs = {
        config: keys
        for config, keys in with_all_studies["configs"].items()
        if study_of(with_all_studies["configs"], config) != name
    }
    assert result["studies"] == [study for study in with_all_studies["studies"] if study != name]
    assert result["papers"] == {
        paper: count for paper, count in with_all_studies["papers"].items() if paper not in own_papers
    }
    assert result["configs"] == configs
    for part in ("metrics", "quantities", "doctor", "help"):
        assert result[part] == with_all_studies[part], part
    assert result["runs"] == runs


def sources():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "_build.py"]


@pytest.mark.parametrize("name", STUDIES)
def test_nothing_outside_a_study_names_it(name):
    """Neither what stands below the studies, nor commands, nor another study."""
    home = PACKAGE / "studies" / name
    # a name that is a word of English is that of the study behind its folder alone
    mention = rf"\b{name}\b" if "_" in name else rf"\bstudies[./]{name}\b"
    naming = [
        str(path.relative_to(PACKAGE))
        for path in sources()
        if home not in path.parents and re.search(mention, path.read_text("utf-8"))
    ]
    assert [
        module for module in naming if module not in ABOVE and module.partition("/")[0] not in ABOVE
    ] == []


@pytest.mark.parametrize("name", STUDIES)
def test_demos_are_imported_without_their_study(name):
    """What names a study from above names it in text, and imports it where it is run at the earliest."""
    for path in sorted((PACKAGE / "demo").glob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            modules = [
                getattr(node, "module", None) or "",
                *(alias.name for alias in getattr(node, "names", ())),
            ]
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert not any(f"studies.{name}" in module for module in modules), path.name


def test_the_copy_without_a_study_is_made_of_the_same_files(tmp_path):
    copy = without_study.package_without(tmp_path, STUDIES[0]) / "attnscope"
    assert not (copy / "studies" / STUDIES[0]).exists()
    package = Path(attnscope.__file__).parent
    for name in ("__init__.py", f"studies/{STUDIES[1]}/study.py"):
        assert (copy / name).samefile(package / name)
