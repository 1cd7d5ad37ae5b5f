"""The filters of `ojs_jobs` and `ojs_dead_letter` that the admin's list has, too: tags, texts, times, their limits."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
import uuid
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_ojs import clock, enqueue, get_job
from django_ojs.client.handle import JobHandle
from django_ojs.errors import OJSError
from django_ojs.jobs import search
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.filterfields import COMMAND
from django_ojs.jobs.finish import Failure, fail_one
from django_ojs.jobs.push import push
from django_ojs.jobs.selection import JobFilter, dead_letters, names_in, with_error_type
from django_ojs.models import Job, Workflow
from django_ojs.rules.ids import first_at
from django_ojs.states import State
from django_ojs.workflows import workflow
from tests.conftest import FrozenClock

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> tuple[str, str]:
    """What it said, and what it said beside."""
    out, beside = io.StringIO(), io.StringIO()
    call_command(*arguments, stdout=out, stderr=beside, no_color=True)
    return out.getvalue().strip(), beside.getvalue().strip()


def ids(*arguments: str, command: str = "ojs_jobs") -> list[str]:
    return [job["id"] for job in json.loads(run(command, "list", "--json", *arguments)[0])]


def names(*handles: JobHandle) -> list[str]:
    return [str(handle.id) for handle in handles]


def discarded(*args: Any, **options: Any) -> JobHandle:
    handle = enqueue("mail.send", *args, retry={"max_attempts": 1}, priority=100, **options)
    (row,) = fetch(Fetch([handle.queue]))
    fail_one(Failure(row["id"], {"type": "SMTPError", "message": "no route"}, "", row["attempt"]))
    return handle.refresh()


def made(*args: Any, **attributes: Any) -> JobHandle:
    """A job whose id has the time of the frozen clock."""
    text = str(uuid.UUID(int=first_at(clock.now()).int | 7 << 76 | 2 << 62 | next(_numbers)))
    (row,) = push([{"id": text, "type": "a.b", "args": list(args), **attributes}])
    assert not isinstance(row, OJSError)
    return get_job(text)


_numbers = itertools.count(1)


@pytest.fixture
def narrow(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches look at four jobs, two at first."""
    monkeypatch.setattr(search, "FIRST", 2)
    settings.OJS = {"SEARCH_DEPTH": 4}


def test_a_tag_is_a_whole_one_and_a_text_is_in_arguments_or_meta() -> None:
    nightly, other = enqueue("a.b", tags=["nightly", "big"]), enqueue("a.b", tags=["nightly-2"])
    ann, meta = enqueue("a.b", "ann@example.com"), enqueue("a.b", meta={"to": "bob@example.com"})
    assert ids("--tag", "nightly") == names(nightly)
    assert ids("--tag", "nightly-2", "--type", "a.*") == names(other)
    assert ids("--search", "@example.com") == names(meta, ann)
    assert ids("--search", "ann@", "--tag", "nightly") == []
    assert ids(*names(ann, other)) == names(ann, other)


def test_text_with_quotes_percent_signs_and_letters_of_all_tongues_is_found() -> None:
    for text in ('say "hi"', "50%_off", "Grüße, 東京", "back\\slash"):
        handle = enqueue("a.b", text)
        assert ids("--search", text) == names(handle)


def test_dead_letters_are_searched_too() -> None:
    tagged, plain = discarded("x@example.com", tags=["nightly"]), discarded("y")
    enqueue("mail.send", "x@example.com", tags=["nightly"])
    assert ids("--tag", "nightly", command="ojs_dead_letter") == names(tagged)
    assert ids("--search", "example.com", command="ojs_dead_letter") == names(tagged)
    assert run("ojs_dead_letter", "retry", "--search", "example.com", "--yes")[0] == "1 job retried."
    assert [str(job.refresh().state) for job in (tagged, plain)] == ["available", "discarded"]


def test_a_search_says_how_far_it_looked_and_the_next_goes_on(narrow: None, frozen_clock: FrozenClock) -> None:
    wanted = []
    for number in range(10):
        frozen_clock.advance(seconds=1)
        wanted.append(made("needle" if number in (1, 8) else "hay"))
    out, beside = run("ojs_jobs", "list", "--json", "--search", "needle")
    assert [job["id"] for job in json.loads(out)] == names(wanted[8])
    assert beside.startswith("Looked at the newest 4 jobs, back to 2026-")
    further = beside.partition("--until ")[2].split()[0]
    out, beside = run("ojs_jobs", "list", "--search", "needle", "--until", further)
    assert "There are no such jobs." in out
    further = beside.partition("--until ")[2].split()[0]
    assert ids("--search", "needle", "--until", further) == names(wanted[1])


def test_what_acts_means_only_what_was_looked_at(narrow: None, frozen_clock: FrozenClock) -> None:
    handles = []
    for _ in range(6):
        frozen_clock.advance(seconds=1)
        handles.append(enqueue("a.b", "needle"))
    out, beside = run("ojs_jobs", "cancel", "--search", "needle", "--dry-run")
    assert out == "4 jobs would be cancelled."
    assert beside.startswith("Looked at the newest 4 jobs")
    assert beside.endswith("Only what was looked at is meant.")
    assert run("ojs_jobs", "cancel", "--search", "needle", "--yes")[0] == "4 jobs cancelled."
    assert [str(handle.refresh().state) for handle in handles] == ["available"] * 2 + ["cancelled"] * 4


