# SPDX-License-Identifier: MIT
"""The configuration of a study: the same in YAML, on the command line and in Python."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from attnscope._nearest import nearest
from attnscope._precision import Precision
from attnscope.config.config_files import as_list, as_mapping, assign, read_config, set_key, split_analysis
from attnscope.config.memory_texts import as_source, text_sources
from attnscope.config.packaged_configs import analyses
from attnscope.config.study_folders import default_study, find_study, load_study, unknown_study
from attnscope.errors import ConfigError
from attnscope.untrusted.documents import dump_yaml
from attnscope.untrusted.names import file_name_fault, name_fault, path_fault
from attnscope.untrusted.safe_text import show_name


def check_name(value: str) -> str:
    """Return a name as it is; ValueError where it holds what cannot be shown, or is too long."""
    if fault := name_fault(value):
        raise ValueError(fault)
    return value


def check_file_name(value: str) -> str:
    """Return the name of a run folder, "" among them; ValueError where no folder can be called so."""
    if value and (fault := file_name_fault(value)):
        raise ValueError(fault)
    return value


def check_path(value: str) -> str:
    """Return a path or an address as it is; ValueError where no file system takes it."""
    if fault := path_fault(value):
        raise ValueError(fault)
    return value


#: What people see in tables and figures: printable, of one line, and short.
Name = Annotated[str, AfterValidator(check_name)]
#: Where something lies on the disk, or what the hub calls it.
Place = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value),
    AfterValidator(check_path),
]
#: A branch, tag, commit or folder; YAML reads an unquoted one such as 1000 as a number.
Revision = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
#: A list of names; one name is short for a list of it.
Names = Annotated[list[str], BeforeValidator(as_list)]


def parse_bytes(value: float | str) -> int:
    """Return the bytes of ``4GB``, ``512 MiB`` or a number; units are powers of 1024, with or without the i.

    >>> parse_bytes("1.5GB"), parse_bytes(4096)
    (1610612736, 4096)
    """
    text = f"{value:f}" if isinstance(value, float) else str(value)  # 1e9 of YAML
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", text, re.IGNORECASE)
    number = float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ") if match else 0.0
    amount = int(number) if math.isfinite(number) else 0
    if amount <= 0:
        raise ValueError(f"expected an amount such as 4GB, got {value!r:.80}")
    return amount


#: A number of bytes, or a text such as 4GB.
Bytes = Annotated[int | str, BeforeValidator(parse_bytes)]


class Strict(BaseModel):
    """Settings whose keys are all known, and which nobody changes."""

    model_config = {"extra": "forbid", "frozen": True, "validate_default": True}

    @field_validator("*", mode="before")
    @classmethod
    def _no_flag_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Return a value as it is; ValueError where YAML's yes stands for a number, which would be 1."""
        kinds = _plain_types(cls.model_fields[str(info.field_name)].annotation)
        if not kinds.isdisjoint((int, float)) and kinds.isdisjoint((bool, Any)) and _has_flag(value):
            raise ValueError(f"expected numbers, not a truth value, got {value!r:.80}")
        return value


def _plain_types(kind: Any) -> set[Any]:
    """Return the types that an annotation is made of; of a literal those of its values."""
    inside = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return {type(value) for value in inside}
    if typing.get_origin(kind) is Annotated:
        return _plain_types(inside[0])
    return {part for argument in inside for part in _plain_types(argument)} if inside else {kind}


def _has_flag(value: Any) -> bool:
    """Return True for a truth value, and for lists of which one is among the entries."""
    return isinstance(value, bool) or (isinstance(value, (list, tuple)) and any(map(_has_flag, value)))


class ModelSource(Strict):
    """A model: a folder, a hub id, or a pattern that names a series of checkpoint folders.

    Args:
        path: the folder, the hub id, or the pattern (`runs/demo/model/step*`).
        label: what tables and figures call the model; empty: the folder's or the hub's name.
        revisions: of a hub id (branches, tags, commits), or folders inside a series; empty: the main one, or
            all that are there.
        tokenizer: a folder or hub id to take it from; empty: the model's own.
        dtype: of the weights in memory; auto: as they are stored.
        device: "cpu", "cuda", "cuda:1"; auto: a GPU where there is one.
        trust_remote_code: run Python code that comes with the model; without it such a model is refused.
            Stored in a run folder it is no consent: `resume`, `gather` and `view` ask for it again.
        free_disk: remove a revision's downloaded weights once it is measured, so that a long series fits on
            a small disk.
    """

    path: Place = Field(min_length=1)
    label: Name = ""
    revisions: Annotated[list[Revision], BeforeValidator(as_list)] = []
    tokenizer: str = ""
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    free_disk: bool = False


