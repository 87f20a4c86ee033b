# SPDX-License-Identifier: MIT
"""The site builds without a warning, its links lead somewhere, and it fetches nothing."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import attnscope as asc
from attnscope.metrics.request import metric_names
from attnscope.protocols import ruscio2025
from browser import dom, in_a_browser

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "mkdocstrings")),
        reason="mkdocs-material and mkdocstrings are not installed",
    ),
]


class Page(HTMLParser):
    """Anchors, links, and what the page loads."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loaded, self.text = set(), [], [], ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if tag in ("script", "img", "iframe") and attributes.get("src"):
            self.loaded.append(attributes["src"])
        if tag == "link" and attributes.get("rel") in ("stylesheet", "preconnect", "icon"):
            self.loaded.append(attributes["href"])

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(ROOT / "python/docs/mkdocs.yml"),
    ]
    done = subprocess.run(
        [*command, "-d", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    return {path.relative_to(folder): Page(path) for path in sorted(folder.rglob("*.html"))}, folder


def test_every_local_link_leads_to_a_file_and_an_anchor(site):
    pages, folder = site
    assert len(pages) > 12
    broken, followed = [], 0
    for where, page in pages.items():
        if where.name == "404.html":  # its links start at the root of a server
            continue
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            followed += 1
            target = (folder / where.parent / unquote(parts.path)).resolve() if parts.path else folder / where
            if not target.is_file():
                broken.append(f"{where}: {link}")
            elif parts.fragment and target.suffix == ".html":
                anchors = pages[target.relative_to(folder.resolve())].anchors
                if unquote(parts.fragment) not in anchors:
                    broken.append(f"{where}: {link}")
    assert broken == []
    assert followed > 500


def test_no_page_loads_anything_from_a_network(site):
    loaded = {address for page in site[0].values() for address in page.loaded}
    assert [address for address in loaded if urlsplit(address).netloc] == []
    assert loaded


def test_every_metric_is_defined_and_has_its_reference(site):
    pages, _ = site
    definitions = pages[Path("definitions.html")].text
    anchors = {anchor for page in pages.values() for anchor in page.anchors}
    for name in metric_names():
        if name == "marchenko_pastur_deviation":  # the ks of marchenko_pastur
            continue
        assert re.search(rf"\b{name}\b", definitions), f"the definitions page lacks {name}"
        module = getattr(asc, name).__module__
        assert f"{module}.{name}" in anchors, f"the API lacks {name}"


def test_what_a_newcomer_does_is_on_the_site(site):
    pages, _ = site
    assert "How to add a metric" in pages[Path("contributing.html")].text
    assert "How to add a study" in pages[Path("contributing.html")].text
    assert "attnscope resume" in pages[Path("study.html")].text


def test_every_public_name_is_in_the_api(site):
    anchors = {anchor for page in site[0].values() for anchor in page.anchors}
    names = {name: getattr(asc, name) for name in asc.__all__ if not name.startswith("_")}
    names |= {f"ruscio2025.{name}": getattr(ruscio2025, name) for name in ruscio2025.__all__}
    missing = [
        name
        for name, value in names.items()
        if not isinstance(value, types.ModuleType)
        and f"{value.__module__}.{value.__qualname__}" not in anchors
    ]
    assert missing == []
    assert any(anchor.startswith("attnscope.statistics.") for anchor in anchors)


@in_a_browser
def test_formulas_are_drawn(site, tmp_path):
    """In a browser a fraction stands higher than a line of text."""
    page = (site[1] / "definitions.html").read_text("utf-8")
    assert page.count("<math") >= 10
    probe = (
        "<script>document.title = JSON.stringify([...document.querySelectorAll('math')].map(one => "
        "[one.getBoundingClientRect().width, one.getBoundingClientRect().height]))</script></body>"
    )
    file = site[1] / "probe.html"
    file.write_text(page.replace("</body>", probe), "utf-8")
    shown = dom(file.as_uri(), tmp_path)
    file.unlink()
    boxes = json.loads(shown.partition("<title>")[2].partition("</title>")[0])
    assert len(boxes) >= 10
    assert all(width > 80 and height > 20 for width, height in boxes), [b for b in boxes if b[1] <= 20]
