# SPDX-License-Identifier: MIT
"""Labels, groups, tokens and names of files that are markup, formulas or control characters: pages, pictures
and LaTeX show them as text.
"""

import ast
import base64
import csv
import importlib
import io
import re
import xml.etree.ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from degenerate_runs import NAMES, declared_tables
from markupsafe import Markup

import attnscope as asc
import figure_tables as made
import study_tables
from attnscope.config.study_folders import find_study
from attnscope.plots import draw_all, save
from attnscope.report import latex_tables
from attnscope.report.page import html as table_html
from attnscope.report.page import render
from attnscope.report.section import Page, Section, Table, paragraphs
from attnscope.results.results import Results
from browser import complaints, dom, in_a_browser

PACKAGE = Path(asc.__file__).parent
#: Ends an attribute, an element and a script, and begins a script, a handler and a formula.
EVIL = "x\"'></td></title></script><script>document.title='PWNED'</script><img src=x onerror=alert(1)>{{7*7}}"
#: The same without what no name of a file holds.
EVIL_FILE = EVIL.replace("/", "")
REVERSED = "\u202ereversed"
CONTROLS = "bell\x07\x1b[31m\x00\ufffe"
ARABIC = "\u0646\u0645\u0648\u0630\u062c"  # letters that are written from right to left, without any control


class Parsed(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self._open = [], "", []
        self.isolated = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "br", "input", "link"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "bdi" in self._open:
            self.isolated.append(data)


def assert_harmless(page):
    """No script, no handler, no address but of data and of the page itself; every tag is closed in order."""
    result = Parsed(page)
    assert not result._open
    for tag, attributes in result.tags:
        assert tag not in ("script", "iframe", "object", "embed", "link", "base", "form"), tag
        assert not [name for name in attributes if name.startswith("on")], attributes
        for name in ("src", "href", "srcset", "action", "data"):
            target = attributes.get(name) or "#"
            assert target.startswith(("data:image/", "data:text/plain;base64,", "#")), target
        if tag != "meta":
            ids = attributes.get("id") or "a"
            assert re.fullmatch(r"[\w-]+", ids), ids
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]", page)
    return result


def renamed(results, names):
    """Results whose texts are others: every cell that is a key of `names`."""
    tables = {}
    for name in results.tables():
        frame = results.table(name)
        for column in frame.columns:
            if frame[column].dtype.kind == "O":
                frame[column] = [
                    names.get(cell, cell) if isinstance(cell, str) else cell for cell in frame[column]
                ]
        tables[name] = frame
    return Results(tables, study=results.study, provenance=results.provenance)


def hostile_run(name):
    """Results of a study with every text that comes from outside replaced."""
    label = f"{EVIL} {REVERSED} {CONTROLS}"
    if name == "attention_sinks":
        results = study_tables.make_study(token=EVIL)
        outside = {name: f"{name} {label}" for name in results.table("heads")["model"].unique()}
        outside |= {name: f"{name} {label}" for name in results.table("samples")["group"].unique()}
        results = renamed(results, outside)
    else:
        tables = declared_tables(name)
        if name == "attention_likelihood":
            tables["samples"] = made.make_results().table("samples").assign(text="word", model="m")
        # keys whose values a study names itself
        if "claim" in tables.get("claims", ()):
            tables["claims"]["claim"] = tables["claims"]["claim"].map(lambda code: f"C{code} word")
        if "check" in tables.get("checks", ()):
            tables["checks"]["check"] = tables["checks"]["check"].map(lambda code: f"{code} word")
        if "emergence" in tables:
            tables["emergence"]["metric"] = "residual"
        if "probes" in tables:
            tables["probes"]["site"] = tables["probes"]["site"].map("site_{}".format)
        if "leakage" in tables:
            rotated = tables["leakage"].assign(input="rotated")
            tables["leakage"] = pd.concat([tables["leakage"].assign(input="windows"), rotated])
        results = renamed(
            Results(tables, study={"study": name, "models": [{"path": "m"}]}), {"m": label, "word": label}
        )
    odd = pd.DataFrame({"model": [label], EVIL: [label]})
    tables = {table: results.table(table) for table in results.tables()} | {EVIL_FILE: odd}
    provenance = {
        "skipped": [{"checkpoint": label, "reason": label}, label],
        "instructions": label,
        label: {label: [label]},
    }
    return Results(tables, study={**results.study, "name": label}, provenance=provenance), label


