# SPDX-License-Identifier: MIT
"""The demo's model as it comes with the package: step 128 of what `make demo` trains, in half precision.

`python -m attnscope.demo.shipped` makes the folder anew; nothing else writes it. Loading it trains nothing.

Example:
    >>> import attnscope as asc
    >>> from attnscope.demo import demo_model
    >>> heads = asc.analyze(demo_model(), ["one two one two"], ["sink_share"])["heads"]
    >>> len(heads)  # three layers of four heads
    12
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path

from attnscope.demo.texts import byte_tokenizer, documentation
from attnscope.demo.training import SHORT, demo_checkpoints

_FOLDER = Path(__file__).with_name("model")
_LICENCE = """\
---
license: mit
---
The model of attnscope's demo: {layers} layers of {heads} heads, {width} wide, a token for each byte.

Trained from scratch for {steps} steps by `attnscope.demo.training` on the documentation that CPython
{python} carries (`pydoc_data.topics`, Copyright Python Software Foundation, PSF License Version 2) and on
random strings, each written twice. Weights: MIT licence, as the package. `recipe.json` holds the recipe, the
digest of the texts and the SHA-256 of `model.safetensors`; `python -m attnscope.demo.shipped` makes it.
"""


def demo_model() -> Path:
    """Return the folder of the demo's model, which comes with the package.

    Its weights are stored in float16 and loaded in float32.

    Raises:
        OSError: the weights are not those that the package came with.
    """
    recipe = json.loads((_FOLDER / "recipe.json").read_text(encoding="utf-8"))
    digest = weights_digest(_FOLDER)
    if digest != recipe["sha256"]:
        raise OSError(
            f"demo_model: {_FOLDER} is damaged: its weights have the SHA-256 {digest[:16]}..., expected "
            f"{recipe['sha256'][:16]}...; install the package again"
        )
    return _FOLDER


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of a folder's weights."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def write_model(folder: Path) -> Path:
    """Write the last checkpoint of the short recipe to a folder in half precision, and return the folder.

    Args:
        folder: made where it is missing; the recipe is trained where no cache has it.
    """
    from transformers import AutoModelForCausalLM

    checkpoint = demo_checkpoints() / f"step{SHORT.steps}"
    AutoModelForCausalLM.from_pretrained(checkpoint).half().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    config = folder / "config.json"
    values = {
        **json.loads(config.read_text(encoding="utf-8")),
        "dtype": "float32",
    }  # of the numbers in memory
    texts = "".join(documentation())
    facts = {
        **asdict(SHORT),
        "documentation": hashlib.sha256(texts.encode()).hexdigest()[:16],
        "python": platform.python_version(),
        "sha256": weights_digest(folder),
    }
    licence = _LICENCE.format(**facts)
    for name, text in (
        ("config.json", json.dumps(values, indent=2)),
        ("recipe.json", json.dumps(facts, indent=2)),
        ("README.md", licence.rstrip()),
    ):
        (folder / name).write_text(f"{text}\n", encoding="utf-8")
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


if __name__ == "__main__":
    print(write_model(_FOLDER), file=sys.stderr)
