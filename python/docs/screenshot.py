# SPDX-License-Identifier: MIT
"""Makes the pictures of pages of heads that README shows, from the demo's models: needs chromium.

`python python/docs/screenshot.py` writes `view.png` and prints README's table; with `picture` it writes
`picture.png`, the attention of CLS on a drawn shape. Both are in `python/docs/images`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

import attnscope as asc
from attnscope.demo import copying_sequences, demo_checkpoints
from attnscope.demo.pictures import draw_shapes, shape_model
from attnscope.models import find_checkpoints, load_model, load_tokenizer
from attnscope.view import View

IMAGES = Path(__file__).with_name("images")
SIZE = (1180, 1010)


def main() -> None:
    """Trains the demo's model where there is none, looks at one of its texts, and takes the picture."""
    last = find_checkpoints(f"{demo_checkpoints()}/step*")[-1]
    model, tokenizer = load_model(last).model, load_tokenizer(last)
    texts = copying_sequences(4, seed=1)
    results = asc.analyze(model, texts, ["sink_share", "fiedler_value"], tokenizer=tokenizer)
    heads = results["heads"].groupby(["layer", "head"])[["sink_share", "sink_boost", "fiedler_value"]].mean()
    print(heads.nlargest(4, "sink_share").round(3))
    page = asc.view(model, texts[0][:18] * 2, tokenizer=tokenizer, title="demo model", head=(1, 0))
    photograph(page, "#metric=sink_share&layer=1&head=0", IMAGES / "view.png")


def picture() -> None:
    """Train a small vision transformer on drawn shapes, and photograph what CLS sees of one of them."""
    model = shape_model(4)
    pixels = draw_shapes(6, seed=1)[0][3:4]
    page = asc.view(model, {"pixel_values": pixels}, title="a drawn shape", head=(2, 3))
    photograph(page, "#metric=entropy&layer=2&head=3&query=0", IMAGES / "picture.png")


def photograph(page: View, fragment: str, target: Path) -> None:
    """Store a page as a browser shows it."""
    browser = next(path for name in ("chromium", "google-chrome") if (path := shutil.which(name)))
    with tempfile.TemporaryDirectory() as folder:
        file, shot = Path(folder) / "view.html", Path(folder) / "view.png"
        page.save(file)
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={folder}/profile",
                f"--window-size={SIZE[0]},{SIZE[1]}",
                f"--screenshot={shot}",
                f"{file.as_uri()}{fragment}",
            ],
            check=True,
            capture_output=True,
            timeout=300,
        )
        with Image.open(shot) as screenshot:
            screenshot.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(
                target, "PNG", optimize=True
            )
    print(target, target.stat().st_size)


if __name__ == "__main__":
    picture() if "picture" in sys.argv[1:] else main()
