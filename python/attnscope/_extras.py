# SPDX-License-Identifier: MIT
"""Libraries that `pip install attnscope` alone does not bring, and the extra that brings each.

The metrics need torch, NumPy and SciPy. Models need `attnscope[models]`; what runs, stores, draws and reports
needs `attnscope[studies]`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

#: The smallest extra that brings each library, by the name under which it is imported.
EXTRA_OF = {
    "sklearn": "sklearn",
    **dict.fromkeys(
        ("huggingface_hub", "pandas", "regex", "safetensors", "tokenizers", "tqdm", "transformers"), "models"
    ),
    **dict.fromkeys(("filelock", "jinja2", "markupsafe", "matplotlib", "omegaconf", "pyarrow"), "studies"),
    **dict.fromkeys(("pydantic", "pydantic_core", "typer", "xarray", "yaml"), "studies"),
}
_MACHINERY = ("importlib._bootstrap", "_frozen_importlib")


def missing_message(library: str) -> str:
    """Return what to say of a library that is not installed.

    >>> missing_message("pyarrow")
    "this needs pyarrow, which is not installed: pip install 'attnscope[studies]'"
    """
    return f"this needs {library}, which is not installed: pip install 'attnscope[{EXTRA_OF[library]}]'"


class MissingExtraFinder:
    """The last finder of the import system: of a library that no other finds it says which extra brings it.

    It speaks only where attnscope itself imports; other packages try libraries that may be absent.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None where somebody else imports, or the library is none of an extra.

        Raises:
            ModuleNotFoundError: a module of attnscope imports a library that is not installed.
        """
        if name in EXTRA_OF and _importer().partition(".")[0] == "attnscope":
            raise ModuleNotFoundError(missing_message(name), name=name)
        return None


def _importer() -> str:
    """Return the name of the module whose code imports at this moment."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        # the statement `import`, and importlib.import_module, stand between the importer and the finders
        if module not in (__name__, "importlib") and not module.startswith(_MACHINERY):
            return module
        frame = frame.f_back
    return ""


def install_finder() -> None:
    """Append the finder to those of the import system, once."""
    if not any(isinstance(finder, MissingExtraFinder) for finder in sys.meta_path):
        sys.meta_path.append(MissingExtraFinder())
