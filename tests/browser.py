# SPDX-License-Identifier: MIT
"""Pages as a real browser has them."""

import base64
import hashlib
import json
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


def dom(address, profile, *options):
    """The document behind an address after its scripts have run, as markup."""
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={profile}",
            *options,
            "--dump-dom",
            address,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def complaints(address, profile):
    """The lines that a page writes to the console, violations of its security policy among them."""
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--virtual-time-budget=4000",
            "--dump-dom",
            address,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def looked_at(page, folder, fragment="", script="", options=()):
    """The document of a view after its own script and one more, which its security policy is told of."""
    file = folder / "page.html"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = page.html().replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    file.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return Document(dom(f"{file.as_uri()}{fragment}", folder / "profile", *options))


class Document(HTMLParser):
    """Text and attributes by id; script tags counted."""

    def __init__(self, page):
        super().__init__()
        self.text, self.attributes, self.scripts, self.pressed, self.fetched = {}, {}, 0, [], []
        self._open = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.scripts += tag == "script"
        self.fetched += [
            attributes[name] for name in ("src", "href", "action", "srcset") if name in attributes
        ]
        if attributes.get("aria-pressed") == "true":
            self.pressed.append((int(attributes["data-layer"]), int(attributes["data-head"])))
        self.attributes[attributes.get("id")] = attributes
        if tag not in ("meta", "input", "br", "link"):
            self._open.append(attributes.get("id"))

    def handle_endtag(self, tag):
        if self._open:
            self._open.pop()

    def handle_data(self, data):
        for name in self._open:
            if name:
                self.text[name] = self.text.get(name, "") + data

    @property
    def probe(self):
        return json.loads(self.attributes["probe"]["data-found"])


def probe(expression):
    """A script that stores a value in the document."""
    return (
        "const found = document.createElement('p'); found.id = 'probe'; document.body.appendChild(found);"
        f"found.dataset.found = JSON.stringify({expression});"
    )
