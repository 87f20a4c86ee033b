# SPDX-License-Identifier: MIT
"""Upper bounds for everything that is read from files of unknown origin.

A file that exceeds a bound is refused in one line, before it costs memory or time. Each bound is far above
what a study needs, and none of them changes a number of a run.
"""

from __future__ import annotations

#: Characters of a name that a user gives: a run, a model's label, a group of texts, a table.
MAX_NAME_CHARACTERS = 200
#: Bytes of the name of a file or folder, as file systems allow them.
MAX_FILE_NAME_BYTES = 255

#: Bytes of a YAML file, such as study.yaml.
MAX_YAML_BYTES = 1024**2
#: Nodes of a YAML document after its aliases are expanded.
MAX_YAML_NODES = 200_000
#: Levels of nesting of a YAML document.
MAX_YAML_DEPTH = 50

#: Bytes of a JSON file, such as provenance.json, unit.json, config.json, adapter_config.json.
MAX_JSON_BYTES = 64 * 1024**2
#: Levels of nesting of a JSON document.
MAX_JSON_DEPTH = 50

#: Bytes of the JSON header of a safetensors file, as the format itself bounds it.
MAX_SAFETENSORS_HEADER_BYTES = 100_000_000
#: Characters of a regular expression in a model's configuration.
MAX_PATTERN_CHARACTERS = 200

#: Columns, and row groups, of a Parquet file that is opened; a hundred thousand take half a gigabyte.
MAX_PARQUET_COLUMNS = 100_000
#: Texts that a source may hold after its filters, when all of them are taken or searched.
MAX_TEXTS = 5_000_000
#: Characters of a row of a text file: a line, a record of CSV, a JSON object.
MAX_ROW_CHARACTERS = 64 * 1024**2
