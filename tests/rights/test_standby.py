"""What decides rights, identity, limits or the state of a job is read where it is written.

A router sends the reads of our tables to a replica that stands still. No route, RPC, page, action and command reaches
it.
"""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command, get_commands
from django.db import transaction
from django.test import Client

from django_ojs import job, keys
from django_ojs.jobs.push import push
from django_ojs.models import APIKey
from django_ojs.registry import Registry
from django_ojs.scheduler.scheduler import Scheduler
from tests.realtime.conftest import do, enqueue
from tests.realtime.listening import listen
from tests.realtime.sockets import WS, connected
from tests.rights.calls import CALLS, PUBLIC_RPCS, RPCS, filled
from tests.rights.standby import Standby, standby
from tests.rights.test_pages import addresses, furnish, sent
from tests.rights.test_scopes import bearer, session, statuses
from tests.rights.test_streams import key
from tests.rights.world import World, forget
from tests.worker.conftest import WorkerThread, handlers, start_worker

__all__ = ["handlers", "standby", "start_worker"]
pytestmark = [pytest.mark.django_db, pytest.mark.slow]


def test_no_call_reaches_it(world: World, standby: Standby) -> None:
    wrong = []
    for client in (bearer("admin"), session("root", is_superuser=True)):
        for call in CALLS:
            forget()
            status = statuses([call], client, world)[str(call)]
            wrong += [f"{call}: {place}" for place in standby.take()]
            wrong += [] if call.success(status) else [f"{call}: {status}"]
    assert not wrong, "\n".join(wrong)


def test_no_rpc_reaches_it(world: World, standby: Standby) -> None:
    pytest.importorskip("grpc")
    from tests.rights.rpcs import outcome

    _, text = keys.create("all", ["admin"])
    wrong = []
    for rpc, document in [(rpc, document) for rpc, (_, document) in RPCS.items()] + [(rpc, {}) for rpc in PUBLIC_RPCS]:
        forget()
        code = outcome(rpc, document, world.own, text)
        wrong += [f"{rpc}: {place}" for place in standby.take()] + ([] if code == "OK" else [f"{rpc}: {code}"])
    assert not wrong, "\n".join(wrong)


@pytest.mark.wide
def test_no_page_and_no_action_reaches_it(world: World, standby: Standby, settings: Any) -> None:
    furnish(settings)
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("root"))
    wrong = []
    for method in ("GET", "POST"):
        for name, to in addresses(world):
            forget()
            status, _, _ = sent(client, method, to, set())
            wrong += [f"{method} {name}: {place}" for place in standby.take()]
            wrong += [f"{method} {name}: {status}"] if status >= 500 else []
    assert not wrong, "\n".join(wrong)


#: What operators type, by the command. Of the last, tests below do the work, or they ask no database of the site's.
COMMANDS: dict[str, list[str]] = {
    "ojs_apikey": ["create one --scope read", "list", "revoke stranger --yes"],
    "ojs_bulk": ["list", "show {action}", "cancel {action}"],
    "ojs_cron": ["sync --yes", "list", "trigger n-{name}", "disable n-{name}", "enable n-{name}"],
    "ojs_dead_letter": [
        "list", "retry {job:discarded} --yes", "delete --all --yes", "rules", "set-rule one --queue {queue}",
        "preview-rule n-{name}", "delete-rule n-{name}",
    ],
    "ojs_doctor": ["--json"],
    "ojs_emit": ["order.paid {name}"],
    "ojs_events": ["--limit 5", "--job {job:completed}", "--since 1h --json"],
    "ojs_jobs": [
        "list", "list --queue {queue} --json", "show {job:completed}", "attempts {job:retryable}", "logs {job:active}",
        "cancel --queue {queue} --yes", "retry {job:discarded} --yes", "purge --state cancelled --yes",
        "run {job:scheduled} --yes", "cancel --all --background --yes",
    ],
    "ojs_maintenance": ["status", "on --yes", "off --yes"],
    "ojs_queues": [
        "list", "pause {queue}", "resume {queue}", "config {queue}", "config {queue} --set concurrency=7",
    ],
    "ojs_rate_limits": ["list", "list --blocked", "lift queue:{queue}"],
    "ojs_status": ["", "--json", "--max-backlog 9"],
    "ojs_workers": ["list", "quiet w-{name}", "resume w-{name}", "restart w-{name}", "terminate w-{name} --yes"],
    "ojs_worker": [], "ojs_scheduler": [], "ojs_grpc": [], "ojs_validate": [], "ojs_testserver": [],
    "ojs_moving_in": [],
}  # fmt: skip


