# SPDX-License-Identifier: MIT
"""Settings as plain data: read from YAML, from a packaged study, and changed key by key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnscope._nearest import nearest
from attnscope.config.packaged_configs import analyses, is_packaged, packaged, packaged_text
from attnscope.config.study_folders import studies
from attnscope.errors import ConfigError, DocumentError
from attnscope.untrusted.documents import parse_yaml, read_yaml


def as_list(value: object) -> object:
    """Return a text, a mapping or a path as a list of it; anything else as it is."""
    return [value] if isinstance(value, (str, Mapping, Path)) else value


def as_mapping(value: object) -> object:
    """Return a text or a path as a mapping with the key `path`; anything else as it is."""
    return {"path": str(value)} if isinstance(value, (str, Path)) else value


def read_config(source: str | Path) -> dict[str, Any]:
    """Return the keys of a YAML file, of a packaged study, or of an installed one by its name, unchecked.

    `extends: NAME` starts from the keys of another study, which the file's own replace.
    """
    path, name = Path(source), str(source)
    if not path.is_file() and not is_packaged(name) and name in studies():
        return {"study": name}  # with the defaults of its options
    if not path.is_file() and not is_packaged(name):
        if path.is_dir():
            raise ConfigError(f"{source} is a folder, no study")
        if path.suffix in (".yaml", ".yml") or path.name != name:
            raise ConfigError(f"there is no file {source}")
        raise ConfigError(
            f"{source!r} is neither a file nor a study{nearest(name, (*packaged(), *studies()))}"
        )
    try:
        data = read_yaml(path) if path.is_file() else parse_yaml(packaged_text(name))
    except DocumentError as error:
        raise ConfigError(f"{source} cannot be read: {error}") from error
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected keys and values, got a {type(data).__name__}")
    base = data.pop("extends", None)
    if base is None:
        return data
    if not is_packaged(str(base)) or base == name:
        raise ConfigError(
            f"{source}: extends {base!r}, which is no packaged study{nearest(str(base), packaged())}"
        )
    return {**read_config(str(base)), **data}


def split_analysis(source: str | Path) -> tuple[str | Path, str]:
    """Return a packaged study's name and the analysis behind its colon, "" when there is none.

    >>> split_analysis("phi-2:topology"), split_analysis("study.yaml")
    (('phi-2', 'topology'), ('study.yaml', ''))
    """
    name, colon, analysis = str(source).partition(":")
    if not colon or not is_packaged(name):
        return source, ""
    if analysis not in analyses():
        raise ConfigError(f"{source}: no analysis {analysis!r}{nearest(analysis, analyses())}")
    return name, analysis


def set_key(data: dict[str, Any], assignment: str) -> None:
    """Apply one `key=value` to a configuration, in place; the value is read as YAML.

    >>> data = {"texts": ["a.txt", {"path": "b.csv"}]}
    >>> set_key(data, "texts.samples=5")
    >>> data["texts"]
    [{'path': 'a.txt', 'samples': 5}, {'path': 'b.csv', 'samples': 5}]
    """
    key, equals, text = assignment.partition("=")
    if not equals or not all(key.strip().split(".")):
        raise ConfigError(f"--set: expected key=value, got {assignment!r}")
    try:
        value = parse_yaml(text)
    except DocumentError as error:
        raise ConfigError(f"--set {key}: the value {text!r:.200} is {error}") from error
    assign(data, key.strip(), value)


def assign(data: dict[str, Any], key: str, value: Any) -> None:
    """Set one key of a configuration to a value, in place.

    The key may be a path (`options.extra`, `texts.0.samples`, `texts[0].samples`); without the index
    (`models.dtype`) the value goes to every entry.
    """
    from omegaconf import OmegaConf  # imported in a tenth of a second, which only those wait who set a key
    from omegaconf.errors import OmegaConfBaseException

    name, *inner = re.split(r"[.\[]", key, maxsplit=1)
    entry, paths = data.get(name), [key]
    if inner and name in ("models", "texts"):
        entry = [as_mapping(source) for source in as_list(entry or [])]  # type: ignore[attr-defined]
        if not inner[0][:1].isdigit():
            paths = [f"{name}.{at}.{inner[0]}" for at in range(len(entry))]
    try:
        settings = OmegaConf.create({name: entry}, flags={"allow_objects": True})
        for path in paths:
            OmegaConf.update(settings, path, value, merge=False)
        data.update(OmegaConf.to_container(settings))  # type: ignore[arg-type]
    except (OmegaConfBaseException, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"--set: {key!r} cannot be {value!r}: {reason}") from error
    if not paths:
        raise ConfigError(f"--set: {key!r}: there are no {name}")
