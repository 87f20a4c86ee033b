# SPDX-License-Identifier: MIT
"""Signals that stop a run: noted, raised, and held down."""

import signal

import pytest

from attnscope.cli import errors
from attnscope.engine import stop
from attnscope.errors import Interrupted


def test_the_second_signal_interrupts_and_those_after_it_spare_what_it_closes(monkeypatch):
    messages = []
    times = iter([0.0, 0.5, 0.9, 1.0])
    monkeypatch.setattr(errors.time, "monotonic", lambda: next(times))
    before = signal.getsignal(signal.SIGINT)
    with errors.spaced_interrupts():
        with stop.stop_signals(messages.append) as received:
            signal.raise_signal(signal.SIGINT)
            assert received == [signal.SIGINT]
            assert len(messages) == 1
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):  # a second later, outside the run too
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_without_a_command_the_second_signal_does_what_ctrl_c_did():
    with stop.stop_signals(lambda text: None):
        signal.raise_signal(signal.SIGINT)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)


def test_nothing_interrupts_the_last_words_of_a_run_that_was_stopped():
    """A run that ends between two units has interrupted nothing yet, so that the next Ctrl-C would."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with pytest.raises(Interrupted), errors.spaced_interrupts():
            raise Interrupted(signal.SIGINT, "runs/a")
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
