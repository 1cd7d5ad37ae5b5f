"""The example project's handlers do what they say, and fail for the reason they give."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from django.core import mail

from django_ojs import JobHandle, Snooze, get_job, jsontext
from django_ojs.client.context import JobContext
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.registry import registry
from django_ojs.states import State
from django_ojs.testing import WorkerJobs, approve
from example_project import jobs, library
from example_project.demo.load import REMOVED


def test_hash_and_count() -> None:
    source = library.path_of("json/decoder.py").read_bytes()
    expected = {"module": "json/decoder.py", "bytes": len(source), "sha256": hashlib.sha256(source).hexdigest()}
    assert jobs.hash_module("json/decoder.py") == expected
    assert jobs.count_words("json/decoder.py")["words"] == len(source.split())


@pytest.mark.parametrize("module", REMOVED)
def test_a_module_of_an_older_python_is_not_there(module: str) -> None:
    with pytest.raises(FileNotFoundError):
        jobs.hash_module(module)


def test_a_module_without_comments_has_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    assert jobs.lines_per_comment("json/decoder.py") > 1
    monkeypatch.setattr(library, "comments", lambda source: {"lines": 10, "comments": 0})
    with pytest.raises(ZeroDivisionError):
        jobs.lines_per_comment("json/decoder.py")


def test_a_copy_that_is_cut_short_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.random, "random", lambda: 0.9)
    assert jobs.copy_module("json/decoder.py") == jobs.hash_module("json/decoder.py")["sha256"]
    monkeypatch.setattr(jobs.random, "random", lambda: 0.1)
    with pytest.raises(jobs.ChecksumMismatch, match="bytes arrived"):
        jobs.copy_module("json/decoder.py")


def test_names_of_a_package(context: JobContext) -> None:
    counted = jobs.count_names(context, "json")
    assert counted is not None
    assert counted["modules"] == len(library.package("json"))
    assert counted["names"]["self"] > 10


def test_counting_names_stops_when_nobody_waits(context: JobContext) -> None:
    context.cancel()
    assert jobs.count_names(context, "json") is None


@pytest.mark.parametrize("approved", [True, False])
def test_a_list_is_published_when_a_person_says_so(ojs_worker: WorkerJobs, data: Path, approved: bool) -> None:
    with registry.isolated():
        for definition in (jobs.publish_list, jobs.hash_module, jobs.send_message):
            registry.register(definition)
        handle = jobs.publish_list.enqueue("json")
        ojs_worker.drain(until="1m")
        approve(handle, approved=approved)
        ojs_worker.drain(until="1m").raise_first()
    assert handle.refresh().result == ("json-list.txt" if approved else "It is not published.")
    assert [message.subject for message in mail.outbox] == (["List: json"] if approved else [])
    if approved:
        listed = (data / "reports" / "json-list.txt").read_text().splitlines()
        assert listed[0] == f"{jobs.hash_module('json/__init__.py')['sha256']}  json/__init__.py"


async def test_probe() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readline()).startswith(b"GET /ojs/v1/health ")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        assert (await jobs.probe(server.sockets[0].getsockname()[1]))["status"] == 200


async def test_probe_of_a_closed_port() -> None:
    with socket.socket() as bound:  # bound, so that nobody else gets it, and not listening
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            await jobs.probe(bound.getsockname()[1])


def test_message_is_mailed() -> None:
    jobs.send_message("reader@example.com", "Subject", "Text")
    assert [message.subject for message in mail.outbox] == ["Subject"]


def test_tidy_keeps_the_newest(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "KEPT_FILES", 2)
    for folder in ("mail", "reports"):
        (data / folder).mkdir()
        for age in range(4):
            file = data / folder / str(age)
            file.touch()
            os.utime(file, (1_000_000 - age, 1_000_000 - age))
    assert jobs.tidy() == 4
    assert {file.name for file in (data / "mail").iterdir()} == {"0", "1"}


@pytest.fixture
def survey(settings: Any, transactional_db: None) -> list[JobHandle]:
    """Two jobs about one module, and the reminder."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "example_project"]  # for its templates
    return [
        jobs.hash_module.enqueue("json/decoder.py"),
        jobs.count_words.enqueue("json/decoder.py"),
        jobs.send_message.options(delay="1m").enqueue("a@example.com", "Late", "Where is it?"),
    ]


def _work(handles: list[JobHandle]) -> None:
    handlers = {"files.hash": jobs.hash_module, "files.count": jobs.count_words}
    for row in fetch(Fetch(["files"], count=len(handles))):
        result = handlers[row["type"]](*jsontext.loads(row["args"]))
        ack([Ack(row["id"], jsontext.dumps(result))])


def test_report_shows_results_and_cancels_the_reminder(
    survey: list[JobHandle], context: JobContext, data: Path
) -> None:
    parts, reminder = survey[:2], survey[2]
    _work(parts)
    name = jobs.render_report(context, "json", [str(part.id) for part in parts], str(reminder.id))
    page = (data / "reports" / name).read_text()
    found = jobs.hash_module("json/decoder.py") | jobs.count_words("json/decoder.py")
    assert all(f">{found[key]}<" in page for key in ("module", "bytes", "words"))
    assert found["sha256"] in page
    assert get_job(reminder.id).state is State.CANCELLED
    assert [row["type"] for row in fetch(Fetch(["mail"], count=9))] == ["mail.send"]


def test_report_waits_for_its_parts(survey: list[JobHandle], context: JobContext, data: Path) -> None:
    with pytest.raises(Snooze):
        jobs.render_report(context, "json", [str(survey[0].id)], str(survey[2].id))


def test_report_on_forgotten_jobs_stays_in_its_folder(survey: list[JobHandle], context: JobContext, data: Path) -> None:
    nobody = "01900000-0000-7000-8000-000000000000"
    name = jobs.render_report(context, "../../etc", [nobody], nobody)
    assert (data / "reports" / name).is_file()
