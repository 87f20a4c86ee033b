# SPDX-License-Identifier: MIT
"""Makes the picture of the page of heads that README shows, from the demo's model: needs chromium.

`python python/docs/screenshot.py` writes `python/docs/images/view.png` and prints README's table.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

import attnscope as asc
from attnscope.demo import copying_sequences, demo_checkpoints
from attnscope.models import find_checkpoints, load_model, load_tokenizer

PICTURE = Path(__file__).with_name("images") / "view.png"
SIZE = (1180, 1010)


def main() -> None:
    """Trains the demo's model where there is none, looks at one of its texts, and takes the picture."""
    last = find_checkpoints(f"{demo_checkpoints()}/step*")[-1]
    model, tokenizer = load_model(last).model, load_tokenizer(last)
    texts = copying_sequences(4, seed=1)
    results = asc.analyze(model, texts, ["sink_share", "fiedler_value"], tokenizer=tokenizer)
    heads = results["heads"].groupby(["layer", "head"])[["sink_share", "sink_boost", "fiedler_value"]].mean()
    print(heads.nlargest(4, "sink_share").round(3))
    browser = next(path for name in ("chromium", "google-chrome") if (path := shutil.which(name)))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "view.html"
        text = texts[0][:18] * 2
        asc.view(model, text, tokenizer=tokenizer, title="demo model", head=(1, 0)).save(page)
        shot = Path(folder) / "view.png"
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={folder}/profile", f"--window-size={SIZE[0]},{SIZE[1]}",
             f"--screenshot={shot}", f"{page.as_uri()}#metric=sink_share&layer=1&head=0"],
            check=True, capture_output=True, timeout=300,
        )  # fmt: skip
        with Image.open(shot) as screenshot:
            screenshot.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(
                PICTURE, "PNG", optimize=True
            )
    print(PICTURE, PICTURE.stat().st_size)


if __name__ == "__main__":
    main()
