# SPDX-License-Identifier: MIT
"""Starts processes quickly: one process imports what takes seconds and forks for each command or script.

The tests that kill runs need dozens of processes with everything imported; others need one in which nothing
of attnscope is loaded.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

#: What a run of the sink study needs.
EVERYTHING = """
import pandas, pyarrow.parquet, transformers
pyarrow.set_cpu_count(1), pyarrow.set_io_thread_count(1)
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
import attnscope.commands.cli, attnscope.commands.dry_run, attnscope.engine.run
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
                import attnscope.commands.cli
                attnscope.commands.cli.main(order["arguments"])
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

    def __init__(self, folder, imports=EVERYTHING):
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
            arguments=[str(one) for one in arguments], script=script, log=str(log), errors=str(errors or log),
            environment=environment or {}, file_size=file_size,
        )  # fmt: skip
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


KILL = signal.SIGKILL
