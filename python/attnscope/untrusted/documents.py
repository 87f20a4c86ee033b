# SPDX-License-Identifier: MIT
r"""JSON and YAML of unknown origin: bounded in size, nesting and aliases, and an error in one line.

Both readers open regular files only, so that a pipe or a device under the name of a file cannot block or
flood the process.

Example:
    >>> from attnscope.untrusted.documents import parse_json, parse_yaml
    >>> parse_json('{"seed": 1}'), parse_yaml("seed: 1")
    ({'seed': 1}, {'seed': 1})
    >>> parse_yaml("a: &a [1, 1]\nb: [*a, *a]")["b"]
    [[1, 1], [1, 1]]
    >>> parse_json("[" * 99 + "]" * 99)
    Traceback (most recent call last):
    attnscope.errors.DocumentError: nested more than 50 deep
"""

from __future__ import annotations

import json
import os
import re
import stat
from typing import Any

from attnscope.errors import DocumentError
from attnscope.untrusted.limits import (
    MAX_JSON_BYTES,
    MAX_JSON_DEPTH,
    MAX_YAML_BYTES,
    MAX_YAML_DEPTH,
    MAX_YAML_NODES,
)
from attnscope.untrusted.safe_text import escape_unprintable

_INTEGER_TAG, _FLOAT_TAG = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
# Numbers of YAML, as version 1.2 and JSON have them: 1e-3 is one, which PyYAML takes for a text; 0100 is what
# is written, not 64, and 1_000, 12:30:45 and 0012e4, the beginning of a commit, are no numbers.
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)$")
_FLOAT = re.compile(
    r"([-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?(0|[1-9][0-9]*)[eE][-+]?[0-9]+"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
)


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        DocumentError: a pipe, a device, a folder, or a file of more than `limit` bytes.
        OSError: the file cannot be opened or read.
    """
    # a pipe without a writer would block a plain open for ever
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DocumentError("no regular file")
        if status.st_size > limit:
            raise DocumentError(f"{status.st_size:,} bytes, at most {limit:,} are read")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DocumentError(f"more than {limit:,} bytes")
    return data


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the content of a JSON file; errors as of `read_regular` and `parse_json`."""
    return parse_json(_decode(read_regular(path, MAX_JSON_BYTES)))


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Return the content of a YAML file; errors as of `read_regular` and `parse_yaml`."""
    return parse_yaml(_decode(read_regular(path, MAX_YAML_BYTES)))


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        DocumentError: not JSON, a number of thousands of digits, or nested more than `MAX_JSON_DEPTH` deep.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise DocumentError(f"nested more than {MAX_JSON_DEPTH} deep") from None
    except ValueError as error:
        raise DocumentError(f"not JSON: {error}") from error
    level, depth = [value], 0
    while level := [item for part in level for item in _items(part)]:
        depth += 1
        if depth > MAX_JSON_DEPTH:
            raise DocumentError(f"nested more than {MAX_JSON_DEPTH} deep")
    return value


def _items(value: Any) -> list[Any]:
    """Return the values inside a list or an object, and none of other values."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def parse_yaml(text: str) -> Any:
    r"""Return the value of a YAML text; only plain data, never an object of Python.

    Raises:
        DocumentError: not YAML, nested more than `MAX_YAML_DEPTH` deep, of more than `MAX_YAML_NODES` nodes
            once its aliases are expanded, with a key that is written twice, or with the character U+0085,
            which PyYAML takes for the end of a line, also inside quotes.

    >>> parse_yaml("1e-3"), parse_yaml(r'"a\N"')
    (0.001, 'a\x85')
    """
    import yaml

    if "\x85" in text:
        line = text[: text.index("\x85")].count("\n") + 1
        raise DocumentError(rf"line {line} holds the character U+0085; write \N for it, in double quotes")
    try:
        loader = _loader()(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except RecursionError:
        raise DocumentError(f"nested more than {MAX_YAML_DEPTH} deep") from None
    except (
        *(yaml.YAMLError, ValueError, TypeError, OverflowError),
        # of values that their own tag does not fit: !!int of nothing, !!bool of a word, !!timestamp of one
        *(LookupError, AttributeError),
    ) as error:
        reason = escape_unprintable(" ".join(str(error).split()))
        raise (
            error if isinstance(error, DocumentError) else DocumentError(f"not valid YAML: {reason}")
        ) from error


def dump_yaml(value: Any, **layout: Any) -> str:
    r"""Return plain data as YAML that `parse_yaml` reads as the same; keys stay in their order.

    Args:
        layout: width and style, as `yaml.dump` takes them.

    >>> dump_yaml({"label": "1e3", "column": "a\x85b"})
    'label: \'1e3\'\ncolumn: "a\\Nb"\n'
    """
    import yaml

    dumped: str = yaml.dump(value, Dumper=_dumper(), sort_keys=False, allow_unicode=True, **layout)
    return dumped


def _dumper() -> Any:
    """Return PyYAML's safe dumper with quotes around what the loader here would take for a number."""
    import yaml

    class RereadDumper(yaml.SafeDumper):
        """A safe dumper of texts that the loader reads as they are."""

        def represent_text(self, text: str) -> Any:
            """Represent a text; ends of lines that YAML 1.1 alone knows are escaped, in double quotes."""
            style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
            return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    RereadDumper.add_representer(str, RereadDumper.represent_text)
    RereadDumper.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789."))
    return RereadDumper


def _loader() -> Any:
    """Return PyYAML's safe loader with bounds; the class is made when PyYAML is needed."""
    import yaml

    class BoundedLoader(yaml.SafeLoader):
        """A safe loader that counts levels while it reads, and nodes before it makes values of them."""

        def __init__(self, stream: str) -> None:
            self.depth = 0
            super().__init__(stream)

        def compose_node(self, parent: Any, index: Any) -> Any:
            """Compose a node, inside a limited number of others."""
            self.depth += 1
            if self.depth > MAX_YAML_DEPTH:
                raise DocumentError(f"nested more than {MAX_YAML_DEPTH} deep")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            """Compose keys and values; of a key that is written twice PyYAML would keep the last."""
            node = super().compose_mapping_node(anchor)
            written: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if (key.tag, key.value) in written:
                    line = key.start_mark.line + 1
                    raise DocumentError(f"the key {key.value!r:.100} is written twice, again in line {line}")
                written.add((key.tag, key.value))
            return node

        def get_single_node(self) -> Any:
            """Compose the document, of limited size with its aliases expanded."""
            node = super().get_single_node()
            _check_expanded_size(node)
            return node

    BoundedLoader.yaml_implicit_resolvers = {
        first: [resolver for resolver in resolvers if resolver[0] not in (_INTEGER_TAG, _FLOAT_TAG)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    BoundedLoader.add_implicit_resolver(_INTEGER_TAG, _INTEGER, list("-+0123456789"))
    BoundedLoader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789."))
    return BoundedLoader


def _check_expanded_size(root: Any) -> None:
    """Raise DocumentError where the aliases of a YAML document multiply, or form a circle."""
    sizes: dict[int, int] = {}

    def measure(node: Any) -> int:
        key = id(node)
        if key in sizes:
            if sizes[key] < 0:
                raise DocumentError("an alias of YAML contains itself")
            return sizes[key]
        sizes[key] = -1
        total = 1
        if isinstance(node.value, list):
            for part in node.value:
                total += sum(map(measure, part)) if isinstance(part, tuple) else measure(part)
                if total > MAX_YAML_NODES:
                    raise DocumentError(f"more than {MAX_YAML_NODES:,} nodes once aliases are expanded")
        sizes[key] = total
        return total

    if root is not None:
        measure(root)


def _decode(data: bytes) -> str:
    """Return UTF-8 bytes as text, without a byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"not UTF-8 text: {error.reason} at byte {error.start}") from error
