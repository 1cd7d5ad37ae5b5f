"""What a limited key reaches: what it names, and what its calls show, count, meet and change on their way.

Each call is made twice: about what is the key's own, and about another's. No answer may have the letters of what lies
outside of the limits (`world`), no row that has them may change, and more of such rows may change no answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from django_ojs import clock, keys
from django_ojs.queues import configuration
from tests.rights import world as rows
from tests.rights.calls import CALLS, RPCS, Call
from tests.rights.world import QUEUE_MARK, TYPE_MARK, Side, World, forget

pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.slow]
LIMITS: dict[str, dict[str, Any]] = {
    "queue": {"queues": [rows.OWN_QUEUE]},
    "type": {"job_types": [rows.OWN_TYPE, "ta.more.*"]},
    "both": {"queues": [rows.OWN_QUEUE], "job_types": ["ta.*"]},
}
#: What of an answer is another one each time.
_VOLATILE = re.compile(rb'"(request_id|uptime_seconds|computed_at|query_time_ms)":("[^"]*"|[0-9.]+),?')


class Limited:
    """A key with every scope and one kind of limit."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.key, self.text = keys.create(f"limited {kind}", ["admin"], **LIMITS[kind])
        self.client = Client(headers={"Authorization": f"Bearer {self.text}"})
        self.by_queue, self.by_type = kind != "type", kind != "queue"
        marks = [mark for mark, is_ in ((QUEUE_MARK, self.by_queue), (TYPE_MARK, self.by_type)) if is_]
        # As words: within the random letters of a ticket or a key they mean nothing.
        self.marks = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(marks)})(?![A-Za-z0-9])")
        rows.own_worker(self.key)
        self.before = rows.snapshot()

    def strangers(self, world: World) -> list[Side]:
        """The sides of others: all of it is, or only its queue, or only its type."""
        found = ([world.own_type] if self.by_queue else []) + ([world.own_queue] if self.by_type else [])
        return found if len(found) > 1 else [world.other, *found]

    def may(self, call: Call) -> bool:
        """Whether it may make the call about what is its own."""
        return {"-": True, "queue": not self.by_type, "figures": not self.by_type, "type": not self.by_queue,
                "all": False}[call.reach]  # fmt: skip

    def names_beyond(self, call: Call, side: Side) -> bool:
        """Whether the path of the call names what lies outside of the limits, where it is about this side."""
        if "queues/<name>" in call.route:
            return self.by_queue and side.queue == rows.OTHER_QUEUE
        if "schemas/<name>" in call.route:  # a schema holds in all queues, and so for keys of one queue, too
            return self.by_type and side.type == rows.OTHER_TYPE
        return "<" in call.route

    def marked(self, text: str) -> bool:
        return self.marks.search(text) is not None


@pytest.fixture(params=list(LIMITS))
def limited(request: Any, world: World) -> Limited:
    return Limited(request.param)


