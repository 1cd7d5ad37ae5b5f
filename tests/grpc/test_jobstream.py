"""StreamJobs from a client to the database and back: what is pushed, when a place is free, and how a stream ends."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import threading
from collections.abc import Callable
from queue import Empty
from typing import Any

import pytest

from tests.waiting import eventually

pytest.importorskip("grpc")

import grpc
from django.db import OperationalError, connections
from django.test import Client

from django_ojs import clock, hooks, keys
from django_ojs.grpc import jobstream, messages
from django_ojs.jobs import timers
from django_ojs.jobs.finish import requeue
from django_ojs.jobs.push import push
from django_ojs.models import Event, Job, Worker
from django_ojs.queues.configuration import configure, pause, resume
from django_ojs.realtime.slots import open_slots
from django_ojs.workerregistry.heartbeat import Beat, beat
from django_ojs.workerregistry.registration import direct
from tests.grpc.serving import PATIENCE, Served, serving
from tests.grpc.streaming import Listener, refused

pytestmark = pytest.mark.django_db(transaction=True)

Open = Callable[..., Listener]


def listen(served: Served, worker_id: str = "w1", *queues: str, places: int | None = None, **metadata: str) -> Listener:
    asked: dict[str, Any] = {"queues": list(queues or ["default"]), "worker_id": worker_id}
    return Listener(served, "StreamJobs", asked | ({} if places is None else {"max_concurrent": places}), **metadata)


def enqueue(count: int = 1, **more: Any) -> list[str]:
    pushed = push([{"type": "grpc.job", "args": [i], **more} for i in range(count)])
    return [str(one.row["id"]) for one in pushed]  # type: ignore[union-attr, index]


def test_a_worker_of_one_stream_drains_a_queue(served: Served) -> None:
    jobs = enqueue(20)
    stream = listen(served, places=3)
    done = []
    for _ in range(20):
        job = stream.next()
        assert Job.objects.filter(state="active").count() <= 3
        assert (job["state"], job["attempt"], job["type"]) == ("active", 1, "grpc.job")
        served.call("Ack", {"job_id": job["id"], "result": {"n": job["args"][0]}, "worker_id": "w1"})
        done.append(job["id"])
    assert done == jobs
    assert Event.objects.filter(type="job.started", worker_id="w1").count() == 20
    assert {job.result["n"] for job in Job.objects.all()} == set(range(20))


def test_one_job_at_a_time_unless_it_says_more(served: Served) -> None:
    """The initial metadata comes before any job, and tells that the stream is in force."""
    stream = listen(served)
    assert stream.initial["x-ojs-request-id"]
    first, second = enqueue(2)
    assert stream.next()["id"] == first
    served.call("Heartbeat", {"id": "w1"})
    assert stream.has_nothing
    served.call("Ack", {"job_id": first})
    assert stream.next()["id"] == second


def test_a_job_shows_the_policy_in_force_as_fetch_does(served: Served) -> None:
    """The queue's default is not among the words of the job."""
    configure("default", {"default_retry": {"max_attempts": 7, "initial_interval": "PT9S"}})
    enqueue(2)
    fetched = served.whole("Fetch", {"queues": ["default"], "worker_id": "w2"})[0].jobs[0]
    request = messages.to_message("StreamJobsRequest", {"queues": ["default"], "worker_id": "w1"})
    stream = served.stub.StreamJobs(request, timeout=PATIENCE)
    streamed = next(iter(stream))
    stream.cancel()
    assert streamed.retry_policy == fetched.retry_policy
    assert (streamed.retry_policy.max_attempts, streamed.retry_policy.initial_interval.seconds) == (7, 9)


def test_the_other_doors_free_places_too(served: Served) -> None:
    jobs = enqueue(4)
    stream = listen(served)
    http = Client()
    for end in ("ack", "nack", "cancel"):
        job = stream.next()["id"]
        assert job == jobs.pop(0)
        path = f"/ojs/v1/jobs/{job}/{end}"
        error = {"error": {"code": "x", "message": "no", "retryable": False}} if end == "nack" else {}
        response = http.post(path, error, content_type="application/json")
        assert response.status_code == 200, response.content
    assert stream.next()["id"] == jobs.pop(0)


