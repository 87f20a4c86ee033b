# SPDX-License-Identifier: MIT
"""`attnscope run`, `attnscope view`, then a browser without a network: the page needs the file alone."""

import shutil
import subprocess
import sys

import pytest

from folders import model_folder, sentences

CHROMIUM = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_run_is_looked_at_in_a_browser(tmp_path):
    model, texts = model_folder(tmp_path / "tiny"), sentences(tmp_path / "texts.txt", 2, shortest=9)
    run = [sys.executable, "-m", "attnscope"]
    study = ["run", "sink_study", "--model", model, "--texts", texts, "--output", tmp_path, "--name", "seen"]
    for command in ([*study, "--no-draw", "--quiet"], ["view", tmp_path / "seen", "--sample", "1"]):
        done = subprocess.run([*run, *map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    browser = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000"]
    browser += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}"]
    page = tmp_path / "seen" / "view.html"
    for layer, head in ((1, 2), (0, 1)):
        shown = subprocess.run(
            [*browser, "--dump-dom", f"{page.as_uri()}#layer={layer}&head={head}"],
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout  # fmt: skip
        assert f"<th>L{layer}H{head}</th>" in shown, "the opened head's numbers are not on the page"
