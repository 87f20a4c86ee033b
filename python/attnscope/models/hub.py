# SPDX-License-Identifier: MIT
"""A test within seconds that the model hub can be reached, without every retry of its client."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from urllib.parse import urlsplit

#: Seconds that the hub has to answer in.
PATIENCE = 4.0
#: Seconds for which a silent hub is not asked again.
_FORGET = 60.0

_silent_since: float | None = None


def hub_answers() -> bool:
    """Return True if the hub takes a connection, or if a proxy is set, which the hub's client uses."""
    global _silent_since
    from huggingface_hub import constants

    if urllib.request.getproxies() or constants.HF_HUB_OFFLINE:
        return not constants.HF_HUB_OFFLINE
    if _silent_since is not None and time.monotonic() - _silent_since < _FORGET:
        return False
    answers = _connects(constants.ENDPOINT)
    _silent_since = None if answers else time.monotonic()
    return answers


def _connects(endpoint: str) -> bool:
    """Return True if the address accepts a connection. (DNS lookup has no timeout.)"""
    parts = urlsplit(endpoint)
    answers: list[bool] = []

    def ask() -> None:
        port = parts.port or (80 if parts.scheme == "http" else 443)
        try:
            socket.create_connection((parts.hostname or "", port), timeout=PATIENCE).close()
            answers.append(True)
        except OSError:
            pass

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return bool(answers)
