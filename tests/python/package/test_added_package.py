# SPDX-License-Identifier: MIT
"""A package with a metric and a study, in a folder of its own: `attnscope run` runs it, no list is edited."""

import sys

import numpy as np
import pytest
import torch

from attnscope import published
from attnscope.config import study_folders as studies
from attnscope.metrics import discovery as metrics
from attnscope.metrics import measure as measuring
from attnscope.metrics import measured
from attnscope.plots import draw_all, figures_of
from attnscope.results.results import load
from attnscope.view import view
from folders import model_folder, sentences

ENTRY_POINTS = """
[attnscope.metrics]
added = added_metrics
[attnscope.studies]
self_attention_study = added_study
"""
FILES = {
    "added_metrics/__init__.py": "",
    "added_metrics/diagonal.py": '''
import torch
from attnscope.metrics.quantity import ClosedForm, Quantity

def self_attention(attention, *, lengths=None):
    """Mean attention of a query to itself."""
    return attention.double().diagonal(dim1=-2, dim2=-1).mean(-1)

QUANTITIES = (
    Quantity("self_attention", "self_attention", "attention to itself", "Mean of the diagonal.",
             ClosedForm(1.0, torch.eye(3)), low=0, high=1),
)
''',
    "added_study/__init__.py": "",
    "added_study/study.py": '''
from attnscope.study_api.study import Study
from attnscope.study_api.tables import Table
from attnscope.study_api.stages import Stage
from attnscope.metrics.measure import measure
from attnscope.metrics.discovery import quantity

CHECKPOINT = ("model", "revision", "step")

class SelfAttention(Study):
    """Attention of queries to themselves."""

    name = "self_attention_study"
    tables = (
        Table("heads", keys=(*CHECKPOINT, "sample", "layer", "head"), columns=(quantity("self_attention"),)),
        Table("whole", keys=CHECKPOINT, columns=(quantity("self_attention"),)),
    )

    def stages(self, units):
        return [
            Stage("heads", units.texts(block=1), self.measured, writes=("heads",)),
            Stage("whole", units.checkpoints(), self.mean, reads=("heads",), writes=("whole",),
                  within="checkpoint"),
        ]

    def measured(self, unit, run):
        for batch in run.batches():
            for number, layer in run.layers(batch):
                found = measure(layer.attention, "self_attention")["self_attention"][0]
                run.write("heads", sample=batch.samples[0], layer=number, head=range(len(found)),
                          self_attention=found)

    def mean(self, unit, run):
        run.write("whole", self_attention=run.read("heads")["self_attention"].mean())

STUDY = SelfAttention
''',
    "added_study/figures.py": """
from attnscope.plots import standard

FIGURES = {"depth": standard.depth((("self_attention", None),))}
""",
    "added_study/sections.py": """
from attnscope.report.section import analysis

SECTIONS = (
    analysis("itself", "Attention to itself", words="How much stays.", definition="<i>a<sub>ii</sub></i>",
             figures=("depth",), metrics=("self_attention",)),
)

def findings(results):
    return [f"Queries keep {results.table('whole')['self_attention'].iloc[0]:.3f}."]
""",
    "added_study/configs/itself.yaml": "# Attention of queries to themselves.\nstudy: self_attention_study\n",
    "added_study/published/made2026.csv": "model,table,quantity,layer,token,statistic,value,low,high,samples,"
    "printed,origin\nllama,1,self_attention,,,mean,0.5,,,,0.5,made for a test\n",
    "added_study/published/__init__.py": """
import pandas as pd
from attnscope.published import Compared, Measured, comparison_row, pairs

def compare(results, numbers, chosen, *, draws, seed):
    statements = ["A number that was made for a test."]
    mean = Measured(results.table("whole")["self_attention"].item())
    rows = [comparison_row(str(model), number, measured=mean)
            for model, number in pairs(results.table("whole")["model"], numbers, chosen, statements)]
    return Compared(pd.DataFrame(rows), statements)
""",
    "added-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: added\nVersion: 1.0\n",
    "added-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
}


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    """The installed package; afterwards there never was one."""
    home = tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(home)
        forget()
        yield
    for name in [
        module for module in sys.modules if module.partition(".")[0] in ("added_metrics", "added_study")
    ]:
        del sys.modules[name]
    forget()


def forget():
    plans = (measured._plan_for, measuring._plan_in_words)
    for cached in (metrics.registry, *plans, studies.studies, published._read):
        cached.cache_clear()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    home = tmp_path_factory.mktemp("inputs")
    return model_folder(home / "model"), sentences(home / "texts.txt", count=3)


@pytest.fixture(scope="module")
def folder(added, inputs, tmp_path_factory):
    """What `attnscope run` makes of it."""
    from attnscope.cli import application

    output = tmp_path_factory.mktemp("runs")
    arguments = ("--model", inputs[0], "--texts", inputs[1], "--output", output, "--name", "a")
    with pytest.raises(SystemExit) as end:
        application.main(["run", "itself", "--quiet", *map(str, arguments)])
    assert not end.value.code
    return output / "a"


def test_the_run_stores_what_the_metric_gives(folder, inputs):
    from transformers import AutoModelForCausalLM

    results = load(folder)
    heads, samples = results.table("heads"), results.table("samples")
    model = AutoModelForCausalLM.from_pretrained(inputs[0], attn_implementation="eager").eval()
    ids = torch.tensor(samples["token_ids"].iloc[1].tolist())
    with torch.no_grad():
        attention = model(ids[None], output_attentions=True).attentions[1][0]
    rows_of_layer = heads[(heads["sample"] == samples["sample"].iloc[1]) & (heads["layer"] == 1)].sort_values(
        "head"
    )
    expected = attention.diagonal(dim1=-2, dim2=-1).mean(-1)
    np.testing.assert_allclose(rows_of_layer["self_attention"], expected, 1e-5)
    assert results.table("whole")["self_attention"].item() == pytest.approx(heads["self_attention"].mean())


def test_its_figure_says_what_the_metric_is_called(folder):
    assert {path.name for path in (folder / "figures").glob("depth.*")} >= {"depth.pdf", "depth.png"}
    results = load(folder)
    assert list(figures_of(results)) == ["depth"]
    axes = draw_all(results)["depth"].figure.axes[0]
    assert axes.get_title("left") == "attention to itself"
    means = results.table("heads").groupby("layer")["self_attention"].mean()
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), means)


def test_its_section_is_in_the_report(folder):
    page = (folder / "report.html").read_text("utf-8")
    assert 'id="itself"' in page
    mean = load(folder).table("whole")["self_attention"].item()
    assert f"Queries keep {mean:.3f}." in page
    assert "attention to itself" in page


def test_the_page_shows_its_column(folder):
    contents = view(load(folder)).contents
    assert [(metric["label"], metric["meaning"]) for metric in contents["metrics"]] == [
        ("attention to itself", "Mean of the diagonal.")
    ]


def test_the_command_line_knows_it(folder, call):
    code, out, _ = call("tables", folder, "--by", "layer", "--columns", "self_attention")
    assert code == 0
    assert "self_attention" in out
    code, out, _ = call("compare", folder, "--published", "made2026")
    assert code == 0, out
    assert out.startswith("A number that was made for a test.")
    assert "itself" in call("configs")[1]
    assert "Mean attention of a query to itself." in call("metrics")[1]
