# SPDX-License-Identifier: MIT
"""What works with which extra, in environments that hold just that; what lacks one says how to install it.

An environment is a folder of links to the packages that an extra names and to those that they require, the
only folder besides the standard library on the path.
"""

import ast
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import attnscope as asc
from attnscope import _core, _extras
from folders import model_folder, sentences

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "python" / "attnscope"


def declared(extra):
    """The requirements of an extra, "" for those without one; extras in them are followed."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    key = rf"^{extra} = " if extra else "^dependencies = "
    lists = ast.literal_eval(re.search(key + r"(\[.*?\n?\])$", text, re.MULTILINE | re.DOTALL)[1])
    parsed = [Requirement(line) for line in lists]
    inner = [
        name
        for requirement in parsed
        if requirement.name == "attnscope"
        for name in sorted(requirement.extras)
    ]
    return [requirement for requirement in parsed if requirement.name != "attnscope"] + [
        requirement for name in inner for requirement in declared(name)
    ]


def closure(requirements):
    """The distributions that requirements ask for, with all that those require."""
    held, pending = {}, list(requirements)
    while pending:
        requirement = pending.pop()
        for extra in ("", *requirement.extras):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            if (requirement.name.lower(), extra) in held:
                continue
            try:
                installed = distribution(requirement.name)
            except PackageNotFoundError:
                continue
            held[requirement.name.lower(), extra] = installed
            for line in installed.requires or ():
                inner = Requirement(line)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    pending.append(inner)
    return {installed.metadata["Name"]: installed for installed in held.values()}


def environment(folder, extra):
    """A folder with attnscope, its core, and what an installation with an extra would bring."""
    requirements = declared("") + (declared(extra) if extra else [])
    for installed in closure(requirements).values():
        for top in {
            file.parts[0] for file in installed.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            source, link = Path(installed.locate_file(top)), folder / top
            if source.exists() and not link.exists():
                link.symlink_to(source)
    package = folder / "attnscope"
    package.mkdir()
    core = Path(_core.__file__).parent
    for source in (*PACKAGE.iterdir(), *core.glob("_core*.so"), *core.glob("_build.py")):
        if source.name != "__pycache__" and not (package / source.name).exists():
            (package / source.name).symlink_to(source)
    (folder / "run" / "tables").mkdir(parents=True)
    (folder / "run" / "tables" / "heads.parquet").write_bytes(b"PAR1")
    return folder


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    folders = {}

    def of(extra):
        if extra not in folders:
            folders[extra] = environment(tmp_path_factory.mktemp(f"with_{extra or 'nothing'}"), extra)
        return folders[extra]

    return of


def python(folder, code, *arguments):
    """What a script prints where only an environment and the standard library are on the path."""
    start = f"import sys; sys.path.append({str(folder)!r})\n"
    variables = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    environ = {**variables, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environ,
    )
    return done


METRICS = """
import importlib.util
absent = [name for name in %r if importlib.util.find_spec(name) is not None]
assert absent == [], absent
import torch, attnscope as asc
star = torch.zeros(6, 6)
star[:, 0] = 1
assert abs(float(asc.fiedler_value(star)) - 0.5) < 1e-12
causal = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(0)).tril() + torch.eye(12)
causal = causal / causal.sum(-1, keepdim=True)
table = asc.measure(causal, ["fiedler_value", "attention_entropy", "marchenko_pastur", "betti_numbers"],
                    thresholds=[0.1])
