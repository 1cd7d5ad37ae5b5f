"""Who takes part in operations: telemetry once it has subscribed, a site's own listener, or nobody."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from django_ojs import hooks, telemetry
from django_ojs.events.catalogue import Record
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail
from django_ojs.jobs.push import push
from django_ojs.jobs.push_group import push_one
from django_ojs.workflows.workflow import create

PLACES = (hooks.around_push, hooks.around_work_of_push, hooks.around_workflow, hooks.around_later_steps,
          hooks.event_listeners)  # fmt: skip
JOB: dict[str, Any] = {"type": "a.b", "args": [], "queue": "q"}


@pytest.fixture
def nobody() -> Iterator[None]:
    """No subscriber at all."""
    kept: list[list[Any]] = [list(place) for place in PLACES]
    for place in PLACES:
        place.clear()
    yield
    for place, subscribers in zip(PLACES, kept, strict=True):
        place[:] = subscribers  # type: ignore[index]


class Listener:
    columns: Sequence[str] = ("id", "type", "queue", "state", "attempt", "worker_id", "trace_id", "workflow_id",
                              "started_at")  # fmt: skip

    def __init__(self, *events: str) -> None:
        self.events, self.told = events, list[str]()

    def wants(self, event: str) -> bool:
        return event in self.events

    def notify(self, records: Sequence[Record], using: str) -> None:
        self.told += [record.type for record in records]


def a_life() -> None:
    """A job that is completed, and one that fails for good."""
    push([JOB, JOB])
    first, second = fetch(Fetch(["q"], count=2, worker_id="w"))
    ack_one(Ack(first["id"]))
    fail([Failure(second["id"], {"message": "no", "retryable": False})])


def test_telemetry_has_subscribed_and_does_so_once() -> None:
    before = [list(place) for place in PLACES]
    assert all(before)
    telemetry.subscribe()
    assert [list(place) for place in PLACES] == before


@pytest.mark.django_db
@pytest.mark.usefixtures("nobody")
def test_operations_need_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> Any:
        raise AssertionError("nobody is there to be told")

    monkeypatch.setattr(hooks, "notify", never)
    a_life()
    create({"type": "chain", "steps": [JOB, JOB]})


@pytest.mark.django_db
@pytest.mark.usefixtures("nobody")
def test_a_listener_gets_the_events_that_it_wants_and_those_that_are_there_anyway() -> None:
    everything, nothing = Listener("job.enqueued", "job.started", "job.completed"), Listener()
    hooks.subscribe(hooks.event_listeners, everything)
    hooks.subscribe(hooks.event_listeners, nothing)
    a_life()
    anyway = ["job.failed", "job.discarded"]
    own = ["job.enqueued", "job.enqueued", "job.started", "job.started", "job.completed"]
    assert [event for event in everything.told if event.startswith("job.")] == [*own, *anyway]
    assert [event for event in nothing.told if event.startswith("job.")] == anyway


@pytest.mark.django_db
@pytest.mark.usefixtures("nobody")
def test_the_last_subscriber_is_the_outermost() -> None:
    seen: list[str] = []

    def subscriber(name: str) -> hooks.PushSubscriber:
        @contextlib.contextmanager
        def around(documents: Sequence[Any]) -> Iterator[tuple[Sequence[Any], hooks.Conclude]]:
            seen.append(f"{name} begins")
            yield (
                [{**document, "meta": {"by": name}} for document in documents],
                lambda outcomes: seen.append(f"{name} is told of {outcomes[0].status}"),
            )
            seen.append(f"{name} ends")

        return around

    for name in ("inner", "outer"):
        hooks.subscribe(hooks.around_push, subscriber(name))
    for act in (lambda: push([JOB])[0], lambda: push_one(JOB)):
        done = act()
        assert seen == [
            "outer begins", "inner begins", "inner is told of created", "outer is told of created", "inner ends",
            "outer ends",
        ]  # fmt: skip
        assert done.row is not None
        assert '"inner"' in done.row["meta"]
        seen.clear()
