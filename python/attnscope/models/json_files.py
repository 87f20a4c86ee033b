# SPDX-License-Identifier: MIT
"""JSON files of model folders: objects, or refused in one line that names the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.errors import DocumentError
from attnscope.untrusted.documents import read_json


def read_json_object(file: Path, *, function: str = "") -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Args:
        file: the file.
        function: that asked, for the message.

    Raises:
        ValueError: no regular file, too large or too deep, no JSON, or no object.
    """
    before = f"{function}: " if function else ""
    try:
        content = read_json(file)
    except DocumentError as error:
        raise ValueError(f"{before}{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{before}{file} holds a {type(content).__name__}, expected keys and values")
    return content
