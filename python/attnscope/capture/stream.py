# SPDX-License-Identifier: MIT
"""A forward pass in a thread of its own, one layer at a time: computed while the last one is being measured.

The worker hands a layer over and goes on as soon as the one before it is gone, so that at any time at most
two layers are alive: the one the consumer holds and the one that is being computed or waits to be taken. A
consumer that keeps its layers gets each next one when it asks for it. The worker ends before the
generator does in every case: at the end of the pass, when the consumer leaves the loop, when either raises.
"""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from attnscope.capture.implementation import belong_to, run_owner
from attnscope.capture.layer import End, Layer
from attnscope.capture.recorder import LIVE, Recorder

# The layer that this thread got last, of any pass.
_LAST: contextvars.ContextVar[weakref.ref[End] | None] = contextvars.ContextVar(
    "attnscope_last", default=None
)


class Abandoned(BaseException):
    """Raised in the worker when nobody waits for its layers; no Exception, so that no model swallows it."""


def autocast_dtypes() -> dict[str, torch.dtype]:
    """Return the dtypes that this thread's passes are cast to, by the kind of device."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return {kind: torch.get_autocast_dtype(kind) for kind in kinds}


class Stream:
    """The hand-over between one worker and one consumer."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._slot: Layer | None = None
        # Of the layer that the consumer got last; at first that of the pass before, which the variable of its
        # loop still holds.
        self._taken: weakref.ref[End] | None = None
        if (last := _LAST.get()) is not None and (end := last()) is not None:
            self._taken = weakref.ref(end, self._wake)
        self._asked = False
        self._ended = False
        self._abandoned = False
        self._error: BaseException | None = None

    def raise_if_abandoned(self) -> None:
        """Stop the worker between layers when nobody is waiting any more."""
        if self._abandoned:
            raise Abandoned

    def emit(self, layer: Layer) -> None:
        """Wait in the worker until the layer is taken and the layer before it is released.

        A `for` loop drops its layer only after it has got the next one, so being taken is not enough.
        """
        with self._turn:
            before = self._taken
            self._slot = layer
            del layer
            self._turn.notify_all()
            self._turn.wait_for(
                lambda: (
                    self._abandoned
                    or (self._slot is None and (self._asked or before is None or before() is None))
                )
            )
        self.raise_if_abandoned()

    def _wake(self, _reference: object) -> None:
        with self._turn:  # a condition's lock may be taken again by the thread that holds it
            self._turn.notify_all()

    def _work(self, forward: Callable[[], None]) -> None:
        try:
            forward()
        except Abandoned:
            pass
        except BaseException as raised:  # noqa: BLE001  (raised again in the consumer's thread)
            self._error = raised
        with self._turn:
            self._ended = True
            self._turn.notify_all()

    def _take(self) -> Layer | None:
        with self._turn:
            if self._slot is None:
                self._asked = True
                self._turn.notify_all()
                self._turn.wait_for(lambda: self._slot is not None or self._ended)
            self._asked = False
            if self._slot is None:
                if isinstance(self._error, StopIteration):  # would pass for the end of the stream
                    raise RuntimeError("capture: the model raised StopIteration") from self._error
                if self._error is not None:
                    raise self._error
                return None
            layer, self._slot = self._slot, None
            self._taken = weakref.ref(layer.end, self._wake)
            _LAST.set(weakref.ref(layer.end))
            self._turn.notify_all()
            return layer

    def layers(
        self,
        recorder: Recorder,
        around: Callable[[], AbstractContextManager[Any]],
        forward: Callable[[], None],
    ) -> Generator[Layer, None, None]:
        """Run ``forward`` in a worker, inside ``around()``, and yield the layers that the recorder emits."""
        recorder.raise_if_abandoned = self.raise_if_abandoned
        # This thread's settings, which torch keeps per thread.
        autocast = autocast_dtypes()
        owner = run_owner()
        cuda = torch.cuda.current_stream() if torch.cuda.is_available() else None

        def work() -> None:
            LIVE.set(recorder)
            belong_to(owner)
            with ExitStack() as stack:
                for kind, dtype in autocast.items():
                    stack.enter_context(torch.autocast(kind, dtype=dtype))
                if cuda is not None:
                    stack.enter_context(torch.cuda.device(cuda.device))
                    stack.enter_context(torch.cuda.stream(cuda))
                with torch.no_grad(), around(), recorder.listening():
                    forward()

        context = contextvars.copy_context()
        worker = threading.Thread(
            target=context.run, args=(self._work, work), name="attnscope-capture", daemon=True
        )
        worker.start()
        try:
            # No name may hold the layer here: the consumer's own is the only one.
            yield from iter(self._take, None)
        finally:
            self._dismiss(worker)

    def _dismiss(self, worker: threading.Thread) -> None:
        interrupt: KeyboardInterrupt | None = None
        while worker.is_alive():
            try:
                with self._turn:
                    self._abandoned = True
                    self._slot = None
                    self._turn.notify_all()
                worker.join()
            except KeyboardInterrupt as pressed:  # the model must be whole again before it goes on
                interrupt = pressed
        self._error = None
        if interrupt is not None:
            raise interrupt
