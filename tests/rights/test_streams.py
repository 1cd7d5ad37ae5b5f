"""What comes over connections that last: WebSockets, event streams and the streams of gRPC, to each kind of caller."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from django_ojs import keys
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.push import push
from django_ojs.queues.configuration import configure, pause, resume
from django_ojs.workerregistry.registration import register
from tests.realtime.conftest import do
from tests.realtime.listening import listen
from tests.realtime.sockets import Refused, connected
from tests.rights.calls import CALLS
from tests.rights.world import OTHER_QUEUE, OTHER_TYPE, OWN_QUEUE, OWN_TYPE, QUEUE_MARK, TYPE_MARK

pytestmark = pytest.mark.usefixtures("closed")
LIMITS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "queue": ({"queues": [OWN_QUEUE]}, [QUEUE_MARK]),
    "type": ({"job_types": [OWN_TYPE]}, [TYPE_MARK, "worker.", "queue."]),
    "both": ({"queues": [OWN_QUEUE], "job_types": ["ta.*"]}, [QUEUE_MARK, TYPE_MARK, "worker.", "queue."]),
}


def happen() -> str:
    """Something of another's of every kind, and last the end of a job of the caller's own; its id."""
    for queue, job_type in ((OTHER_QUEUE, OTHER_TYPE), (OTHER_QUEUE, OWN_TYPE), (OWN_QUEUE, OTHER_TYPE)):
        run(queue, job_type)
        pause(queue)
        resume(queue)
    register("w-qbx-tbx", {"queues": [OTHER_QUEUE], "job_types": [OTHER_TYPE]})
    return run(OWN_QUEUE, OWN_TYPE)


def run(queue: str, job_type: str) -> str:
    secret = f"secret-{queue}-{job_type}"
    (made,) = push([{"type": job_type, "queue": queue, "args": [secret], "meta": {"of": secret}}])
    assert not isinstance(made, Exception)
    assert made.row is not None
    fetch(Fetch([queue], ids=[made.row["id"]], worker_id="w-own"))
    ack([Ack(made.row["id"], result=json.dumps(secret))])
    return str(made.row["id"])


def key(*scopes: str, **limits: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {keys.create('-'.join(scopes), scopes, **limits)[1]}"}


def session(*codenames: str, **flags: Any) -> dict[str, str]:
    user = get_user_model().objects.create_user("ann", **flags)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return {"cookie": f"sessionid={client.cookies['sessionid'].value}", "origin": "http://testserver"}


async def opened(headers: dict[str, str]) -> int:
    """The status with which a WebSocket is refused; 200 if it opens."""
    try:
        async with connected(headers=headers):
            return 200
    except Refused as refused:
        return refused.status


def seen_until(job_id: str, frames: list[str]) -> bool:
    """Whether the end of this job is among what has come."""
    return any(job_id in frame and "job.completed" in frame for frame in frames)


@pytest.mark.usefixtures("database")
class TestOfEvents:
    @pytest.mark.parametrize("kind", list(LIMITS))
    async def test_a_websocket_brings_a_limited_key_its_own(self, kind: str) -> None:
        limits, beyond = LIMITS[kind]
        async with connected(headers=await do(key, "read", **limits)) as socket:
            await socket.ask({"action": "subscribe", "channel": "events"})
            for channel in ("all", f"queue:{OWN_QUEUE}"):
                await socket.ask({"action": "subscribe", "channel": channel})
            job_id, frames = await do(happen), []
            while not seen_until(job_id, frames):
                frames.append(json.dumps(await socket.take()))
        assert not [frame for frame in frames if any(mark in frame for mark in beyond)]

    @pytest.mark.parametrize("path", ["/events/stream", "/events", f"/queues/{OWN_QUEUE}/events"])
    @pytest.mark.parametrize("kind", list(LIMITS))
    async def test_an_event_stream_brings_a_limited_key_its_own(self, kind: str, path: str) -> None:
        limits, beyond = LIMITS[kind]
        await do(configure, OWN_QUEUE, {})
        headers = {**await do(key, "read", **limits), "accept": "text/event-stream"}
        async with listen(path, **headers) as stream:
            assert stream.status == 200
            job_id, frames = await do(happen), []
            while not seen_until(job_id, frames):
                frames.append(repr(await stream.event()))
        assert not [frame for frame in frames if any(mark in frame for mark in beyond)]

    @pytest.mark.parametrize(
        "rights, flags, status",
        [
            ((), {"is_staff": True}, 403), (("view_queue",), {}, 403), (("change_job", "add_job"), {}, 403),
            (("view_job",), {}, 200), (("view_event",), {}, 200), (("ojs_read",), {}, 200),
            ((), {"is_superuser": True}, 200),
        ],
    )  # fmt: skip
    async def test_a_user_needs_a_permission_to_listen(self, rights: Any, flags: Any, status: int) -> None:
        headers = await do(session, *rights, **flags)
        async with listen("/events/stream", **headers) as stream:
            assert stream.status == status
        assert await opened(headers) == status

    @pytest.mark.parametrize("scope", ["push", "work", "admin.write", "admin.purge"])
    async def test_a_key_needs_the_scope_to_listen(self, scope: str) -> None:
        headers = await do(key, scope)
        for call in CALLS:
            if call.streams and call.route.startswith("events/"):
                async with listen(f"/{call.route}", **headers) as stream:
                    assert stream.status == 403
        assert await opened(headers) == 403

    async def test_the_jobs_of_others_have_no_streams(self) -> None:
        job_id = await do(run, OTHER_QUEUE, OTHER_TYPE)
        paths = [call.route.replace("<job_id>", job_id) for call in CALLS if call.streams and "<job_id>" in call.route]
        assert len(paths) == 4
        for scope, (limits, _) in zip(("read", "admin", "admin.read"), LIMITS.values(), strict=True):
            headers = await do(key, "read", scope, **limits)
            for path in paths:
                async with listen(f"/{path}", **headers) as stream:
                    assert stream.status == 403
            async with connected(headers=headers) as socket:
                told = await socket.ask({"action": "subscribe", "channel": f"job:{job_id}"})
                assert told["type"] == "error"

    async def test_the_statistics_tell_a_limited_key_of_its_own_workers(self) -> None:
        await do(happen)
        await do(register, "w-shared", {"queues": [OWN_QUEUE, OTHER_QUEUE]})
        async with listen("/admin/stats/stream", **await do(key, "admin", queues=[OWN_QUEUE])) as stream:
            told = repr((await stream.event()).data)
        assert "w-shared" in told
        assert QUEUE_MARK not in told
        async with listen("/admin/stats/stream", **await do(key, "admin", "read", job_types=[OWN_TYPE])) as stream:
            assert stream.status == 403


@pytest.mark.parametrize("kind", list(LIMITS))
def test_the_streams_of_grpc_bring_a_limited_key_its_own(guarded: Any, kind: str) -> None:
    from tests.grpc.streaming import Listener, refused

    limits, beyond = LIMITS[kind]
    text = {"x_ojs_api_key": keys.create("limited", ["read", "work"], **limits)[1]}
    events = Listener(guarded, "StreamEvents", {}, **text)
    job_id, frames = happen(), []
    while not seen_until(job_id, frames):
        frames.append(repr(events.next()))
    events.leave()
    assert not [frame for frame in frames if any(mark in frame for mark in beyond)]
    if "queues" in limits:
        for rpc, asked in (
            ("StreamJobs", {"queues": [OTHER_QUEUE], "worker_id": "w"}),
            ("StreamEvents", {"queues": [OTHER_QUEUE]}),
        ):
            assert refused(guarded, rpc, asked, **text).code.name == "PERMISSION_DENIED"
    push([{"type": job_type, "queue": OWN_QUEUE, "args": []} for job_type in (OTHER_TYPE, OWN_TYPE)])
    jobs = Listener(guarded, "StreamJobs", {"queues": [OWN_QUEUE], "worker_id": "w", "max_concurrent": 1}, **text)
    found = jobs.next()
    jobs.leave()
    assert found["type"] == (OTHER_TYPE if kind == "queue" else OWN_TYPE)


@pytest.mark.parametrize("scope", ["push", "admin.read", "admin.write", "admin.purge"])
def test_the_streams_of_grpc_take_their_scopes(guarded: Any, scope: str) -> None:
    from tests.grpc.streaming import refused

    text = keys.create("one", [scope])[1]
    for rpc, asked in (("StreamJobs", {"queues": ["q"], "worker_id": "w"}), ("StreamEvents", {})):
        assert refused(guarded, rpc, asked, x_ojs_api_key=text).code.name == "PERMISSION_DENIED"
        assert refused(guarded, rpc, asked).code.name == "UNAUTHENTICATED"
