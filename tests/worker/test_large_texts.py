"""What a run can make grow in a row is cut, and what a database does not take costs no other job and no worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DataError, InterfaceError, OperationalError, connection

from django_ojs import JobContext, job
from django_ojs.faults import is_about_data
from django_ojs.jobs.finish import Failure, fail_one
from django_ojs.models import Event, Job, JobProgress
from django_ojs.rules import errorobjects
from django_ojs.worker import writer as writers
from django_ojs.worker.runs import Completed, Failed
from tests.worker.test_parts import claimed, writer

__all__ = ["claimed", "writer"]

HUGE = 20_000_000
ONCE = {"retry": {"max_attempts": 1}}


def error_of(handle: Any) -> dict[str, Any]:
    error: dict[str, Any] = handle.refresh().error
    return error


@pytest.mark.django_db(transaction=True)
def test_a_huge_message_is_cut_and_the_jobs_after_it_are_done(drain: Callable[..., Any]) -> None:
    @job("test.huge", **ONCE)
    def huge() -> None:
        raise ValueError("x" * HUGE)

    @job("test.fine")
    def fine() -> str:
        return "fine"

    broken = huge.enqueue()
    others = [fine.enqueue() for _ in range(5)]
    drain()
    error = error_of(broken)
    assert len(error["message"]) == errorobjects.MAX_MESSAGE
    assert error["message"].endswith(f"… [cut: {HUGE} characters]")
    assert {handle.refresh().state for handle in others} == {"completed"}
    assert max(len(json.dumps(event.data)) for event in Event.objects.filter(job_id=broken.id)) < 60_000


@pytest.mark.django_db(transaction=True)
def test_every_text_that_a_worker_may_send_with_a_failure_is_cut(claimed: Any) -> None:
    """As HTTP and gRPC report it, and our own worker."""
    (run,) = claimed(1, retry={"max_attempts": 1})
    long = "x" * 100_000
    error = {
        "type": long, "code": long, "message": long, "backtrace": [long] * 100, "more": long, long: [long] * 50,
        "details": {"a": 1, "text": long, "list": [long] * 50, long: {"deep": [{"er": long}]}},
    }  # fmt: skip
    fail_one(Failure(run.id, error, "w", run.attempt))
    stored = Job.objects.get(pk=run.id).error
    assert stored is not None
    assert len(json.dumps(stored)) < 70_000
    for name in ("type", "code", "message"):
        assert stored[name].endswith("… [cut: 100000 characters]"), name
    assert stored["details"]["a"] == 1
    assert "[cut: " in stored["details"]["text"]
    assert "[cut: " in json.dumps(stored["details"], ensure_ascii=False)
    assert "[cut: " in stored["more"]


@pytest.mark.parametrize("value", [
    {"a": "x"}, {"a": ["x" * 100] * 100}, {f"k{n}": n for n in range(5000)}, {"k" * 9000: 1}, ["x"] * 10_000,
    {"a": {"b": ["ü" * 10_000, {"c": "y" * 10_000}]}}, {"n": 10**4000}, {"a": None, "b": True, "c": 1.5},
])  # fmt: skip
def test_what_is_cut_stays_json_within_its_limit(value: Any) -> None:
    found = errorobjects.within(value, 1000)
    assert len(json.dumps(found, ensure_ascii=False)) < 3000
    if len(json.dumps(value)) <= 1000:
        assert found == value
    else:
        assert "[cut: " in json.dumps(found, ensure_ascii=False)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("message", ["x" * HUGE, "\ud800 alone", "nul \0 inside", 17, ["a", "list"]], ids=repr)
def test_a_message_of_progress_ends_no_worker(drain: Callable[..., Any], message: Any) -> None:
    @job("test.progress")
    def report(context: JobContext) -> str:
        context.progress(50, message)
        return "done"

    handle = report.enqueue()
    worker = drain()
    assert worker.ended_well
    assert handle.refresh().state == "completed"
    stored = JobProgress.objects.get(pk=handle.id).message
    assert 0 < len(stored) <= 1000
    if isinstance(message, str) and len(message) > 1000:
        assert stored.endswith(f"… [cut: {HUGE} characters]")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("text", ["\ud800 alone", "nul \0 inside", "😀" * 5000])
def test_texts_that_databases_dislike(drain: Callable[..., Any], text: str) -> None:
    @job("test.raises", **ONCE)
    def raises() -> None:
        error = ValueError(text)
        error.add_note(text)
        raise error

    @job("test.returns")
    def returns() -> str:
        return text

    broken, fine = raises.enqueue(), returns.enqueue()
    assert drain().ended_well
    assert error_of(broken)["type"] == "ValueError"
    assert fine.refresh().state == "completed"


@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_results_that_are_too_large_together_are_stored_one_by_one(drain: Callable[..., Any]) -> None:
    @job("test.large")
    def large() -> str:
        return "x" * 1_000_000

    handles = [large.enqueue() for _ in range(24)]
    drain(concurrency=24)
    assert {handle.refresh().state for handle in handles} == {"completed"}


@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_a_result_that_the_database_does_not_take_fails_its_job_and_no_other(
    drain: Callable[..., Any], settings: Any
) -> None:
    if connection.vendor != "mysql":
        pytest.skip("only MariaDB has a limit that small")
    settings.OJS = {"MAX_RESULT_BYTES": 30_000_000}

    @job("test.large", **ONCE)
    def large() -> str:
        return "x" * 17_000_000

    @job("test.fine")
    def fine() -> str:
        return "fine"

    broken = large.enqueue()
    others = [fine.enqueue() for _ in range(5)]
    assert drain().ended_well
    error = error_of(broken)
    assert error["code"] == "result_not_stored"
    assert "17000002 bytes" in error["message"]
    assert {handle.refresh().state for handle in others} == {"completed"}


def too_large() -> Exception:
    return OperationalError(1153, "Got a packet bigger than 'max_allowed_packet' bytes")


def gone() -> Exception:
    return OperationalError(2006, "Server has gone away")


def of_postgresql() -> Exception:
    class Limit(Exception):
        sqlstate = "54000"

    error = OperationalError("index row size 2712 exceeds btree version 4 maximum 2704")
    error.__cause__ = Limit()
    return error


REFUSALS: dict[str, Callable[[], Exception]] = {
    "1153": too_large, "2006": gone, "54000": of_postgresql, "data": lambda: DataError("string or blob too big"),
    "surrogates": lambda: UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
}  # fmt: skip


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("refusal", list(REFUSALS))
@pytest.mark.parametrize("kind", ["ack", "fail"])
def test_one_report_that_the_database_refuses_costs_no_other(
    claimed: Any, writer: Any, monkeypatch: pytest.MonkeyPatch, refusal: str, kind: str
) -> None:
    """Without an end this was an outage. The guilty failure is written in its shortest form."""
    runs = claimed(8, retry={"max_attempts": 1})
    bad = runs[5]
    whole: Any = getattr(writers, kind)
    big = "x" * 200_000

    def refuse(reports: Any, **kwargs: Any) -> Any:
        for done in reports:
            if done.job_id == bad.id and big in str(getattr(done, "result", "") or getattr(done, "error", "")):
                error = REFUSALS[refusal]()
                raise error
        return whole(reports, **kwargs)

    for name in (kind, f"{kind}_free"):
        monkeypatch.setattr(writers, name, refuse)
    outcome: Any = Completed(f'"{big}"') if kind == "ack" else Failed({"type": "Boom", "message": big})
    small: Any = Completed('"fine"') if kind == "ack" else Failed({"type": "Small", "message": "small"})
    writer.write([(run, outcome if run is bad else small) for run in runs])
    states = {run.id: Job.objects.get(pk=run.id) for run in runs}
    others = [found for pk, found in states.items() if pk != bad.id]
    assert {found.state for found in others} == {"completed" if kind == "ack" else "discarded"}
    error = states[bad.id].error
    assert error is not None
    assert states[bad.id].state == "discarded"
    if kind == "ack":
        assert error["code"] == "result_not_stored"
    else:
        assert error["type"] == "Boom"
        assert error["message"].endswith("[the rest could not be stored]")


def test_what_is_about_data_and_what_is_an_outage() -> None:
    assert [is_about_data(make()) for make in (too_large, of_postgresql, REFUSALS["data"])] == [True] * 3
    assert not is_about_data(gone())
    assert not is_about_data(InterfaceError("connection already closed"))
    assert not is_about_data(OperationalError(2013, "Lost connection"))


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_restarted_twice_loses_no_result(
    claimed: Any, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends twice, and the database can be reached each time: a small report is tried again."""
    runs = claimed(4)
    whole, calls = writers.ack, []

    def cut_off(reports: Any, **kwargs: Any) -> Any:
        calls.append(len(reports))
        if len(calls) <= 5:
            raise gone()
        return whole(reports, **kwargs)

    for name in ("ack", "ack_free"):
        monkeypatch.setattr(writers, name, cut_off)
    writer.write([(run, Completed('"fine"')) for run in runs])
    assert set(Job.objects.values_list("state", flat=True)) == {"completed"}
    assert len(calls) > 5