class Workers(Strict):
    """Resources of each worker of a cluster; they do not change the numbers.

    Args:
        most: workers at a time; null: as many as the cluster has room for.
        cpus: processors, and threads, of each; null: one worker's share of a machine.
        gpus: of each, fractions allowed; null: one where there is any.
    """

    most: int | None = Field(default=None, ge=1)
    cpus: int | None = Field(default=None, ge=1)
    gpus: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class TextSource(Strict):
    """A source of sentences: a file or the name of a data set, a column, and how many of them by which rule.

    A `.txt` file holds a sentence per line; `per: paragraph` joins the lines between two blank ones. A text
    with newlines of its own belongs into CSV, JSONL or Parquet.

    `per: window` cuts the tokens of all sentences into disjoint windows at a place drawn with the seed, so
    that what a window holds does not know where it was cut; `samples` counts windows. Where the model's
    tokenizer sets a BOS token, it stands before the window and the window's last token is left out.

    `builtin:pydoc` takes the sentences of the Python manual's topics, which every Python carries: the same
    on all machines with one version of Python. `builtin:wordnet` takes the example sentences of WordNet, with
    the word of each as the column `lemma`, from the corpus of nltk that is on disk.
    `builtin:STUDY` takes the prompts that a study comes with; `sample` takes 48 sentences of four fields that
    come with the package, with a column `focus_word`.

    Args:
        path: a .txt, .csv, .jsonl or .parquet file, a data set's folder or hub id, `builtin:NAME`, or
            `sample` for the sentences that come with the package.
        about: what the file is and where it comes from, said where it is missing.
        column: of the sentences, or of lists of token ids; empty: `text`, `sentence`, `content` or the only
            one.
        group: name of this source in tables and figures.
        samples: how many sentences; null: all.
        sampling: which ones: "first", "random", or a rule that the study declares.
        focus: column of the word that a study looks at, where it looks at one.
        encoding: of a text or CSV file.
        subset: configuration of a data set that has several.
        split: part of a data set.
        per: what is one text: a line, a paragraph between blank lines, or a window of `max_tokens` cut from
            all sentences joined.
        min_words: sentences of fewer words (of a list of token ids: tokens) are left out before the rule
            chooses; null: none.
        max_words: those of more words likewise; null: none.
        max_characters: a chosen sentence is cut there and counts as truncated; null: none.
        rows: the texts themselves, where they are in memory: what `analyze` reads, of sentences or token ids.
            A run stores them in its folder.
    """

    path: Place = Field(min_length=1)
    about: str = ""
    column: str = ""
    group: Name = "text"
    samples: int | None = Field(default=None, ge=1)
    sampling: str = Field(default="first", min_length=1)
    focus: str = "focus_word"
    encoding: str = "utf-8"
    subset: str = ""
    split: str = "train"
    per: Literal["line", "paragraph", "window"] = "line"
    min_words: int | None = Field(default=None, ge=1)
    max_words: int | None = Field(default=None, ge=1)
    max_characters: int | None = Field(default=None, ge=1)
    rows: list[dict[str, Any]] | None = Field(default=None, repr=False)

    @model_serializer(mode="wrap")
    def _without_empty_rows(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        if self.rows is None:
            values.pop("rows", None)
        return values

    @field_validator("max_words")
    @classmethod
    def _max_words(cls, value: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("min_words")
        if value is not None and least is not None and value < least:
            raise ValueError(f"expected at least min_words = {least}, got {value}")
        return value


def _model_sources(value: object) -> object:
    """Return a model's name as a list of it; ValueError for a model in memory."""
    for model in value if isinstance(value, (list, tuple)) else [value]:
        if hasattr(model, "forward") and hasattr(model, "parameters"):
            raise ValueError(
                f"a run loads its models itself, from folders and hub ids, got a {type(model).__name__} in "
                "memory; analyze(model, texts) measures that, or save_pretrained(FOLDER) makes a folder of it"
            )
    return as_list(value)


def _text_sources(value: object) -> object:
    """Return names of files and texts in memory as sources."""
    return text_sources(value, TextSource.model_fields)


Models = Annotated[
    list[Annotated[ModelSource, BeforeValidator(as_mapping)]],
    BeforeValidator(_model_sources),
    Field(min_length=1),
]
Texts = Annotated[list[Annotated[TextSource, BeforeValidator(as_source)]], BeforeValidator(_text_sources)]


class RunConfig(Strict):
    """The settings of a run: models, sentences and metrics; `attnscope.run` takes them.

    Args:
        study: what is measured, by the name of its folder.
        name: the run's folder below `output`; empty: the study's name and the models' labels.
        models: one or more models (a string is short for its `path`).
        texts: one or more sources of sentences (a string is short for its `path`), or the texts themselves
            as `analyze` takes them: a list of sentences, a table with a column of texts. A run stores those
            in its folder; {"rows": table, "column": "body", "group": "news"} says more of them.
        protocols: protocols to compute, of those that the study declares; "both" is short for all.
        precision: "fast" measures maps in float32 where that holds the accuracy that each metric states, and
            counts in the provenance the maps where it does not. Numbers of a published protocol are those of
            its authors' code under both.
        layers: only these layers; empty takes all.
        max_tokens: longer sentences are cut to so many tokens; None: the model's context.
        bos: "keep" what the tokenizer does, "drop" the beginning-of-sequence token, or "replace" it by an
            ordinary token drawn with the seed.
        options: the study's own settings; a key beside these that only the study's options have goes there.
        block: sentences per unit of work; a killed run loses at most one unit.
        max_memory: bound for the attention alive at a time, such as "4GB"; None: batches as with "512MB".
        max_disk: bound for the sums that the units leave on disk, such as "100GB"; None: no bound.
        seed: random seed for sampling, null models and replacements.
        output: the folder that run folders are made in.
        workers: cluster workers: how many, and CPUs and GPUs for each.

    Raises:
        ConfigError: an unknown key (the nearest right name is given), a value of the wrong type, an option
            or a protocol that the study does not have.

    >>> study = RunConfig(models="gpt2", texts={"path": "sentences.txt", "samples": 10}, block=8)
    >>> study.models[0].path, study.texts[0].samples, study.protocols
    ('gpt2', 10, ['exact'])
    """

    study: str = Field(default_factory=default_study, min_length=1)
    name: Annotated[str, AfterValidator(check_file_name)] = ""
    models: Models
    texts: Texts = []
    protocols: Annotated[Names, Field(min_length=1)] = ["exact"]
    precision: Precision = "exact"
    layers: list[Annotated[int, Field(ge=0)]] = []
    max_tokens: int | None = Field(default=None, ge=1)
    bos: Literal["keep", "drop", "replace"] = "keep"
    options: dict[str, Any] = {}
    block: int = Field(default=16, ge=1)
    max_memory: Bytes | None = None
    max_disk: Bytes | None = None
    seed: int = Field(default=0, ge=0)
    output: Place = "runs"
    workers: Workers = Workers()

    def __init__(self, **values: Any) -> None:
        if fault := _fault_in(values):
            raise ConfigError(fault)
        name = values.get("study", "")
        if not isinstance(name, str):  # whose options are not known, and read like unknown keys
            raise ConfigError(f"study: expected the name of a study, got {name!r:.200}")
        study = load_study(name or default_study())
        if not hasattr(study, "resolve_options"):  # without a study that could be run, the rest is checked
            study = None
        values = study.resolve_options(values, type(self).model_fields) if study else values
        try:
            super().__init__(**values)
        except ValidationError as error:
            option_keys = study.Options.model_fields if study else ()
            faults = explain(error, type(self), extra_keys=option_keys)
            if name and find_study(name) is None:
                faults = unknown_study(name)
            raise ConfigError(faults) from None

    @field_validator("precision")
    @classmethod
    def _precision(cls, value: Precision, info: ValidationInfo) -> Precision:
        protocols = info.data.get("protocols", ["exact"])
        if value == "fast" and "exact" not in protocols:
            raise ValueError(
                f"fast is of the protocol exact, and {', '.join(protocols)} computes what its authors' code "
                "does; add exact to protocols, or take precision: exact"
            )
        return value

    @field_validator("study")
    @classmethod
    def _study(cls, value: str) -> str:
        study_folder = find_study(value)
        return study_folder.name if study_folder else value

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration, defaults included, as plain data."""
        return self.model_dump(mode="json")

    def __repr__(self) -> str:
        """Return the configuration as YAML, the texts in memory as their number."""
        values = self.to_dict()
        for source in values["texts"]:
            if "rows" in source:
                source["rows"] = f"{len(source['rows'])} texts in memory"
        return dump_yaml(values, width=100).rstrip()

    __str__ = __repr__

    def to_yaml(self) -> str:
        """Return the configuration as YAML that `Settings.from_yaml` and `attnscope run` read."""
        return dump_yaml(self.to_dict(), width=100)

    @classmethod
    def from_yaml(cls, source: str | Path, *, overrides: Sequence[str] = (), **values: Any) -> RunConfig:
        """Read a YAML file or a packaged study.

        Args:
            source: a file, or the name of a packaged study, with `:ANALYSIS` behind it to take the sentences,
                the token cap and the metrics of one of the paper's analyses.
            overrides: `key=value` texts as `attnscope run --set` takes them, applied last.
            values: keys that replace those of the file.

        Raises:
            ConfigError: no such file or name, not YAML, or the study cannot be understood.
        """
        name, analysis = split_analysis(source)
        data = {**read_config(name), **values}
        for key, value in (analyses()[analysis] if analysis else {}).items():
            assign(data, key, value)
        for override in overrides:
            set_key(data, override)
        try:
            settings = cls(**data)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
        except TypeError as error:
            raise ConfigError(f"{source}: keys must be names, got {list(data)}") from error
        if find_study(settings.study) is None:
            raise ConfigError(f"{source}: {unknown_study(settings.study)}")
        return settings


def _fault_in(value: Any, where: str = "") -> str:
    """Return where a text inside settings is nothing that a file system or a table can hold, and why."""
    if isinstance(value, str):
        fault = path_fault(value)
        return f"{where} {fault}" if fault else ""
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, str) and (fault := path_fault(key, "strict")):
                return f"{where} has a key that {fault}".lstrip()
        shown = ((part, show_name(key)) for key, part in value.items())
        parts = [(part, f"{where}.{key}" if where else key) for part, key in shown]
    elif isinstance(value, (list, tuple)):
        parts = [(part, f"{where}[{place}]") for place, part in enumerate(value)]
    else:
        return ""
    return next(filter(None, (_fault_in(part, inside) for part, inside in parts)), "")


def refuse_stored_trust(settings: RunConfig, function: str) -> None:
    """Raise ConfigError if settings that were read from a run folder let a model's own Python code run.

    The author of the folder has agreed to that, but its reader may not have.
    """
    for source in settings.models:
        if source.trust_remote_code:
            raise ConfigError(
                f"{function}: the stored study runs Python code that comes with the model {source.path!r} "
                "(trust_remote_code: true), and a stored setting is no consent; if you trust that code, pass "
                "--trust-remote-code (in Python trust_remote_code=True)"
            )


def explain(
    error: ValidationError, model: type[BaseModel], key: str = "", extra_keys: Iterable[str] = ()
) -> str:
    """Return one line per mistake: where it is, what was expected, what was given."""
    lines = []
    for item in error.errors(include_url=False):
        where = key
        for part in item["loc"]:
            where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else str(part)
        if item["type"] == "extra_forbidden":
            *parents, last = item["loc"]
            owner = model
            for part in parents:
                if part in owner.model_fields:
                    owner = models_in(owner.model_fields[part].annotation)[0]
            known_keys = [*owner.model_fields, *(() if parents else extra_keys)]
            inside = f" in {where.rpartition('.')[0]}" if parents or key else ""
            hint = (
                nearest(str(last), known_keys)
                if parents
                else _home_of(model, last) or nearest(str(last), known_keys)
            )
            lines.append(f"unknown key {str(last)!r}{inside}{hint}")
        elif item["type"] == "missing":
            option = " (--model on the command line)" if where == "models" else ""
            lines.append(f"{where} is missing{option}")
        else:
            message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            received = "" if "got " in message else f", got {item['input']!r:.200}"
            lines.append(f"{where}: {message[0].lower()}{message[1:]}{received}")
    return "; ".join(dict.fromkeys(lines))


def _home_of(model: type[BaseModel], key: Any) -> str:
    """Return the words that name the setting whose entries have a key; "" where none has."""
    for name, field in model.model_fields.items():
        if any(key in inner.model_fields for inner in models_in(field.annotation)):
            return f"; it is a key of {name}, as in {name}={{'path': ..., {key!r}: ...}}"
    return ""


def models_in(kind: Any) -> list[type[BaseModel]]:
    """Return the pydantic models that a value of this type can be or contain."""
    inside = typing.get_args(kind)
    if not inside:
        return [kind] if isinstance(kind, type) and issubclass(kind, BaseModel) else []
    return [model for argument in inside for model in models_in(argument)]