@contextmanager
def undone() -> Iterator[None]:
    """Undo what was done to the database, and forget what was remembered of it."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
    forget()


def outcome(limited: Limited, act: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes, set[str]]:
    """The status of what is done, what it says, and the rows that it has changed, for which all of them are read if
    anything was written."""
    with undone():
        before = rows.written()
        status, content = act()
        changed = set() if rows.written() == before else limited.before ^ rows.snapshot()
    return status, content, changed


def over_http(call: Call, limited: Limited, side: Side, key: str = "") -> Callable[[], tuple[int, bytes]]:
    def act() -> tuple[int, bytes]:
        response = call.send(limited.client, side, key=key)
        return response.status_code, response.content

    return act


def test_calls_about_its_own_show_and_change_nothing_else(world: World, limited: Limited) -> None:
    wrong = []
    for call in CALLS:
        status, content, changed = outcome(limited, over_http(call, limited, world.own))
        beyond = [row[:400] for row in changed if limited.marked(row)]
        fits = call.success(status) if limited.may(call) else status in (403, 404)
        if limited.marked(content.decode()) or beyond or not fits:
            wrong.append(f"{call}: {status} {content[:400]!r} {beyond[:2]}")
    assert not wrong, "\n".join(wrong)


def test_calls_about_anothers_are_refused_and_change_nothing(world: World, limited: Limited) -> None:
    """A call that names something is refused. One that asks for many is answered that there are none."""
    wrong = []
    for side in limited.strangers(world):
        for call in CALLS:
            status, content, changed = outcome(limited, over_http(call, limited, side))
            beyond = [row[:400] for row in changed if limited.marked(row)]
            shown = side.secret.encode() in content or b"secret-qbx-tbx" in content
            if "schemas" in call.route and not limited.by_type:
                shown = False
            refused = status in (403, 404) or not limited.names_beyond(call, side)
            if shown or beyond or status >= 500 or not refused:
                wrong.append(f"{call} of {side.queue}, {side.type}: {status} {content[:400]!r} {beyond[:2]}")
    assert not wrong, "\n".join(wrong)


def test_more_of_anothers_changes_no_answer(world: World, limited: Limited) -> None:
    clock.freeze(clock.now())
    looks = [call for call in CALLS if call.method == "GET" and not call.streams]

    def answers() -> dict[str, bytes]:
        found = {}
        for call in looks:
            forget()
            found[str(call)] = _VOLATILE.sub(b"", call.send(limited.client, world.own).content)
        return found

    before = answers()
    rows.more(world, queue=limited.by_queue, job_type=limited.by_type)
    after = answers()
    wrong = {name: (before[name][:600], after[name][:600]) for name in before if before[name] != after[name]}
    assert not wrong, "\n".join(f"{name}: {answers}" for name, answers in wrong.items())


def pushes(document: dict[str, Any]) -> dict[str, tuple[str, str, Any]]:
    """Every call that pushes a job, by its name: method, path and body."""
    step = {**document, "options": {"queue": document["queue"]}}
    schedule = {**document, "cron": "0 4 * * *"}
    return {
        "one": ("POST", "/jobs", document),
        "batch": ("POST", "/jobs/batch", {"jobs": [document]}),
        "bulk": ("POST", "/jobs/bulk", {"jobs": [document]}),
        "workflow": ("POST", "/workflows", {"type": "chain", "name": "flow", "steps": [step]}),
        "schedule": ("PUT", "/cron/n-new", schedule),
    }


def push(limited: Limited, document: dict[str, Any], name: str) -> Callable[[], tuple[int, bytes]]:
    """One of the calls; what a schedule pushes is pushed at once."""

    def act() -> tuple[int, bytes]:
        method, path, body = pushes(document)[name]
        response = limited.client.generic(method, f"/ojs/v1{path}", json.dumps(body), content_type="application/json")
        if name == "schedule" and response.status_code < 300:
            response = limited.client.post("/ojs/v1/cron/n-new/trigger", {}, content_type="application/json")
        return response.status_code, response.content

    return act


@pytest.mark.parametrize("name", list(pushes({"queue": ""})))
def test_a_push_meets_and_ends_nothing_of_another(world: World, limited: Limited, name: str) -> None:
    """It names what is its own, and its unique policy, its queue's bound or its rate limit reaches further."""
    own = {"type": world.own.type, "queue": world.own.queue}
    met = [
        {**own, "args": [rows.word(side.queue, side.type)], "unique": {"keys": ["args"], "on_conflict": on_conflict}}
        for side in limited.strangers(world)
        for on_conflict in ("ignore", "reject", "replace", "replace_except_schedule")
    ]
    limits = [f"queue:{rows.OTHER_QUEUE}", f"type:{rows.OTHER_TYPE}"]
    met += [{**own, "args": [], "rate_limit": {"key": key, "concurrency": 1}} for key in limits]
    bounded = {"backpressure": {"max_depth": 1, "strategy": "drop_oldest"}}
    wrong = []
    for document in met:
        status, content, changed = outcome(limited, push(limited, document, name))
        beyond = [row[:400] for row in changed if limited.marked(row)]
        told = limited.marked(content.decode().replace(document.get("rate_limit", {}).get("key", "\0"), ""))
        stored = [row for row in changed if row.startswith("Job ") and "rate_limit" in document]
        if told or b'"existing_' in content or beyond or stored or status >= 500:
            wrong.append(f"{document}: {status} {content[:400]!r} {beyond[:2]}")
    configuration.configure(world.own.queue, bounded)
    forget()
    limited.before = rows.snapshot()
    status, content, changed = outcome(limited, push(limited, {**own, "args": []}, name))
    beyond = [row[:400] for row in changed if limited.marked(row)]
    if limited.marked(content.decode()) or beyond or status >= 500:
        wrong.append(f"bounded: {status} {content[:400]!r} {beyond[:2]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", ["queue:", "type:"])
def test_the_limits_of_its_own_queue_or_type_are_its_own(world: World, limited: Limited, kind: str) -> None:
    """The table names the limit of the queue; of a type it is the same, for keys that are limited to types alone."""
    for side, may in (
        (world.own, not (limited.by_type if kind == "queue:" else limited.by_queue)),
        (world.other, False),
    ):
        named = kind + (side.queue if kind == "queue:" else side.type)
        for call in CALLS:
            if "<key>" in call.route:
                status, _, changed = outcome(limited, over_http(call, limited, side, named))
                assert (status < 300) is may, (str(call), named, status)
                assert may or not changed


def test_rpcs_reach_what_the_calls_reach(world: World, limited: Limited) -> None:
    pytest.importorskip("grpc")
    from tests.rights.rpcs import sent

    may = {str(call): limited.may(call) for call in CALLS}
    wrong = []

    def over_grpc(rpc: str, document: Any, side: Side) -> Callable[[], tuple[int, bytes]]:
        def act() -> tuple[int, bytes]:
            code, said = sent(rpc, document, side, limited.text)
            return {"OK": 200, "PERMISSION_DENIED": 403, "NOT_FOUND": 404}.get(code, 400), said

        return act

    for rpc, (call, document) in RPCS.items():
        status, content, changed = outcome(limited, over_grpc(rpc, document, world.own))
        if limited.marked(content.decode("utf-8", "replace")) or any(map(limited.marked, changed)):
            wrong.append((rpc, "own", status, content[:300]))
        if (status in (403, 404)) is may[call]:
            wrong.append((rpc, "own", status, content[:300]))
        for side in limited.strangers(world) if document else ():
            status, content, changed = outcome(limited, over_grpc(rpc, document, side))
            if status not in (403, 404) or side.secret.encode() in content or any(map(limited.marked, changed)):
                wrong.append((rpc, side.queue, side.type, status, content[:300]))
    assert not wrong, "\n".join(map(str, wrong))
