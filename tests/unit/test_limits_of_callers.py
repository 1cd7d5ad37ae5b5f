"""What a caller reaches: its value in memory and its condition in the database agree."""

from __future__ import annotations

import pytest

from django_ojs.access import UNLIMITED, Limits
from django_ojs.jobs.push import push
from django_ojs.models import APIKey, Job

PLACES = [("a", "mail.send"), ("a", "pay.run"), ("b", "mail.send"), ("b", "mailing.do"), ("b", "pay.run")]
LIMITS = [
    UNLIMITED,
    Limits(queues=("a",)),
    Limits(types=("mail.*",)),
    Limits(queues=("a", "b"), types=("pay.run", "mail.*")),
    Limits(queues=("b",), types=("mail.send",)),
    Limits(queues=()),
    Limits(types=()),
]


@pytest.mark.django_db
@pytest.mark.parametrize("limits", LIMITS, ids=repr)
def test_value_and_condition_agree(limits: Limits) -> None:
    push([{"type": job_type, "args": [], "queue": queue} for queue, job_type in PLACES])
    found = set(Job.objects.filter(limits.condition()).values_list("queue", "type"))
    assert found == {place for place in PLACES if limits.covers(*place)}
    assert found == {place for place in PLACES if limits.covers_row({"queue": place[0], "type": place[1]})}


def test_what_belongs_to_jobs_of_every_type_needs_a_key_without_types() -> None:
    assert Limits(queues=("a",)).covers_queue("a")
    assert not Limits(queues=("a",)).covers_queue("b")
    assert not Limits(queues=("a",), types=("mail.*",)).covers_queue("a")
    assert not Limits(types=("mail.*",)).covers_queue("a")
    assert UNLIMITED.covers_queue("a")


def test_what_belongs_to_a_type_in_every_queue_needs_a_key_without_queues() -> None:
    assert Limits(types=("mail.*",)).covers_type_in_all_queues("mail.send")
    assert Limits(types=("mail.*",)).covers_type_in_all_queues("mail.*")
    assert not Limits(types=("mail.*",)).covers_type_in_all_queues("pay.run")
    assert not Limits(queues=("a",), types=("mail.*",)).covers_type_in_all_queues("mail.send")


def test_a_key_without_limits_and_no_key_reach_everything() -> None:
    assert Limits.of_key(None) is UNLIMITED
    assert Limits.of_key(APIKey(name="ci", scopes=["push"])) is UNLIMITED
    assert Limits.of_key(APIKey(name="ci", queues=["a"])) == Limits(queues=("a",))
    assert not Limits(queues=()).unlimited
