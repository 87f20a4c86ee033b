# SPDX-License-Identifier: MIT
"""Builders, one thread, processes to fork from, the time of slow tests, the order of files."""

import gc
import importlib
import os
import signal
import sys
from pathlib import Path

import pyarrow
import pytest
from hypothesis import settings

# A shell starts what it runs in the background with SIGINT ignored, and tests interrupt themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Imports and collection make a million objects that stay.
gc.disable()
sys.path.insert(0, str(Path(__file__).parent))

#: Seconds after which a slow test hangs, where it says none itself: on a busy machine some take minutes.
SLOW = 3600
#: Folders of the longest files: they begin, so that none of them is what all other workers wait for.
FIRST = (
    "integration/",
    "python/studies/",
    "python/drawing/",
    "python/package/",
    "python/attention_likelihood/",
)
#: Files that share what takes long to make go to one worker: beginnings of their paths.
TOGETHER = (
    ("tests/integration/test_resume.py", "tests/integration/test_study.py"),
    ("tests/python/studies/test_sink_study.py", "tests/python/studies/test_sink_summaries.py"),
    ("tests/python/studies/absolute_position/",),
    ("tests/python/executors/",),
    # the process that `fresh` forks from
    (
        "tests/python/package/test_architecture.py",
        "tests/python/package/test_cli.py",
        "tests/python/package/test_interchange.py",
        "tests/python/package/test_isa.py",
        "tests/python/measuring/test_allocation.py",
        "tests/python/measuring/test_checks.py",
        "tests/python/capture/test_capture_refusals.py",
        "tests/python/models/test_weight_deltas.py",
    ),
)

# How long an example takes says how busy the machine is.
settings.register_profile("any time", deadline=None)
settings.load_profile("any time")
# Nothing here has to outlast a loss of power, and a run waits for the disk a hundred times.
os.fsync = lambda handle: None
# Arrow's own threads would take turns with the worker that waits for them.
pyarrow.set_cpu_count(1)
pyarrow.set_io_thread_count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--implementation",
        choices=("core", "torch"),
        default="core",
        help="what measures CPU tensors: the compiled kernels, or the torch operations of attnscope.devices",
    )


@pytest.fixture(autouse=True)
def implementation(request: pytest.FixtureRequest):
    """Measure CPU tensors by the implementation that the command line names."""
    name = request.config.getoption("--implementation")
    if name == "core":
        yield
        return
    import attnscope

    with attnscope.devices.use(name):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW))
    items.sort(key=lambda item: [folder in item.nodeid for folder in FIRST], reverse=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """Fewer models of transformers 4 call their attention where lazy captures see it; they are refused."""
    try:
        return (yield)
    except RuntimeError as error:
        import transformers

        is_refused = "did not call its attention through transformers' interface" in str(error)
        if not is_refused or int(transformers.__version__.partition(".")[0]) >= 5:
            raise
        pytest.skip(f"transformers {transformers.__version__}: {error}")


def pytest_collection_finish(session):
    """Imported libraries hold a million objects: garbage is looked for among newer ones, and not often."""
    gc.freeze()
    # to count them takes as long as a small run, and every run asks whether there are any
    count = gc.get_freeze_count()
    gc.get_freeze_count = lambda: count
    gc.set_threshold(100_000, 50, 100)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class InOrder(LoadFileScheduling):
        """A file, or some that share, for a worker at a time, in the order of collection."""

        def _split_scope(self, nodeid: str) -> str:
            shared = (group[0] for group in TOGETHER if nodeid.startswith(group))
            return next(shared, super()._split_scope(nodeid))

    if config.option.dist != "loadfile":
        return None
    config.option.loadscopereorder = False
    return InOrder(config, log)


@pytest.fixture(scope="session", autouse=True)
def session_of_one_thread():
    """Fixtures of a whole session are made before those of a file, with one thread too."""
    _use_one_thread()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """A file begins with one thread: the last bits of a forward pass may depend on how many there are."""
    _use_one_thread()


def _use_one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def unarranged():
    """Figures whose panels are not arranged, which takes half of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnscope.plots.figure.freeze_layout", lambda figure: figure.set_layout_engine("none"))
        yield


@pytest.fixture(scope="module")
def unpictured():
    """Reports without the pictures of their figures, which take longer than all the rest."""
    page = importlib.import_module("attnscope.report.page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_data_uri", lambda figure: "data:image/svg+xml;base64,")
        yield


@pytest.fixture(scope="session")
def launcher(tmp_path_factory):
    """Forks commands from a process that has imported everything."""
    from folders import Launcher

    with Launcher(tmp_path_factory.mktemp("logs")) as launcher:
        yield launcher


@pytest.fixture(scope="session")
def fresh(tmp_path_factory):
    """Runs scripts in a process that has imported torch, and nothing of attnscope."""
    from folders import Launcher

    with Launcher(tmp_path_factory.mktemp("logs"), imports="") as launcher:
        yield launcher.script


@pytest.fixture
def call(capsys):
    """The command line, as somebody calls it: its exit status, what it prints, what it complains of."""
    from attnscope.cli import application

    def build_model(*arguments):
        with pytest.raises(SystemExit) as end:
            application.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return build_model
