# SPDX-License-Identifier: MIT
"""Signals that stop a run: noted, raised, and held down."""

import signal

import pytest

from attnscope.cli import errors
from attnscope.engine import stop


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
