"""`manage.py ojs_grpc` as a process: it serves, and ends as it should."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc
from django.conf import settings as site
from django.db import transaction

from django_ojs.grpc import messages
from django_ojs.grpc.definition import Stub
from django_ojs.models import Job

PATIENCE = 60.0
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def process(child_environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    environment = child_environment | {
        "DJANGO_SETTINGS_MODULE": "tests.processes.settings",
        "OJS_TEST_OJS": '{"ALLOW_ANONYMOUS": true, "GRPC": true}',
        "OJS_TEST_LEDGER": os.devnull,
    }
    command = [sys.executable, "manage.py", "ojs_grpc", "--bind", "127.0.0.1:0"]
    process = subprocess.Popen(
        command, cwd=site.BASE_DIR, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"listens on (127\.0\.0\.1:[1-9]\d*)\.", line)
    assert found, line + (process.stderr.read() if process.stderr else "")
    return found[1]


def test_it_serves_until_a_signal_comes(process: subprocess.Popen[str]) -> None:
    with grpc.insecure_channel(address(process)) as channel:
        stub = Stub(channel)
        for number in range(20):
            message = messages.to_message("EnqueueRequest", {"type": "a", "args": [number]})
            stub.Enqueue(message, timeout=PATIENCE)
        fetched = stub.Fetch(messages.to_message("FetchRequest", {"queues": ["default"], "count": 5}), timeout=PATIENCE)
        assert len(fetched.jobs) == 5
    assert Job.objects.count() == 20
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert "stopped" in output
    assert "Traceback" not in errors


def test_a_terminal_that_is_closed_ends_it_as_well_and_cuts_no_call(process: subprocess.Popen[str]) -> None:
    """SIGHUP mostly comes twice: from the shell and from the kernel."""
    with grpc.insecure_channel(address(process)) as channel:
        stub = Stub(channel)
        stub.Enqueue(messages.to_message("EnqueueRequest", {"type": "a", "args": []}), timeout=PATIENCE)
        (job,) = stub.Fetch(messages.to_message("FetchRequest", {"queues": ["default"]}), timeout=PATIENCE).jobs
        with transaction.atomic():
            Job.objects.filter(pk=job.id).update(priority=1)
            call = stub.Ack.future(messages.to_message("AckRequest", {"job_id": job.id}), timeout=PATIENCE)
            stub.Manifest(messages.to_message("ManifestRequest", {}), timeout=PATIENCE)  # which came after the other
            process.send_signal(signal.SIGHUP)
            assert process.stdout is not None
            assert "running calls have 25 seconds" in process.stdout.readline()
            process.send_signal(signal.SIGHUP)
        call.result()
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert "stopped" in output
    assert Job.objects.get().state == "completed"


def test_a_second_signal_ends_it_at_once(process: subprocess.Popen[str]) -> None:
    """The call that runs waits for a row that this test has locked, and the process does not wait for the call."""
    with grpc.insecure_channel(address(process)) as channel:
        stub = Stub(channel)
        stub.Enqueue(messages.to_message("EnqueueRequest", {"type": "a", "args": []}), timeout=PATIENCE)
        (job,) = stub.Fetch(messages.to_message("FetchRequest", {"queues": ["default"]}), timeout=PATIENCE).jobs
        with transaction.atomic():
            Job.objects.filter(pk=job.id).update(priority=1)
            call = stub.Ack.future(messages.to_message("AckRequest", {"job_id": job.id}), timeout=PATIENCE)
            stub.Manifest(messages.to_message("ManifestRequest", {}), timeout=PATIENCE)  # which came after the other
            process.send_signal(signal.SIGTERM)
            assert process.stdout is not None
            assert "running calls have 25 seconds" in process.stdout.readline()
            process.send_signal(signal.SIGINT)  # another one, so it is no echo of the first
            output, errors = process.communicate(timeout=20)
            assert process.returncode == 0, errors
            assert "stopped" in output
            assert call.exception().code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert Job.objects.get().state == "active"


def test_many_clients_at_once(process: subprocess.Popen[str]) -> None:
    place = address(process)

    async def drive() -> list[Any]:
        async with grpc.aio.insecure_channel(place) as channel:
            stub = Stub(channel)

            async def one(number: int) -> Any:
                message = messages.to_message("EnqueueRequest", {"type": "a", "args": [number]})
                return await stub.Enqueue(message, timeout=PATIENCE)

            await asyncio.gather(*(one(number) for number in range(300)))
            fetch = messages.to_message("FetchRequest", {"queues": ["default"], "count": 10, "worker_id": "w"})
            found = await asyncio.gather(*(stub.Fetch(fetch, timeout=PATIENCE) for _ in range(30)))
            return [job.id for answer in found for job in answer.jobs]

    ids = asyncio.run(drive())
    assert len(ids) == len(set(ids)) == 300
    assert Job.objects.filter(state="active").count() == 300
