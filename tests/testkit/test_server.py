"""`ojs_testserver` over a real socket: what clients send that no HTTP library of Python does, and WebSockets."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from django.conf import settings
from django.core.management.base import CommandError
from websockets.asyncio.client import connect

from django_ojs.grpc import messages
from django_ojs.grpc.definition import Stub
from django_ojs.testing import server
from tests.hostile.calls import Call
from tests.hostile.raw import Wire

#: The server has a database of its own, so it is the same with each.
pytestmark = [pytest.mark.slow, pytest.mark.sqlite]

PATIENCE = 60.0
#: What Java's HttpClient and `curl --http2` add to an ordinary request.
OFFER = {
    "Connection": "Upgrade, HTTP2-Settings",
    "Upgrade": "h2c",
    "HTTP2-Settings": "AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA",
}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL, and the address of gRPC: '' where the library is not there."""
    grpc = ["--grpc-port", "0"] if importlib.util.find_spec("grpc") else []
    errors: Path = tmp_path_factory.mktemp("testserver") / "stderr"
    with errors.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "ojs_testserver", "--port", "0", *grpc],
            cwd=settings.BASE_DIR, stdout=subprocess.PIPE, stderr=file, text=True,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
        )  # fmt: skip
    assert process.stdout is not None
    try:
        word, *found = process.stdout.readline().split()
        assert word == "ready", errors.read_text()
        yield found[0], found[-1] if grpc else ""
    finally:
        process.terminate()
        process.communicate(timeout=90)
    assert process.returncode == 0, errors.read_text()
    assert "Traceback" not in errors.read_text(), errors.read_text()


@pytest.fixture(scope="module")
def url(doors: tuple[str, str]) -> str:
    return doors[0]


def offering(path: str, body: Any, **headers: str) -> Call:
    """A POST that offers HTTP/2."""
    text = json.dumps(body).encode()
    sent = {"Content-Type": "application/json", "Content-Length": str(len(text)), **OFFER, **headers}
    return Call("POST", path, sent, text)


def test_a_client_that_offers_http2_keeps_its_body(url: str) -> None:
    with Wire(url) as wire:
        for number in range(2):  # the second on the same connection
            answer = wire.send(offering("/ojs/v1/jobs", {"type": "a.b", "args": [number]}))
            assert answer.status == 201, answer.body
            assert json.loads(answer.body)["job"]["args"] == [number]


def test_a_body_that_comes_after_its_head_is_waited_for(url: str) -> None:
    call = offering("/ojs/v1/jobs", {"type": "a.b", "args": ["late"]}, Expect="100-continue")
    with Wire(url) as wire:
        answer = wire.send(call)
    assert answer.status == 201, answer.body


async def test_websockets_are_served_beside_it(url: str) -> None:
    async with connect(url.replace("http:", "ws:") + "/ojs/v1/ws", proxy=None) as client:
        await client.send(json.dumps({"action": "subscribe", "channel": "events", "filter": {"queues": ["sockets"]}}))
        assert json.loads(await asyncio.wait_for(client.recv(), PATIENCE))["action"] == "subscribed"
        with Wire(url) as wire:
            pushed = wire.send(offering("/ojs/v1/jobs", {"type": "a.b", "args": [], "queue": "sockets"}))
        event = json.loads(await asyncio.wait_for(client.recv(), PATIENCE))
        assert event["type"] == "job.enqueued"
        assert event["data"]["job_id"] == json.loads(pushed.body)["job"]["id"]


def test_both_doors_have_the_same_manifest(doors: tuple[str, str]) -> None:
    grpc = pytest.importorskip("grpc")
    url, address = doors
    with urlopen(f"{url}/ojs/manifest", timeout=PATIENCE) as answer:
        theirs = json.load(answer)
    with grpc.insecure_channel(address) as channel:
        message = messages.to_message("ManifestRequest", {})
        ours = messages.to_document(Stub(channel).Manifest(message, timeout=PATIENCE))
    assert {"sse", "websocket", "grpc"} <= set(theirs["events"]["transports"])
    assert theirs["endpoints"].pop("base_url") == url + ours["endpoints"].pop("base_url")
    assert ours == theirs


def test_it_ends_where_a_part_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def ready(url: str, grpc: str) -> None:
        monkeypatch.setattr(server.parts, "stuck", lambda: ["the cron has ended"])

    with pytest.raises(CommandError, match="the cron has ended"):
        server.serve(0, ready)