def test_the_table_has_every_command() -> None:
    assert set(COMMANDS) == {name for name, app in get_commands().items() if app == "django_ojs"}


def test_no_command_reaches_it(world: World, standby: Standby) -> None:
    wrong = []
    for name, lines in COMMANDS.items():
        for line in lines:
            forget()
            words = shlex.split(filled(line.replace("{action}", world.own.action), world.own))
            out = io.StringIO()
            with transaction.atomic():
                try:
                    call_command(name, *words, stdout=out, stderr=out)
                except CommandError as refused:
                    wrong.append(f"{name} {line}: {refused}")
                except SystemExit as ended:  # as the doctor, who has found something
                    wrong += [] if name == "ojs_doctor" else [f"{name} {line}: {ended} {out.getvalue()}"]
                transaction.set_rollback(True)
            wrong += [f"{name} {line}: {place}" for place in standby.take()]
    assert not wrong, "\n".join(wrong)


def test_no_worker_and_no_scheduler_reaches_it(
    start_worker: Callable[..., WorkerThread], handlers: Registry, standby: Standby
) -> None:
    done: list[int] = []

    @job("site.note")
    def note(number: int) -> None:
        done.append(number)

    push([{"type": "site.note", "args": [number], "scheduled_at": "2020-01-01T00:00:00Z"} for number in (1, 2)])
    start_worker(until_empty=True).wait()
    Scheduler("here").run_once()
    assert (sorted(done), standby.take()) == ([1, 2], [])


@pytest.mark.usefixtures("database")
async def test_no_stream_and_no_socket_reaches_it(standby: Standby) -> None:
    headers = await do(key, "admin")
    job_id = (await enqueue("ta.run", queue="qa"))[0]
    for call in CALLS:
        if call.streams:
            path = call.route.replace("<job_id>", job_id).replace("<name>", "qa")
            async with listen(f"/{path}", **headers, accept="text/event-stream") as stream:
                assert stream.status == 200, path
                await enqueue("ta.run", queue="qa")
                if "<job_id>" not in call.route:  # another job's events are not in the stream of this one
                    await stream.event()
    ticket = json.loads((await do(Client(headers=headers).post, "/ojs/v1/events/ticket")).content)["ticket"]
    async with connected(f"{WS}?ticket={ticket}") as socket:
        await socket.ask({"action": "subscribe", "channel": f"job:{job_id}"})
        await socket.ask({"action": "subscribe", "channel": "all"})
        await enqueue("ta.run", queue="qa")
        await socket.take()
    assert standby.take() == []


def test_no_stream_of_grpc_reaches_it(guarded: Any, standby: Standby) -> None:
    from tests.grpc.streaming import Listener

    given = {"x_ojs_api_key": keys.create("all", ["admin"])[1]}
    events = Listener(guarded, "StreamEvents", {}, **given)
    push([{"type": "ta.run", "queue": "qa", "args": []}])
    events.next()
    jobs = Listener(guarded, "StreamJobs", {"queues": ["qa"], "worker_id": "w", "max_concurrent": 1}, **given)
    jobs.next()
    jobs.leave()
    events.leave()
    assert standby.take() == []


def test_a_revoked_key_is_refused_and_a_new_one_is_let_in(world: World, standby: Standby) -> None:
    _, text = keys.create("new", ["read"])
    client = Client(headers={"Authorization": f"Bearer {text}"})
    assert client.get("/ojs/v1/jobs").status_code == 200
    keys.revoke(APIKey.objects.get(name="new"))
    assert client.get("/ojs/v1/jobs").status_code == 401
