# SPDX-License-Identifier: MIT
"""Folders as a study reads them, with tiny random weights, a tokenizer and texts; small runs; processes.

`Launcher` starts processes quickly: one process imports what takes seconds and forks for each command or
script. The tests that kill runs need dozens with everything imported; others one without attnscope.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from models import VOCABULARY, tiny

WORDS = [
    *("the", "cat", "sat", "on", "a", "mat", "while", "rain", "fell", "over", "old", "town", "and", "nobody"),
    *("saw", "how", "it", "went", "home", "again", "before", "night", "came", "down", "with", "wind", "from"),
    *("sea", "then", "all", "was", "still"),
]
#: Of the small runs of the sink study.
THRESHOLDS = [0.05, "2/n"]


def tokenizer(bos=True):
    """Words to ids, `[UNK]` for the others; BOS in front when asked for."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "[UNK]": 3}
    vocabulary |= {word: 4 + at for at, word in enumerate(dict.fromkeys(WORDS))}
    word_tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    word_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if bos:
        word_tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    special = {"bos_token": "<s>", "eos_token": "</s>"} if bos else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer, pad_token="<pad>", unk_token="[UNK]", model_max_length=64, **special
    )


def model_folder(path, name="llama", *, seed=0, bos=True, **changes):
    """Saves a tiny model and its tokenizer; returns the folder."""
    path = Path(path)
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2} if name == "llama" else {}
    tiny(name, seed=seed, **{**small, **changes}).save_pretrained(path)
    tokenizer(bos).save_pretrained(path)
    return path


def series(path, steps=(0, 2, 10), **options):
    """Folders `stepN`, each with other weights."""
    for step in steps:
        model_folder(Path(path) / f"step{step}", seed=step, **options)
    return Path(path)


def sentences(path, count=10, shortest=3):
    """A text file of sentences of growing length; returns the file."""
    lines = [" ".join(WORDS[(at + k) % len(WORDS)] for k in range(shortest + at)) for at in range(count)]
    Path(path).write_text("\n".join(lines) + "\n", "utf-8")
    return Path(path)


def id_lines(path, rows):
    """A JSONL file of token ids; returns the file."""
    assert all(0 <= token < VOCABULARY for row in rows for token in row)
    Path(path).write_text(
        "".join(json.dumps({"token_ids": row, "kind": "made"}) + "\n" for row in rows), "utf-8"
    )
    return Path(path)


def study(tmp_path, model, texts, **options):
    """Settings of the small runs that tests of the engine do."""
    from attnscope.config.run_config import RunConfig

    metrics = ["fiedler_value", "laplacian_gap", "graph_statistics"]
    options = {"metrics": metrics, "thresholds": [0.05, "2/n"], "block": 3, **options}
    return RunConfig(models=model, texts=texts, output=str(tmp_path / "runs"), name="a", **options)


def sink_study(output, model, texts, **options):
    """Settings of a small run of the sink study, under both protocols."""
    from attnscope.config.run_config import RunConfig

    options = {"thresholds": THRESHOLDS, "block": 4, "protocols": "both", **options}
    return RunConfig(models=str(model), texts=str(texts), output=str(output), name="a", **options)


def with_means(results, table="heads"):
    """The rows of single heads, and behind them those of each layer's head mean as head −1."""
    import pandas as pd

    means = "head_means" if table == "heads" else f"head_mean_{table}"
    return pd.concat([results.table(means).assign(head=-1), results.table(table)], ignore_index=True)


def killed(study, least=3):
    """The folder of a run in a process of one thread that was killed when so many units were stored."""
    code = (
        "import attnscope as asc, torch\ntorch.set_num_threads(1)\n"
        f"asc.run(asc.Study(**{study.to_dict()!r}), progress=False)\n"
    )
    folder = Path(study.output) / study.name
    units = folder / "units"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as process:
        for _ in range(2400):
            done = (
                [path for path in units.iterdir() if not path.name.startswith(".")] if units.is_dir() else []
            )
            if len(done) >= least:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    return folder


def table_bytes(folder):
    """The bytes of every table of a run."""
    return {path.name: path.read_bytes() for path in sorted((Path(folder) / "tables").iterdir())}


