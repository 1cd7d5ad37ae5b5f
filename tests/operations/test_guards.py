"""Nobody writes a state around the state machine: not save(), update(), bulk writes, nor SQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from django_ojs import states
from django_ojs.errors import InvalidStateTransition
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.push import push
from django_ojs.models import Job
from django_ojs.states import INITIAL, TRANSITIONS, State, Verb

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    row = push([{"type": "a.b", "args": []}])[0].row
    assert row is not None
    return Job.objects.get(pk=row["id"])


def test_save_refuses_a_changed_state_and_takes_other_fields(job: Job) -> None:
    job.priority = 4
    job.save()
    job.state = State.COMPLETED
    with pytest.raises(InvalidStateTransition, match=r"^save\(\) cannot change the state of a job: "):
        job.save()
    with pytest.raises(InvalidStateTransition):
        job.save(update_fields=["state"])
    job.refresh_from_db()
    assert (job.state, job.priority) == ("available", 4)


def test_update_and_bulk_update_refuse_the_state(job: Job) -> None:
    with pytest.raises(InvalidStateTransition, match=r"^update\(\) cannot change the state"):
        Job.objects.update(state=State.ACTIVE)
    with pytest.raises(InvalidStateTransition):
        Job.objects.bulk_update([job], ["priority", "state"])
    assert Job.objects.filter(pk=job.pk).update(priority=2) == 1


def test_no_job_is_born_in_the_middle_of_its_life() -> None:
    now = timezone.now()
    for state in set(State) - INITIAL:
        born = Job(type="a.b", state=state, created_at=now)
        with pytest.raises(InvalidStateTransition):
            born.save()
        with pytest.raises(InvalidStateTransition):
            Job.objects.bulk_create([born])
    Job(type="a.b", created_at=now).save()


def test_get_or_create_and_update_or_create_are_guarded_too(job: Job) -> None:
    with pytest.raises(InvalidStateTransition):
        Job.objects.update_or_create(pk=job.pk, defaults={"state": State.CANCELLED})


def test_a_deferred_state_does_not_hide_a_change(job: Job) -> None:
    lazy = Job.objects.only("id").get(pk=job.pk)
    lazy.state = State.COMPLETED
    with pytest.raises(InvalidStateTransition):
        lazy.save()


@pytest.mark.parametrize(
    "change",
    [
        "state = 'finished'", "state = ''", "state = 'completed'", "state = 'active'", "state = 'scheduled'",
        "finished_at = created_at",
    ],
)  # fmt: skip
def test_the_database_refuses_what_the_table_does_not_know(job: Job, change: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE {Job._meta.db_table} SET {change}")


def test_the_constraint_names_exactly_the_eight_states() -> None:
    constraint = next(c for c in Job._meta.constraints if c.name == "ojs_job_state")
    assert dict([constraint.condition.children[0]]) == {"state__in": list(State)}  # type: ignore[attr-defined]


def test_the_table_is_closed_and_reachable() -> None:
    assert {t.target for t in TRANSITIONS} == set(State)
    assert states.sources(Verb.PUSH) == frozenset()
    assert states.TERMINAL - {State.DISCARDED} <= set(State) - {t.source for t in TRANSITIONS}
    assert states.targets(Verb.RETRY, State.DISCARDED) == {State.AVAILABLE}
    assert states.diagram().count("-->") == len(TRANSITIONS) + len(states.TERMINAL)


def test_a_claimed_job_saved_from_an_old_copy_does_not_lose_its_claim(job: Job) -> None:
    (row,) = fetch(Fetch(["default"], worker_id="w"))
    job.state = State(row["state"])
    with pytest.raises(InvalidStateTransition):
        job.save()


def test_the_diagram_in_the_docs_is_the_table() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
    assert states.diagram() in page.read_text()