def test_what_a_client_has_got_when_it_goes_stays_with_its_worker(served: Served) -> None:
    (job,) = enqueue()
    gone = listen(served, "gone")
    assert gone.next()["id"] == job
    gone.leave()
    eventually(lambda: open_slots() == 0)
    other = listen(served, "other")
    (later,) = enqueue()
    assert other.next()["id"] == later
    assert Job.objects.values_list("state", "worker_id", "attempt").get(pk=job) == ("active", "gone", 1)
    served.call("Ack", {"job_id": job, "worker_id": "gone"})
    assert Job.objects.get(pk=job).state == "completed"


#: A client in a process of its own, which takes what comes and never answers.
CLIENT = """
import sys
from django.conf import settings
settings.configure()
import grpc
from django_ojs.grpc.definition import MESSAGES, Stub
request = MESSAGES["StreamJobsRequest"](queues=["default"], worker_id="killed", max_concurrent=3)
for job in Stub(grpc.insecure_channel(sys.argv[1])).StreamJobs(request):
    print(job.id, flush=True)
"""


def test_a_client_that_is_killed(served: Served) -> None:
    """What it got stays with it until the reservation ends; nothing more is claimed for it."""
    jobs = enqueue(4)
    client = subprocess.Popen([sys.executable, "-c", CLIENT, served.address], stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout is not None
        got = [client.stdout.readline().strip() for _ in range(3)]
        assert got == jobs[:3]
    finally:
        client.kill()
        client.communicate()
    eventually(lambda: open_slots() == 0)
    assert listen(served, "other").next()["id"] == jobs[3]
    held = Job.objects.filter(pk__in=got, state="active", worker_id="killed", attempt=1)
    assert held.count() == 3
    held.update(visible_until=past(), wake_at=past())
    assert timers.apply_due() == 3
    again = listen(served, "third", places=3).take(3)
    assert {(job["id"], job["attempt"]) for job in again} == {(job, 2) for job in got}


def past() -> dt.datetime:
    return clock.now() - dt.timedelta(seconds=1)


def test_jobs_that_were_claimed_and_not_sent_come_back(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client goes while the first of five is being sent."""
    sending, original = threading.Event(), jobstream._message

    def message(row: Any) -> Any:
        if row["worker_id"] == "gone":
            sending.set()
            raise RuntimeError("A fault of ours, while nothing has been sent.")
        return original(row)

    monkeypatch.setattr(jobstream, "_message", message)
    jobs = enqueue(5)
    gone = listen(served, "gone", places=5)
    assert sending.wait(60)
    assert (gone.end().code.name, gone.end().reason) == ("INTERNAL", "backend_error")
    assert "fault of ours" not in gone.end().message
    other = listen(served, "other", places=5)
    assert sorted(job["id"] for job in other.take(5)) == sorted(jobs)
    assert {(job.attempt, job.uncounted, tuple(job.errors or ())) for job in Job.objects.all()} == {(2, 1, ())}


def test_a_paused_queue(served: Served) -> None:
    enqueue(queue="stopped")
    pause("stopped")
    stream = listen(served, "w1", "stopped", "open", places=5)
    enqueue(queue="open")
    assert stream.next()["queue"] == "open"
    assert stream.has_nothing
    resume("stopped")
    assert stream.next()["queue"] == "stopped"


def test_a_quiet_worker(served: Served) -> None:
    beat(Beat("calm"))
    direct("calm", "quiet")
    stream = listen(served, "calm")
    (job,) = enqueue()
    awake = listen(served, "awake")
    assert awake.next()["id"] == job
    (job,) = enqueue()
    direct("calm", "running")
    assert stream.next()["id"] == job


def test_what_a_request_needs(served: Served) -> None:
    for document, field in (
        ({"worker_id": "w"}, "queues"), ({"queues": ["default"]}, "worker_id"),
        ({"queues": ["no queue"], "worker_id": "w"}, "queues[0]"), ({"queues": ["q"], "worker_id": "\0"}, "worker_id"),
        ({"queues": ["q"], "worker_id": "w", "visibility_timeout_ms": -1}, "visibility_timeout_ms"),
    ):  # fmt: skip
        failure = refused(served, "StreamJobs", document)
        assert (failure.code.name, failure.reason) == ("INVALID_ARGUMENT", "invalid_request"), document
        assert failure.info.metadata["field"] == field
    eventually(lambda: open_slots() == 0)


def test_places_and_reservation_as_the_client_says(served: Served) -> None:
    enqueue(3)
    listen(served, places=-5, x_ojs_visibility_timeout_ms="7777").next()
    assert Job.objects.get(state="active").lease_ms == 7777
    stream = listen(served, "w2", places=2**31 - 1)
    stream.take(2)


def test_names_that_never_had_a_job_and_a_worker_that_nobody_knew(served: Served) -> None:
    stream = listen(served, "new-worker", "never-seen")
    eventually(lambda: Worker.objects.filter(pk="new-worker").exists())
    (job,) = enqueue(queue="never-seen")
    assert stream.next()["id"] == job


def test_who_may_have_a_stream(guarded: Served) -> None:
    asked = {"queues": ["default"], "worker_id": "w"}
    assert refused(guarded, "StreamJobs", asked).code.name == "UNAUTHENTICATED"
    assert refused(guarded, "StreamJobs", asked, authorization="Bearer ojs_no").code.name == "UNAUTHENTICATED"
    _, reader = keys.create("reader", ["read"])
    denied = refused(guarded, "StreamJobs", asked, authorization=f"Bearer {reader}")
    assert (denied.code.name, denied.info.metadata["required_scope"]) == ("PERMISSION_DENIED", "work")
    _, limited = keys.create("limited", ["work"], queues=["mail"])
    denied = refused(guarded, "StreamJobs", asked, x_ojs_api_key=limited)
    assert (denied.code.name, denied.info.metadata["queue"]) == ("PERMISSION_DENIED", "default")


def test_a_key_that_is_limited_to_types_gets_only_those(guarded: Served) -> None:
    _, text = keys.create("mailer", ["work"], job_types=["mail.*"])
    enqueue()
    stream = listen(guarded, places=5, authorization=f"Bearer {text}")
    push([{"type": "mail.send", "args": []}])
    assert stream.next()["type"] == "mail.send"
    assert stream.has_nothing


def test_a_revoked_key_ends_the_stream(guarded: Served) -> None:
    key, text = keys.create("worker", ["work"])
    stream = listen(guarded, authorization=f"Bearer {text}")
    (job,) = enqueue()
    assert stream.next()["id"] == job
    keys.revoke(key)
    failure = stream.end()
    assert (failure.code.name, failure.reason) == ("UNAUTHENTICATED", "unauthenticated")
    (later,) = enqueue()
    _, text = keys.create("other", ["work"])
    assert listen(guarded, "w2", authorization=f"Bearer {text}").next()["id"] == later


def test_a_key_that_loses_its_right_or_a_queue_ends_the_stream(guarded: Served) -> None:
    for name, value in (("scopes", ["read"]), ("queues", ["elsewhere"])):
        key, text = keys.create(f"without {name}", ["work"])
        stream = listen(guarded, authorization=f"Bearer {text}")
        setattr(key, name, value)
        key.save()
        assert stream.end().code.name == "PERMISSION_DENIED"


def test_a_worker_that_is_another_callers_by_now_ends_the_stream(guarded: Served) -> None:
    _, text = keys.create("worker", ["work"])
    other, _ = keys.create("other", ["work"])
    stream = listen(guarded, authorization=f"Bearer {text}")
    Worker.objects.update(owner=f"key:{other.pk}")
    (job,) = enqueue()
    assert stream.end().code.name == "PERMISSION_DENIED"
    assert Job.objects.get(pk=job).state == "available"


def test_too_many_streams_of_one_client(served: Served, settings: Any) -> None:
    settings.OJS = {**getattr(settings, "OJS", {}), "REALTIME_MAX_CONNECTIONS": 2}
    streams = [listen(served, f"w{i}") for i in range(2)]
    failure = refused(served, "StreamJobs", {"queues": ["default"], "worker_id": "w"})
    assert (failure.code.name, failure.reason) == ("RESOURCE_EXHAUSTED", "rate_limited")
    streams[0].leave()
    eventually(lambda: open_slots() == 1)
    enqueue(2)
    assert listen(served, "w9").next()["state"] == "active"


def test_the_server_stops(transactional_db: None, settings: Any) -> None:
    """Streams end with UNAVAILABLE; what was not sent is back; nothing of the loop is left."""
    settings.OJS = {**getattr(settings, "OJS", {}), "ALLOW_ANONYMOUS": True, "GRPC": True}
    enqueue(30)
    with serving() as served:
        streams = [listen(served, f"w{i}", places=4) for i in range(5)]
        for stream in streams:
            stream.next()
        served.run(served.server.stop(10))
        got = 0
        for stream in streams:
            failure = stream.end()
            assert (failure.code.name, failure.reason) == ("UNAVAILABLE", "backend_error")
            assert "shutting down" in failure.message
            got += 1 + len(stream.rest())
        assert Job.objects.filter(state="active").count() == got
        assert jobstream._streams is None
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("ojs-stream")], "they end")
    connections.close_all()


@pytest.mark.parametrize("told", [True, False])
def test_workers_are_told_to_terminate_where_the_site_says_so(
    transactional_db: None, settings: Any, told: bool
) -> None:  # fmt: skip
    settings.OJS = {"ALLOW_ANONYMOUS": True, "GRPC": True, "GRPC_TERMINATE_WORKERS": told}
    with serving() as served:
        for worker_id in ("streams", "fetches"):
            served.call("Heartbeat", {"worker_id": worker_id})
        stream = listen(served, "streams")
        served.run(served.server.stop(0))
        assert stream.end().code.name == "UNAVAILABLE"
    directives = dict(Worker.objects.values_list("pk", "directive"))
    assert directives == {"streams": "terminate" if told else "", "fetches": ""}
    connections.close_all()


def test_a_server_that_cannot_tell_its_workers_stops_all_the_same(
    transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*args: Any, **options: Any) -> None:
        raise OperationalError("away")

    settings.OJS = {"ALLOW_ANONYMOUS": True, "GRPC": True, "GRPC_TERMINATE_WORKERS": True}
    with serving() as served:
        stream = listen(served)
        monkeypatch.setattr(jobstream, "direct", away)
        served.run(served.server.stop(0))
        assert stream.end().code.name == "UNAVAILABLE"
    assert "could not be told to terminate" in caplog.text
    connections.close_all()


def test_a_storm_of_workers_that_come_and_go(served: Served) -> None:
    """Each job is done once, though streams are dropped at any moment; what a dropped one had is handed back."""
    total = 120
    jobs = set(enqueue(total))
    done: list[str] = []
    finished, lock = threading.Event(), threading.Lock()

    def work(number: int) -> None:
        turn = 0
        try:
            while not finished.is_set():
                turn += 1
                name = f"w{number}-{turn}"
                stream = listen(served, name, places=1 + number % 3)
                for _ in range(9):
                    try:
                        job = stream._found.get(timeout=0.5)
                    except Empty:
                        break
                    if turn % 3 == 0 and number % 2:
                        break  # with a job in its hands
                    served.call("Ack", {"job_id": job["id"], "worker_id": name})
                    with lock:
                        done.append(job["id"])
                        if len(done) == total:
                            finished.set()
                stream.leave()
                eventually(lambda name=name: not _streams_of(name))
                held = Job.objects.filter(worker_id=name, state="active")
                # The stream's own hand-back may come first, and then another worker has the job.
                requeue(list(held.values_list("pk", flat=True)), worker_id=name)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(done) == sorted(jobs)
    assert set(Job.objects.values_list("state", flat=True)) == {"completed"}


def _streams_of(worker_id: str) -> bool:
    streams = jobstream._streams
    return streams is not None and streams.knows([worker_id])


def test_a_process_without_threads_leaves_none_of_a_stream_behind(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last stream ends, and no thread can be started in which to wait for those that claim."""

    async def cannot(*args: Any) -> None:
        raise RuntimeError("can't start new thread")

    stream = listen(served)
    streams = jobstream._streams
    assert streams is not None
    monkeypatch.setattr(jobstream.asyncio, "to_thread", cannot)
    stream.leave()
    eventually(lambda: jobstream._streams is None)
    eventually(lambda: not (streams._claimer._thread.is_alive() or streams._asker._thread.is_alive()))
    assert streams._ear not in hooks.event_listeners


def test_a_stream_that_finds_no_thread_is_told_to_come_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*args: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(jobstream.JobStreams, "start", cannot)
    failure = refused(served, "StreamJobs", {"queues": ["default"], "worker_id": "w1"})
    assert failure.code is grpc.StatusCode.UNAVAILABLE
    assert (jobstream._streams, jobstream._users) == (None, 0)