def sums_on_disk(results):
    """Bytes of sums over units that a run's study expects, and those that its units hold."""
    import pyarrow.parquet as pq

    from attnscope.config.run_config import RunConfig
    from attnscope.engine.planning import make_plan
    from attnscope.study_api.study import study_class

    settings = RunConfig(**results.study)
    plan, study = make_plan(settings), study_class(settings.study)(settings)
    files = results.path.glob("units/*/reduced-*.parquet")
    stored = sum(8 * len(pq.read_table(file)["sum"].combine_chunks().values) for file in files)
    return sum(study.stored_bytes(unit, plan) for unit in plan.units), stored


#: What a run of the sink study needs.
ALL_OPTIONS = """
import pandas, pyarrow.parquet, transformers
pyarrow.set_cpu_count(1), pyarrow.set_io_thread_count(1)
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
import attnscope.cli.application, attnscope.cli.dry_run, attnscope.engine.engine
import attnscope.studies.attention_sinks.study
"""

SERVER = """
import json, os, resource, signal, sys, traceback
import torch
torch.set_num_threads(1)            # no pool of threads exists, so that a fork is sound
IMPORTS
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    order = json.loads(line)
    if "wait" in order:
        pid, status = os.waitpid(order["wait"], 0 if order["block"] else os.WNOHANG)
        print(json.dumps(None if pid == 0 else os.waitstatus_to_exitcode(status)), flush=True)
        continue
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stream, log in ((1, order["log"]), (2, order["errors"])):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if order["file_size"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_size"], order["file_size"]))
        os.environ.update(order["environment"])
        code = 1
        try:
            if order["script"] is None:
                import attnscope.cli.application
                attnscope.cli.application.main(order["arguments"])
            else:
                sys.argv[1:] = order["arguments"]
                exec(order["script"], {"__name__": "__main__"})
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    print(json.dumps(child), flush=True)
"""


class Process:
    """One forked command."""

    def __init__(self, launcher, pid, log):
        self.launcher, self.pid, self.log = launcher, pid, Path(log)
        self.code = None

    def poll(self):
        """The exit code, None while it runs; −9 after SIGKILL."""
        if self.code is None:
            self.code = self.launcher.ask(wait=self.pid, block=False)
        return self.code

    def wait(self):
        """Waits for the end; returns the exit code."""
        if self.code is None:
            self.code = self.launcher.ask(wait=self.pid, block=True)
        return self.code

    def send(self, number):
        """Sends a signal if the process still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    @property
    def output(self):
        """What it wrote to both streams."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""


class Launcher:
    """The process that forks; use as a context manager."""

    def __init__(self, folder, imports=ALL_OPTIONS):
        self.folder = Path(folder)
        self.imports = imports
        self.count = 0

    def __enter__(self):
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        server = SERVER.replace("IMPORTS", self.imports)
        self.server = subprocess.Popen(
            [sys.executable, "-c", server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        assert json.loads(self.server.stdout.readline()) == "ready"
        return self

    def __exit__(self, *_):
        self.server.stdin.close()
        self.server.wait(120)

    def ask(self, **order):
        """One order, one answer."""
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())

    def start(self, *arguments, file_size=0, script=None, errors=None, environment=None):
        """Starts `attnscope ARGUMENTS`, or Python's `-c SCRIPT ARGUMENTS`."""
        self.count += 1
        log = self.folder / f"{self.count:03d}.log"
        pid = self.ask(
            arguments=[str(argument) for argument in arguments],
            script=script,
            log=str(log),
            errors=str(errors or log),
            environment=environment or {},
            file_size=file_size,
        )
        return Process(self, pid, log)

    def run(self, *arguments, **options):
        """Starts and waits; returns the process."""
        process = self.start(*arguments, **options)
        process.wait()
        return process

    def script(self, script, *arguments, **environment):
        """What a script ended with and wrote to each stream; keywords are variables of its environment."""
        errors = self.folder / f"{self.count + 1:03d}.errors"
        process = self.start(*arguments, script=script, errors=errors, environment=environment)
        code = process.wait()
        return subprocess.CompletedProcess(script, code, process.output, errors.read_text("utf-8"))


def until(condition, seconds=60.0):
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)