@pytest.mark.parametrize("name", NAMES)
def test_every_section_of_every_study_shows_names_as_text(name):
    results, label = hostile_run(name)
    sections = find_study(name).part("sections")
    text = render(results, label, drawn={})
    result = assert_harmless(text)
    if sections is not None:  # a study without any has those of every run
        assert sum(f'<h2 id="{section.id}"' in text for section in sections.SECTIONS) > 1
    assert EVIL in result.text
    assert "{{7*7}}" in result.text
    assert any(EVIL in part for part in result.isolated)
    for line in sections.findings(results) if hasattr(sections, "findings") else ():
        assert_harmless(f"<p>{Markup.escape(line)}</p>".replace(REVERSED, "").replace(CONTROLS, ""))


def test_notes_and_words_are_escaped_and_markup_is_set():
    def write(page):
        for take in (page.words, page.definition):
            take(EVIL)
            take(Markup("<i>x</i> of {}").format(EVIL))
        page.heading(EVIL)
        page.notes([EVIL, Markup("<b>y</b>")])
        page.notes([EVIL], published=True)
        page.frame(EVIL, EVIL, pd.DataFrame({EVIL: [EVIL], "n": ["1"]}))

    section = Section("own", EVIL, (), write)
    page = Page(Results({}), {})
    assert [block.kind for block in page.written(section)].count("notes") == 1
    module = type("Words", (), {"SECTIONS": (section,)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("attnscope.report.page"), "_words", lambda results: module)
        result = assert_harmless(render(Results({}), EVIL, drawn={}))
    assert [tag for tag, _ in result.tags].count("i") == 2
    assert [tag for tag, _ in result.tags].count("b") == 1
    assert isinstance(paragraphs(Markup("a\n\nb"))[1], Markup)
    assert not isinstance(paragraphs("a\n\nb")[1], Markup)


def test_no_template_declares_text_safe_and_no_code_makes_markup_of_what_it_is_given():
    """Two exceptions, which say why: what pandas has escaped, and the package's own script."""
    for file in sorted(PACKAGE.rglob("*.html")):
        assert not re.search(r"\|\s*safe|autoescape\s+false", file.read_text("utf-8")), file
    made_of = []
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "Markup" in text else ():
            is_markup = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Markup"
            if is_markup and not isinstance(node.args[0], ast.Constant):
                made_of.append(f"{file.name}: {ast.unparse(node.args[0])}")
    assert sorted(made_of) == ["page.py: script", "page.py: styler.to_html()"]


@pytest.mark.parametrize("label", [EVIL, "a b", "ü", 'x"><img src=x onerror=alert(1)>', "a-b", "\ud800"])
def test_the_id_of_a_table_is_an_address(label):
    table = Table(label, "caption", pd.DataFrame({"a": ["1"]}))
    text = str(table_html(table))
    assert_harmless(text.encode("utf-8", "replace").decode())
    ids = set(re.findall(r'id="T_([^"]*?)(?:_level0_col0|_row0_col0)?"', text))
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", identifier) for identifier in ids), ids
    assert asc.report  # the package's own function is there


def test_two_labels_have_two_addresses():
    from attnscope.report.page import address_of

    labels = ["a b", "a_b", "a-b", "a<b", "a>b"]
    assert len({address_of(Table(label, "", pd.DataFrame())) for label in labels}) == len(labels)


def test_the_csv_of_a_report_holds_no_formula():
    frame = pd.DataFrame({"=1+1": ["@SUM(A1)", "-0.5", "−0.5"], "n": ["+cmd", "3", "1,234"]})
    (link,) = re.findall(
        r'download="[^"]*\.csv" href="data:text/plain;base64,([^"]*)"', table_html(Table("t", "c", frame))
    )
    rows = list(csv.reader(io.StringIO(base64.b64decode(link).decode())))
    assert rows == [["'=1+1", "n"], ["'@SUM(A1)", "'+cmd"], ["-0.5", "3"], ["−0.5", "1,234"]]


def test_latex_of_names_is_no_command():
    results = made.make_results(group=r"\input{/etc/passwd}^~$x$")
    text = latex_tables(results)
    assert "passwd" in text
    assert r"\input" not in text
    assert not re.search(r"(?<!\\)\$x", text)


# --- pictures


@pytest.mark.parametrize("name", ["a$b$c", f"100$ {CONTROLS} two\nlines {REVERSED}", rf"\$5{EVIL}"])
def test_figures_are_drawn_whatever_a_model_and_a_group_are_called(tmp_path, name):
    results = made.make_results(group=name)
    tables = {table: results.table(table) for table in results.tables()}
    tables = {
        table_name: table.assign(model=name) if "model" in table else table
        for table_name, table in tables.items()
    }
    two = {
        table_name: pd.concat([table, table.assign(model="other")]) if "model" in table else table
        for table_name, table in tables.items()
    }
    left_out = []
    drawn = draw_all(Results(two, study=results.study), ["depth"], left_out=left_out)
    assert not left_out
    shown = name.replace("\n", "·")
    for character in "\x07\x1b\x00\ufffe\u202e":
        shown = shown.replace(character, "·")
    for key, drawing in drawn.items():
        (file,) = save(drawing.figure, tmp_path / key, ["svg"])
        root = xml.etree.ElementTree.fromstring(file.read_bytes())
        assert len(list(root.iter())) > 50
        # what Matplotlib writes of a text beside its outline
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", file.read_text("utf-8"))
    texts = [text.get_text() for drawing in drawn.values() for text in drawing.figure.findobj(is_text)]
    assert any(shown.replace("$", r"\$") in text for text in texts), texts
    # captions are no formulas
    assert not any(r"\$" in drawing.caption for drawing in drawn.values()) or r"\$" in name


def is_text(artist):
    return hasattr(artist, "get_text")


def test_labels_of_an_author_find_names_with_a_dollar_sign():
    results = made.make_results(group="a$b$")
    drawn = asc.plots.draw(results, ["depth"], labels={"a$b$": "the group"})
    texts = [text.get_text() for text in drawn["depth"].findobj(is_text)]
    assert any("the group" in text for text in texts)
    assert not any(r"a\$b" in text for text in texts)


def test_ordinary_names_are_drawn_from_the_same_tables():
    from attnscope.plots.drawable import drawable

    results = made.make_results()
    for name in results.tables():
        pd.testing.assert_frame_equal(drawable(results).table(name), results.table(name))


# --- in a browser


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """A report and a view of hostile names as files."""
    folder = tmp_path_factory.mktemp("pages")
    results = made.make_results(token=EVIL, group=ARABIC)
    drawn = draw_all(results, ["depth"])
    results.report(folder / "report.html", title=f"{EVIL} {ARABIC}", drawn=drawn)
    asc.view(results, title=EVIL).save(folder / "view.html")
    return folder


@in_a_browser
@pytest.mark.parametrize("page", ["report", "view"])
def test_pages_keep_their_own_security_policy(policies, tmp_path, page):
    address = (policies / f"{page}.html").as_uri()
    assert complaints(address, tmp_path / "profile") == []
    title = Parsed(dom(address, tmp_path / "profile2"))
    assert "PWNED" not in title.text.partition("document")[0]


@in_a_browser
@pytest.mark.parametrize("page", ["report", "view"])
def test_a_script_that_got_into_a_page_does_not_run(policies, tmp_path, page):
    text = (policies / f"{page}.html").read_text("utf-8")
    assert "Content-Security-Policy" in text
    evil = "<script>document.body.dataset.ran = 1</script><img src=x onerror='document.body.dataset.ran = 1'>"
    file = tmp_path / "page.html"
    for guarded in (True, False):
        page_text = text if guarded else re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
        file.write_text(page_text.replace("</body>", f"{evil}</body>"), "utf-8")
        shown = dom(file.as_uri(), tmp_path / f"profile{guarded}")
        # without the policy it runs: the test would see it
        assert ("data-ran" in shown) is not guarded


@in_a_browser
def test_numbers_beside_a_name_from_right_to_left_keep_their_order(tmp_path):
    """Where the letters of a finding are, from left to right, as the browser sets them."""
    from attnscope.report.section import NamedSentence

    line = NamedSentence(f"{ARABIC} {REVERSED}", "0.055 [0.055, 0.061]")
    script = """
        const walk = (node) => node.nodeType === 3 ? [node] : [...node.childNodes].flatMap(walk);
        const nodes = walk(document.getElementById("a"));
        const places = nodes.flatMap((node) => [...node.data].map((letter, k) => {
          const range = document.createRange();
          range.setStart(node, k);
          range.setEnd(node, k + 1);
          return [range.getBoundingClientRect().left, letter];
        }));
        const digits = places.filter(([, letter]) => /[0-9]/.test(letter)).sort((a, b) => a[0] - b[0]);
        document.body.dataset.shown = digits.map(([, letter]) => letter).join("");
    """
    result = []
    for inside in (line.__html__(), Markup.escape(f"{ARABIC} {REVERSED}: 0.055 [0.055, 0.061]")):
        file = tmp_path / "bidi.html"
        file.write_text(f"<meta charset=utf-8><p id=a>{inside}</p><script>{script}</script>", "utf-8")
        shown = dom(file.as_uri(), tmp_path / "profile")
        result.append(re.search(r'data-shown="([^"]*)"', shown)[1])
    digits = "0055" * 2 + "0061"
    assert result[0] == digits
    assert result[1] != digits  # without isolation they are turned


def test_a_page_of_no_run_still_is_one():
    assert_harmless(render(Results({}), EVIL, drawn={}))
    assert np.isfinite(len(render(Results({}), EVIL, drawn={})))
