# SPDX-License-Identifier: MIT
"""How large the project is, by folder: `python tests/census.py [COMMIT]`, else of the working tree.

Counted are lines of all text files of the package and the core: every line, and those that hold code, which
is neither blank nor comment nor docstring. Files of abilities that not every commit has, `NEW`, are counted
apart, so that sizes of the same abilities can be compared between commits: `--since COMMIT` also counts what
stands elsewhere in functions and classes whose names that commit has nowhere.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Where lines are counted.
COUNTED = ("python/attnscope", "cpp")

#: Files of the package and the core whose whole ability is new, by what they are for.
NEW = {
    "clouds of points": "*/clouds/* cpp/matrix/row_distances* */ruscio2026/*",
    "positions": "*/positions/* */capture/positions.py cpp/linalg/mask_only* */ruscio2025once/*",
    "weights": "*/weights/* */models/weight*.py */models/families.py */models/architecture.py"
    " cpp/linalg/score_rows*",
    "prediction heads": "*/models/head*.py */models/readout.py",
    "likelihood of words": "*/capture/likelihood/* */ruscio2023/* *span_attention* cpp/simd/exponential.h"
    " */engine/texts/wordnet.py */models/tokens.py",
    "directions and gradients": "*/capture/directions/* */capture/gradient.py",
    "edits and sites": "*/capture/edits/* */capture/editing.py */capture/outputs.py"
    " */capture/sites.py */capture/visibility.py */capture/forward.py",
    "tests of sinks": "*sink_test* */attention_sinks/sink_heads.py */attention_sinks/matched_keys.py",
    "statistics": "*/inference/controls.py */inference/groups.py */inference/leakage.py"
    " */inference/residuals.py */inference/sink_heads.py */inference/detection.py"
    " */inference/exchange.py */inference/partial.py */inference/mean_intervals.py",
    "stages, sweeps and claims": "*/engine/executors/* */study_api/claims.py */config/study_folders.py"
    " */study_api/reductions.py */study_api/units.py */engine/migration.py */engine/texts/windows.py",
    "trained models": "*/demo/tuning.py */demo/encoder.py */demo/encodings.py */demo/objectives.py",
    "studies": "*/studies/absolute_position/* */studies/attention_likelihood/*"
    " */studies/hallucination_geometry/* */studies/pretraining_writes/* */studies/checks.py",
    "masks and learned sinks": "*/studies/supports.py */_learned_sink.py",
    "any version of torch": "cpp/bindings/dlpack.h cpp/bindings/exchange.* cpp/bindings/threads.*"
    " cpp/bindings/torch_symbols.*",
    "help": "*/models/hub.py */texts/sample.csv",
    "pages": "*/plots/adapted.py */plots/latex.py */view/captured.py */commands/settings.py */_row_sums.py"
    " */_progress.py */_tokens.py",
}
#: Files beside the package and the core that are there for those.
NEW_BESIDE = (
    "*/attention_likelihood* *likelihood* *position* *hallucination* *knowing* *weight* *cloud* "
    "*fragmentation* *local_dimension* *delta_statistics* *toeplitz* *span_attention* *sink_test* "
    "*test_edits* *gradient* *sensitivity* *second_moments* *test_forward.py *visibility* "
    "*test_ablation.py *test_first_token.py *exchange* *partial* *detection* *groups* *leakage* "
    "*mean_intervals* *sink_heads* *emergence* *controls* */clouds/* */weights/* */executors/* "
    "*sweep* */sleeping/* tests/studies/* *ruscio2023* *ruscio2026* *ruscio2025once* *demo_encoder* "
    "*demo_tuning* *replacements* *word_spans* *row_logits* *test_head.py *moments* "
    "*subspace* *boundary* *rope_bands* *null_clouds* *matched_keys* *sinks_of_heads* "
    "*wordnet* *windows* *reductions* *settings* *latex* *test_quantity.py *test_plans.py "
    "*test_discovery.py *test_identities.py .github/* *test_interchange.py "
    "*test_learned_sink.py *test_null_law.py *test_progress.py *test_doctor.py "
    "*test_view_models.py *test_degenerate* */degenerate_runs.py *capture_scores* .ci/isas .ci/beside "
    "*/docs/screenshot.py */docs/worked.py */docs/images/view.png */docs/pages/install.md "
)


def is_new(path: str) -> bool:
    """Whether the whole ability of a file is new."""
    counted = path.startswith(COUNTED)
    patterns = " ".join(NEW.values()).split() if counted else NEW_BESIDE.split()
    return any(fnmatch(path, pattern) for pattern in patterns)


def texts(commit: str = "") -> dict[str, str | None]:
    """Every file that git tracks by path, with its text; None for what is no text."""
    if commit:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            found = {one.name: file.read() for one in tar if (file := tar.extractfile(one)) is not None}
    else:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        names = [name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]
        found = {name: (ROOT / name).read_bytes() for name in names}
    return {name: _text(data) for name, data in found.items()}


def _text(data: bytes) -> str | None:
    try:
        return None if b"\0" in data[:1000] else data.decode()
    except UnicodeDecodeError:
        return None


def code_lines(path: str, text: str) -> int:
    """Lines that are neither blank nor comment nor docstring.

    >>> code_lines("a.py", '# why\\n\\ndef f():\\n    "what"\\n    return 1  # one\\n')
    2
    """
    if not path.endswith((".py", ".pyi")):
        comment = "//" if path.endswith((".h", ".cpp", ".js")) else "#"
        return sum(bool(line.strip()) and not line.strip().startswith(comment) for line in text.splitlines())
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.string.strip() and token.type != tokenize.COMMENT:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and ast.get_docstring(node) is not None
        ):
            held -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(held)


def folder_of(path: str) -> str:
    """`cpp/kernels/graphs/fiedler.h` counts for `cpp/kernels`."""
    parts = path.split("/")
    depth = len(COUNTED[0].split("/")) + 1 if path.startswith(COUNTED[0]) else 2
    return "/".join(parts[: min(depth, len(parts) - 1)])


def sizes(files: dict[str, str | None]) -> dict[str, Counter[str]]:
    """Lines, code and files of the package and the core by folder, those of new abilities apart."""
    found: dict[str, Counter[str]] = {}
    for path, text in sorted(files.items()):
        if text is not None and path.startswith(COUNTED):
            kind = "new " if is_new(path) else ""
            more = {"files": 1, "lines": text.count("\n"), "code": code_lines(path, text)}
            found.setdefault(folder_of(path), Counter()).update({kind + name: n for name, n in more.items()})
    return found


def definitions(files: dict[str, str | None]) -> Iterator[tuple[str, int]]:
    """Functions, methods and classes in files of no new ability, with their own lines."""
    for path, text in files.items():
        if text is None or is_new(path) or not (path.startswith(COUNTED) and path.endswith(".py")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                inside = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                parts = sum((one.end_lineno or 0) - one.lineno + 1 for one in inside)
                yield node.name, (node.end_lineno or 0) - node.lineno + 1 - parts


def main(commit: str, since: str) -> None:
    files = texts(commit)
    columns = ("files", "lines", "code", "new files", "new lines", "new code")
    print("".join(f"{name:>11}" for name in columns))
    total: Counter[str] = Counter()
    for folder, counts in sizes(files).items():
        total.update(counts)
        print("".join(f"{counts[name]:>11,}" for name in columns), folder)
    print("".join(f"{total[name]:>11,}" for name in columns), "package and core")
    if since:
        known = {name for name, _ in definitions(texts(since))}
        lines = sum(count for name, count in definitions(files) if name not in known)
        print(f"{lines:,} lines beside new files in definitions that {since} has not")
    new = sum(map(is_new, files))
    print(f"{len(files) - new:,} files of the repository, and {new:,} of new abilities")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", nargs="?", default="")
    parser.add_argument("--since", default="")
    main(**vars(parser.parse_args()))