assert table["fiedler_value"].shape == (3,)
assert asc.persistence(causal)[0] is not None
assert asc.sink_test(causal).position.shape == (3,)
print("measured")
"""


def test_metrics_need_torch_numpy_and_scipy_alone(environments):
    missing = [
        "pandas",
        "transformers",
        "tokenizers",
        "safetensors",
        "pyarrow",
        "pydantic",
        "typer",
        "matplotlib",
    ]
    done = python(environments(""), METRICS % missing)
    assert done.stdout == "measured\n", done.stderr


TOKENIZER = """
from attnscope.models import find_checkpoints, load_tokenizer
load_tokenizer(find_checkpoints("a/b")[0])
"""


@pytest.mark.parametrize(
    ("extra", "code", "install"),
    [
        ("", "asc.run", "studies"),
        ("", "asc.report", "models"),
        ("", TOKENIZER, "models"),
        ("models", "asc.load('run').table('heads')", "studies"),
        ("models", "asc.figures", "studies"),
    ],
)
def test_a_missing_library_says_what_installs_it(environments, extra, code, install):
    done = python(environments(extra), f"import attnscope as asc\n{code}")
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f"pip install 'attnscope[{install}]'"), done.stderr
    assert "which is not installed" in last


COMMAND = """
import sys
sys.argv[0] = "attnscope"
from attnscope.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("", ["--help"]),
        # typer comes with transformers, so that the commands are there and what they need is not
        ("models", ["tables", "run"]),
        ("models", ["figures", "run"]),
    ],
)
def test_the_command_line_says_in_one_line_what_it_needs(environments, extra, arguments):
    done = python(environments(extra), COMMAND, *arguments)
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert re.fullmatch(r"attnscope: error: this needs \w+, .*: pip install 'attnscope\[studies\]'", line)


MODELS = """
import sys, importlib.util
assert not [name for name in ("pyarrow", "omegaconf", "matplotlib") if importlib.util.find_spec(name)]
import torch, attnscope as asc
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], attn_implementation="eager")
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
ids = tokenizer("the cat sat on a mat", return_tensors="pt")
with asc.capture(model) as recording, torch.no_grad():
    layers = [layer.attention for layer in recording.run(**ids)]
assert len(layers) == 2 and float(asc.fiedler_value(layers[0]).min()) >= 0
assert asc.token_likelihood(model, ids["input_ids"]) is not None
print("captured")
"""


@pytest.mark.slow
def test_models_need_their_extra_alone(environments, tmp_path):
    done = python(environments("models"), MODELS, model_folder(tmp_path / "m"))
    assert done.stdout == "captured\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["studies", "all"])
def test_studies_run_to_their_report_with_their_extra_alone(environments, tmp_path, extra):
    arguments = ["run", "--model", model_folder(tmp_path / "m"), "--texts", sentences(tmp_path / "t.txt", 4)]
    arguments += ["--name", "a", "--output", tmp_path / "runs"]
    done = python(environments(extra), COMMAND, *arguments)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "a" / "report.html").stat().st_size > 10_000


def test_every_library_of_an_extra_is_known_to_what_says_how_to_install_it():
    """And no other: a library that is always there has no extra."""
    names = {"pyyaml": "yaml"}
    models = {names.get(requirement.name, requirement.name) for requirement in declared("models")}
    studies = {names.get(requirement.name, requirement.name) for requirement in declared("studies")} - models
    assert {name for name, extra in _extras.EXTRA_OF.items() if extra == "models"} == models | {
        "huggingface_hub"
    }
    assert {name for name, extra in _extras.EXTRA_OF.items() if extra == "studies"} == studies | {
        "pydantic_core"
    }
    assert {requirement.name for requirement in declared("all")} == {
        requirement.name for requirement in declared("studies")
    }


def test_only_attnscope_is_told(monkeypatch):
    """Other packages try libraries that may be absent, and so does a look for one."""
    monkeypatch.setitem(_extras.EXTRA_OF, "no_such_library", "studies")
    assert asc.fiedler_value
    import importlib.util

    assert importlib.util.find_spec("no_such_library") is None
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'no_such_library'$"):
        import no_such_library  # noqa: F401
    code = compile("import no_such_library", "x", "exec")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'attnscope\[studies\]'") as error:
        exec(code, {"__name__": "attnscope.somewhere"})
    assert error.value.name == "no_such_library"