def test_what_is_hidden_is_not_found_by_its_text(settings: Any) -> None:
    settings.OJS = {"REDACT": {"keys": ["password"]}}
    handle = enqueue("a.b", {"password": "hunter2", "user": "ann"})
    assert ids("--search", "hunter2") == []
    assert ids("--search", "ann") == names(handle)


def test_since_and_until_mean_the_making_and_of_ended_jobs_the_end(frozen_clock: FrozenClock) -> None:
    old = made(scheduled_at="2027-01-01T00:00:00Z")
    frozen_clock.advance(hours=3)
    new = made()
    old.cancel()
    assert ids("--until", "2h") == names(old)
    assert ids("--since", "2h") == names(new)
    assert ids("--since", "2h", "--state", "cancelled") == names(old)  # it ended just now
    assert ids("--until", "2h", "--state", "cancelled") == []
    assert run("ojs_jobs", "purge", "--until", "2h", "--dry-run")[0] == "0 jobs would be deleted."
    assert ids("--since", "2026-01-15T14:00:00Z") == names(new)
    assert ids("--since", "2026-01-17") == []
    assert ids("--before", "1h") == []  # the scheduled one was never enqueued


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tag", ""),
        ("--search", " "),
        ("--search", "a\0b"),
        ("--search", "x" * 1001),
        ("--since", "soon"),
        ("--since", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_for_is_refused(arguments: tuple[str, str]) -> None:
    with pytest.raises(CommandError, match=r"argument --\w+: "):
        run("ojs_jobs", "list", *arguments)


def test_members_of_a_workflow_also_by_the_id_that_its_client_gave_it() -> None:
    enqueue("mail.send")
    flow = workflow.create({"id": "order-17", "type": "chain", "steps": [{"type": "mail.send", "args": []}]}).workflow
    (member,) = Job.objects.filter(workflow_id=flow.pk).values_list("pk", flat=True)
    for asked in ("order-17", str(flow.pk)):
        wanted = JobFilter({"states": ["available"], "workflow": asked})
        again = JobFilter.from_json(json.loads(json.dumps(wanted.to_json())))
        assert [*again.jobs("default").values_list("pk", flat=True)] == [member]
    with pytest.raises(CommandError, match="--workflow: 'order 17' must be an id"):
        run("ojs_jobs", "list", "--workflow", "order 17")


def test_a_filter_survives_being_written_down() -> None:
    now = clock.now()
    enqueue("mail.send", "a", tags=["t"], queue="q")
    workflow.create({"type": "chain", "steps": [{"type": "mail.send", "args": []}]})
    whole = JobFilter({
        "states": (State.AVAILABLE, State.ACTIVE), "type": "mail.*", "queue": "q", "last_worker": "w", "worker_id": "w",
        "error": "e", "workflow": Workflow.objects.get().pk, "error_type": "E", "tag": "t", "text": "a", "since": now,
        "until": now, "created_since": now, "created_until": now, "enqueued_after": now,
        "enqueued_before": now + dt.timedelta(microseconds=7), "only_queues": ["q"], "only_types": ["mail.*", "a.b"],
        "edge": "01990000-0000-7000-8000-000000000000", "priority": 0, "older_than": now, "meta": {"a": [1]},
    })  # fmt: skip
    few = JobFilter({"states": "available", "type": "mail.*", "tag": "t"})
    for wanted in (whole, dead_letters(), few, JobFilter({"states": list(State), "only_queues": []})):
        again = JobFilter.from_json(json.loads(json.dumps(wanted.to_json())))
        assert again == wanted
        assert again.to_json() == wanted.to_json()
        assert list(again.jobs("default").filter(again.rest())) == list(wanted.jobs("default").filter(wanted.rest()))
    with pytest.raises(KeyError):
        JobFilter.from_json({"type": "mail.*"})
    with pytest.raises(KeyError):
        JobFilter.from_json({"type": "mail.*", "states": []})


def test_a_filter_keeps_within_the_limits_of_who_asks() -> None:
    mail, report = enqueue("mail.send", queue="a"), enqueue("report.make", queue="b")

    def found(**limits: Any) -> set[Any]:
        return set(JobFilter({"states": ["available"], **limits}).jobs().values_list("pk", flat=True))

    assert found() == {mail.id, report.id}
    assert found(only_queues=["a"]) == {mail.id}
    assert found(only_types=["report.*"]) == {report.id}
    assert found(only_queues=["a"], only_types=["report.*"]) == found(only_queues=[]) == set()
    assert not Job.objects.filter(with_error_type("SMTPError")).exists()


@pytest.mark.parametrize("name", names_in(COMMAND))
def test_an_empty_filter_is_refused_and_not_left_out(name: str) -> None:
    """It is a variable of a shell that is not set: the command would change more jobs."""
    handle = enqueue("a.b", delay=60)
    for text in ("", " "):
        with pytest.raises(CommandError, match=rf"argument (--\S+/)*--{name.replace('_', '-')}\b"):
            run("ojs_jobs", "cancel", "--yes", "--type=a.b", f"--{name.replace('_', '-')}={text}")
    assert handle.refresh().state == "scheduled"
