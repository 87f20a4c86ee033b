# SPDX-License-Identifier: MIT
"""The report is one file, escapes what it did not write, and says the numbers of the tables."""

import re
from html.parser import HTMLParser
from pathlib import Path

import figure_tables as made
import numpy as np
import pandas as pd
import pytest

from attnscope.report import report
from attnscope.report.numbers import number, number_rows, published_rows
from attnscope.report.sections import SECTIONS
from attnscope.results import Results

EVIL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Tags with their attributes, text, and whether tags were closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = report(
        made.make_results(token=EVIL, group=EVIL), tmp_path_factory.mktemp("report") / "report.html"
    )
    return path.read_text(encoding="utf-8")


def test_nothing_from_the_run_becomes_markup(html: str) -> None:
    assert EVIL not in html
    page = Page(html)
    assert not page.open
    assert "script" not in {tag for tag, _ in page.tags}
    assert EVIL in "".join(page.text)


def test_nothing_is_fetched(html: str) -> None:
    page = Page(html)
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "data", "action"):
            target = attributes.get(name)
            assert target is None or target.startswith(("data:image/", "#")), (tag, target)
    assert "link" not in {tag for tag, _ in page.tags}
    outside_images = re.sub(r'src="data:[^"]*"', "", html)
    assert not re.search(r"url\(|@import|https?:", outside_images)


def test_every_section_is_there_and_in_the_contents(html: str) -> None:
    page = Page(html)
    ids = {attributes.get("id") for tag, attributes in page.tags if tag in ("h1", "h2")}
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert links == {f"#{name}" for name in ids}
    assert ids == {section.id for section in SECTIONS} | {"summary", "inputs", "provenance"}
    assert sum(tag == "img" for tag, _ in page.tags) == 8
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")


def test_honest_statements_stand_beside_the_numbers(html: str) -> None:
    text = "".join(Page(html).text)
    assert "λ₂ of causal maps is capped" in text
    assert "A square Marchenko-Pastur law is wrong under a causal mask" in text
    assert "0.1.0" in text
    assert "torch · version" in text


def test_numbers_are_those_of_the_tables() -> None:
    from attnscope.figures.registry import measured_heads

    results = made.make_results()
    rows = number_rows(measured_heads(results), results.table("baselines"), ["fiedler_value", "betti_0"])
    first = rows[0]
    values = [made.value(64, s, lay, h) / 2 for s in (0, 1) for lay in (0, 1) for h in (0, 1)]
    before = [made.value(0, s, lay, h) / 2 for s in (0, 1) for lay in (0, 1) for h in (0, 1)]
    assert (first.series, first.mean, first.uniform) == ("text", number(np.mean(values)), "0.500")
    assert first.untrained == number(np.mean(before))
    assert first.strongest.endswith("(L1H1)")
    assert first.samples == 2
    assert rows[2].label == "components at 0.02"
    assert rows[2].uniform == "7.00"


def test_missing_values_are_counted() -> None:
    from attnscope.figures.registry import measured_heads

    results = made.make_results()
    heads = measured_heads(results)
    heads.loc[(heads["step"] == 64) & (heads["sample"] == 0) & (heads["layer"] == 0), "mp_ks"] = np.nan
    assert number_rows(heads, None, ["mp_ks"])[0].missing == 2


def test_published_protocol_is_shown_with_its_artefacts(tmp_path: Path) -> None:
    results = made.make_results(steps=(-1,))
    heads = results.table("heads")
    mean = heads[heads["head"] == -1].assign(protocol="ruscio2025", betti_0=12.0)
    both = Results(
        {"samples": results.table("samples"), "heads": pd.concat([heads, mean], ignore_index=True)}
    )
    assert ("heads", "betti_0", "12.0", "[12.0, 12.0]", 4) in published_rows({"heads": both.table("heads")})
    text = "".join(Page(report(both, tmp_path / "r.html").read_text(encoding="utf-8")).text)
    assert "Published protocol" in text
    assert "for every causal model" in text


def test_a_run_with_little_in_it_still_has_a_report(tmp_path: Path) -> None:
    page = Page(report(Results({}), tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "These results carry no provenance." in "".join(page.text)
    odd = Results({"frames": pd.DataFrame({"model": ["m"], "frame": [EVIL], "margin": [0.25]})})
    page = Page(report(odd, tmp_path / "odd.html").read_text(encoding="utf-8"))
    assert EVIL in page.text
    assert "0.250" in page.text
    with pytest.raises(ValueError, match="no run folder"):
        report(Results({}))
