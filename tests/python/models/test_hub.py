# SPDX-License-Identifier: MIT
"""An unreachable hub is known within seconds."""

import socket
import threading
import time

import pytest

from attnscope.models import LoadError, find_checkpoints, hub, load_model


def test_a_listening_address_answers_and_a_closed_one_does_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert hub._connects(f"http://127.0.0.1:{port}")
    assert not hub._connects(f"http://127.0.0.1:{port}")


def test_a_name_that_never_resolves_costs_no_more_than_the_patience(monkeypatch):
    never = threading.Event()

    def waits(*at, **options):
        never.wait(20)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", waits)
    monkeypatch.setattr(hub, "PATIENCE", 0.2)
    begun = time.monotonic()
    assert not hub._connects("https://nowhere.invalid")
    assert time.monotonic() - begun < 5
    never.set()


def test_a_model_that_is_not_here_is_said_at_once_and_once(monkeypatch):
    asked = []
    monkeypatch.setattr(hub, "_connects", lambda endpoint: asked.append(endpoint))
    monkeypatch.setattr(hub, "_silent_since", None)
    monkeypatch.setattr(hub.urllib.request, "getproxies", dict)
    (checkpoint,) = find_checkpoints("nobody/nothing")
    for _ in range(2):
        with pytest.raises(LoadError, match="not on this machine and the hub cannot be reached"):
            load_model(checkpoint)
    assert len(asked) == 1


def test_behind_a_proxy_the_hubs_own_client_decides(monkeypatch):
    monkeypatch.setattr(hub.urllib.request, "getproxies", lambda: {"https": "http://proxy:3128"})
    monkeypatch.setattr(hub, "_connects", lambda endpoint: pytest.fail("asked"))
    assert hub.hub_answers()
