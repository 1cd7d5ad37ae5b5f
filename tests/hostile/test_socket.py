"""A thousand hostile requests, and some that are no HTTP at all, over a real socket at `ojs_testserver`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from django.conf import settings
from django.db import connection

from django_ojs.database import url_of
from tests.hostile.answers import Answer, Ledger, check
from tests.hostile.calls import Attacker, Call, Known
from tests.hostile.raw import Closed, Wire, bytes_of
from tests.hostile.zoo import populate

REQUESTS = 800
MALFORMED = 200

pytestmark = [pytest.mark.wide, pytest.mark.database]


class Server(NamedTuple):
    url: str
    database: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`ojs_testserver` on a database of its own, on the server that the tests use."""
    database = "" if connection.vendor == "sqlite" else url_of(connection.settings_dict)
    errors = tmp_path_factory.mktemp("testserver") / "stderr"
    with errors.open("w") as file:  # a pipe that nobody reads would stop the server when it is full
        process = subprocess.Popen(
            [sys.executable, "manage.py", "ojs_testserver", "--port", "0", "--database", database],
            cwd=settings.BASE_DIR, stdout=subprocess.PIPE, stderr=file, text=True,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
        )  # fmt: skip
    assert process.stdout is not None
    try:
        word, _, url = process.stdout.readline().strip().partition(" ")
        assert word == "ready", errors.read_text()
        yield Server(url, errors.read_text().splitlines()[0].removeprefix("database "))
    finally:
        process.terminate()
        process.communicate(timeout=90)
    assert process.returncode == 0, errors.read_text()
    # uvicorn fails to say 400 to a malformed chunk where our answer has begun already: LocalProtocolError of h11.
    tracebacks = errors.read_text().split("Traceback (most recent call last):")[1:]
    assert [one for one in tracebacks if "h11._util." not in one] == []


def violations(server: Server, ledger: Ledger) -> Any:
    """Those of the server's database, found by a process of its own."""
    books = {"accepted": sorted(ledger.accepted), "deleted": sorted(ledger.deleted), "unheard": ledger.unheard}
    process = subprocess.run(
        [sys.executable, "-m", "tests.hostile.invariants"],
        cwd=settings.BASE_DIR, input=json.dumps(books), stdout=subprocess.PIPE, text=True, check=True,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", "OJS_TEST_DATABASE_URL": server.database},
    )  # fmt: skip
    return json.loads(process.stdout)


def test_no_request_breaks_the_server_or_its_store(server: Server) -> None:
    known, ledger = Known(), Ledger()
    with Wire(server.url) as wire:
        populate(wire.send, known, ledger)
        for number, call in enumerate(calls(1000, known), 1):
            if number == REQUESTS + 1:
                assert violations(server, ledger) == []
            if number <= REQUESTS:
                sound(call)
                answer = wire.send(call)
                ledger.note(call, answer, check(call, answer), known)
            else:
                throw(wire, call, random.Random(number), ledger, known)
        assert wire.send(Call("GET", "/ojs/v1/health")).status == 200
    assert violations(server, ledger) == []
    assert {200, 201, 204, 400, 404, 405, 409} <= set(ledger.statuses), ledger.statuses


def calls(seed: int, known: Known) -> Iterator[Call]:
    attacker = Attacker(seed, known)
    for _ in range(REQUESTS + MALFORMED):
        yield attacker.call()


def sound(call: Call) -> None:
    """Make it HTTP, however odd: a server may close the connection on what is not."""
    if call.method == "BREW":  # the parser of the server knows the registered methods only
        call.method = "PROPFIND"
    call.target = "".join(char if "!" <= char <= "~" else "%FF" for char in call.target)
    call.headers = {
        name: "".join(char for char in value if char == "\t" or char >= " ").replace("\x7f", "").strip()
        for name, value in call.headers.items()
        if name not in ("Transfer-Encoding", "Content-Length")
    }
    call.headers["Content-Length"] = str(len(call.body))


def throw(wire: Wire, call: Call, r: random.Random, ledger: Ledger, known: Known) -> None:
    """Break the HTTP itself. The server may close, or refuse in its own words; what reaches us we answer."""
    data = bytes_of(call)
    place = r.randrange(len(data))
    data = r.choice(
        [
            lambda: data,
            lambda: data[:place],
            lambda: data[:place] + r.randbytes(3) + data[place:],
            lambda: data.replace(b"HTTP/1.1", r.choice([b"HTTP/1.0", b"HTTP/9.9", b"", b"XTTP/1.1"]), 1),
            lambda: data.replace(b"\r\n", b"\n"),
            lambda: data.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n", 1),
            lambda: data.replace(b"\r\n", b"\r\nContent-Length: 3\r\n", 1),
            lambda: data.replace(b" ", b"  ", 1),
            lambda: data.replace(b"/ojs", b"http://localhost/ojs", 1),
            lambda: data.replace(b"Host:", r.choice([b"Host: a\r\nHost:", b"X:", b" Host:", b"Host\x00:"]), 1),
            lambda: b"\r\n\r\n" + data,
            lambda: r.randbytes(50),
        ]
    )()
    try:
        answer: Answer = wire.throw(data)
    except Closed:
        ledger.unheard += 1
        return
    if "ojs-version" not in answer.headers:  # never reached us
        assert answer.status in (400, 404, 431), (data[:1000], answer)
        assert b"<" not in answer.body[:1], (data[:1000], answer)
        return
    method = data.split(b" ", 1)[0].strip().decode("latin-1")
    call = Call(method, call.target, call.headers, data)
    ledger.note(call, answer, check(call, answer), known)
