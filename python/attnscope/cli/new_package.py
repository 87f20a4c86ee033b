# SPDX-License-Identifier: MIT
"""A package of your own with a metric or a study, written as files that run and are tested."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from attnscope.config.study_folders import studies
from attnscope.errors import ConfigError
from attnscope.metrics.discovery import registry
from attnscope.results.files import atomic_folder

_PROJECT = Template("""[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[project]
name = "$distribution"
version = "0.1"
dependencies = ["attnscope[all]"]

[project.entry-points."$group"]
$name = "$package"

[tool.setuptools]
packages = ["$package"]
""")
_METRIC = Template('''"""The metric `$name`: replace the mean of the diagonal by a measure of your own."""

import torch
from attnscope.metrics.quantity import ClosedForm, Quantity


def $name(attention: torch.Tensor, *, lengths: torch.Tensor | None = None) -> torch.Tensor:
    """Return the mean attention of a query to itself.

    Args:
        attention: maps [..., n, n]; rows are queries, columns keys.
        lengths: tokens per map, broadcast against the leading axes; None takes all.

    Returns:
        [...] float64, in [0, 1].
    """
    diagonal = attention.double().diagonal(dim1=-2, dim2=-1)
    if lengths is None:
        return diagonal.mean(-1)
    tokens = torch.as_tensor(lengths).expand(diagonal.shape[:-1])
    seen = torch.arange(diagonal.shape[-1]) < tokens[..., None]
    return torch.where(seen, diagonal, 0).sum(-1) / tokens


#: What tables, figures, reports and `attnscope doctor` know of it; the closed form is checked by `doctor`.
QUANTITIES = (
    Quantity.of(
        "$name", "attention to itself", "Mean of the diagonal.", ClosedForm(1.0, torch.eye(3)), low=0, high=1
    ),
)
''')
_METRIC_TEST = Template('''"""`$name` on maps whose value is known, and where attnscope finds it."""

import attnscope as asc
import torch
from $package.$name import $name


def test_closed_forms():
    assert $name(torch.eye(5)).item() == 1
    assert $name(torch.full((4, 4), 0.25)).item() == 0.25


def test_padding_changes_nothing():
    padded = torch.zeros(6, 6)
    padded[:4, :4] = torch.eye(4)
    assert $name(padded, lengths=torch.tensor(4)).item() == 1


def test_attnscope_finds_it():
    assert asc.measure(torch.eye(3), ["$name"])["$name"].item() == 1
    assert "$name" in asc.metrics(n=4).index
''')
_STUDY = Template('''"""The study `$name`: the entropy of attention. Replace it by a question of your own."""

from attnscope.metrics.discovery import quantity
from attnscope.study_api.stages import Stages
from attnscope.study_api.study import Study
from attnscope.study_api.tables import Table

STAGES = Stages()
HEADS = ("model", "revision", "step", "sample", "layer", "head")


@STAGES.stage(lambda units, study: units.texts(), writes=("heads",))
def heads(study, unit, run):
    """Write a row of every head and text of a block of texts; padding is left out."""
    for batch in run.batches():
        for number, layer in run.layers(batch):
            entropy = layer.measure(["attention_entropy"])["attention_entropy"].nanmean(-1)
            for sample, values in zip(batch.samples, entropy.tolist(), strict=True):
                run.write("heads", sample=sample, layer=number, head=range(len(values)), entropy=values)


@STAGES.stage(
    lambda units, study: units.checkpoints(), reads=("heads",), writes=("means",), within="checkpoint"
)
def means(study, unit, run):
    """Write the mean over texts of what the first stage stored of a checkpoint."""
    run.write("means", entropy=run.read("heads")["entropy"].mean())


class $title(Study):
    """Entropy of every head on every text, and its mean over texts."""

    name = "$name"
    declared_stages = STAGES
    tables = (
        Table("heads", keys=HEADS, columns=(quantity("entropy"),)),
        Table("means", keys=HEADS[:3], columns=(quantity("entropy"),)),
    )


STUDY = $title
''')
_STUDY_SECTIONS = '''"""The sentences at the top of the study's report."""


def findings(results):
    """Return the sentences at the top of the report."""
    return [f"The mean entropy of a row is {results['means']['entropy'].iloc[0]:.2f} nats."]
'''
_STUDY_TEST = Template('''"""The study `$name` on a model of random weights."""

import attnscope as asc
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["[UNK]", "[BOS]", "the", "cat", "sat", "on", "a", "mat"]


@pytest.fixture
def model(tmp_path):
    pieces = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, "[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="[UNK]", bos_token="[BOS]")
    tokenizer.save_pretrained(tmp_path / "model")
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), **shape)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_study_runs_by_its_name(model, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("the cat sat on a mat\\nthe mat sat on the cat\\n", "utf-8")
    results = asc.run("$name", models=str(model), texts=str(texts), output=str(tmp_path), progress=False)
    heads = results["heads"]
    assert len(heads) == 2 * 2 * 2  # texts, layers, heads
    assert (heads["entropy"] > 0).all()
    assert results["means"]["entropy"].item() == pytest.approx(heads["entropy"].mean())
    report = results.report(tmp_path / "report.html").read_text("utf-8")
    assert f"{heads['entropy'].mean():.2f} nats" in report
''')
_README = Template("""# $distribution

    pip install -e .
    pytest
    $command
""")


def write_package(kind: str, name: str, folder: Path) -> list[Path]:
    """Write a package with a metric or a study, its test and its entry point; return the files.

    Args:
        kind: "metric" or "study".
        name: of the metric or the study, which is a name of Python too.
        folder: where the package is written; it must not be there.

    Raises:
        ConfigError: another kind, a name that Python or attnscope has already, or that is none.
        FileExistsError: the folder is there.
    """
    if kind not in ("metric", "study"):
        raise ConfigError(f"new: expected metric or study, got {kind!r}")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,60}", name) or keyword.iskeyword(name):
        raise ConfigError(
            "new: expected a name of small letters, digits and underscores that begins with a letter, got "
            f"{name!r}"
        )
    names = registry().names() if kind == "metric" else studies()
    if name in names:
        raise ConfigError(f"new: there is a {kind} {name!r} already; choose another name")
    if folder.exists():
        raise FileExistsError(f"new: {folder} exists; choose another folder")
    package = f"{name}_{kind}"
    words = {
        "name": name,
        "package": package,
        "distribution": package.replace("_", "-"),
        "group": "attnscope.metrics" if kind == "metric" else "attnscope.studies",
        "title": "".join(part.capitalize() for part in name.split("_")),
        "command": f"attnscope metrics {name}" if kind == "metric" else f"attnscope run {name} --model gpt2",
    }
    files = {
        "pyproject.toml": _PROJECT.substitute(words),
        "README.md": _README.substitute(words),
        f"{package}/__init__.py": f'"""The {kind} `{name}` for attnscope."""\n',
    }
    if kind == "metric":
        files[f"{package}/{name}.py"] = _METRIC.substitute(words)
        files[f"tests/test_{name}.py"] = _METRIC_TEST.substitute(words)
    else:
        files[f"{package}/study.py"] = _STUDY.substitute(words)
        files[f"{package}/sections.py"] = _STUDY_SECTIONS
        files[f"tests/test_{name}.py"] = _STUDY_TEST.substitute(words)
    with atomic_folder(folder) as temporary:
        for path, text in files.items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary / path).write_text(text, "utf-8")
    return [folder / path for path in files]
