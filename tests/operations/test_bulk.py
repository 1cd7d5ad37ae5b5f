"""The engine of bulk acts: a dry run tells what the act would, for every verb and every state of a job."""

from __future__ import annotations

import uuid
from typing import Any

import django_filters
import pytest
from django.db.models import Q
from django.forms import IntegerField
from django.http import QueryDict
from django.test import RequestFactory
from rest_framework.request import Request

from django_ojs.errors import InvalidRequest, OJSError
from django_ojs.http import filters
from django_ojs.jobs import bulk
from django_ojs.jobs.bulk import How
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail_one
from django_ojs.jobs.selection import DeclaredFilter, JobFilter, dead_letters
from django_ojs.models import Job
from tests.admin.conftest import one_in_each_state, pushed

pytestmark = pytest.mark.django_db
VERBS = [(name, dead) for dead, verbs in ((False, bulk.JOBS), (True, bulk.DEAD_LETTERS)) for name in verbs]


def kept_out() -> uuid.UUID:
    """A discarded job that is no dead letter."""
    (job,) = pushed(queue="kept-out", retry={"max_attempts": 1, "on_exhaustion": "discard"})
    (row,) = fetch(Fetch(["kept-out"]))
    fail_one(Failure(row["id"], {"type": "ValueError", "message": "no"}, "", row["attempt"]))
    job.refresh_from_db()
    assert (job.state, job.dead_letter) == ("discarded", False)
    return job.pk


@pytest.mark.parametrize("name,dead", VERBS)
def test_a_dry_run_refuses_what_the_act_refuses(name: str, dead: bool) -> None:
    verb = bulk.verb_of(name, dead_letters=dead)
    ids = [*(job.pk for job in one_in_each_state().values()), kept_out(), uuid.uuid4()]
    told = {job_id: error.as_dict("r") for job_id, error in bulk.refusals(verb, ids)}
    outcomes = bulk.run(verb, ids, partial=True)
    done = {pk: out.as_dict("r") for pk, out in zip(ids, outcomes, strict=True) if isinstance(out, OJSError)}
    assert told == done
    assert 0 < len(told) < len(ids)


@pytest.mark.parametrize("name,dead", VERBS)
def test_the_states_that_a_verb_takes_are_those_that_it_does_not_refuse(name: str, dead: bool) -> None:
    verb = bulk.verb_of(name, dead_letters=dead)
    jobs = list(one_in_each_state().values())
    refused = {job_id for job_id, _ in bulk.refusals(verb, [job.pk for job in jobs])}
    taken = {job.state for job in jobs if job.pk not in refused}
    assert taken - {"cancelled"} == set(verb.takes) - {"cancelled"}


def test_a_dry_run_takes_as_many_statements_for_many_jobs_as_for_few(django_assert_num_queries: Any) -> None:
    ids = [job.pk for job in pushed(20)]
    for number in (1, 20):
        with django_assert_num_queries(1):
            assert bulk.refusals(bulk.JOBS["cancel"], ids[:number]) == []


def test_who_spares_running_jobs_is_told_what_is_cancelled() -> None:
    (job,) = pushed()
    fetch(Fetch(["default"]))
    (refused,) = bulk.run(bulk.JOBS["cancel"], [job.pk], How(spare_active=True), partial=True)
    assert "active" not in refused.details["expected_state"]
    assert cancel_one(job.pk).changed


@pytest.mark.parametrize(
    "given,member", [({"typ": "mail.*"}, "typ"), ({"states": ["gone"]}, "states"), ({"since": "soon"}, "since"),
                     ({"type": 5}, "type"), ({"older_than": "x"}, "older_than"), ({"meta": [1]}, "meta")],
)  # fmt: skip
def test_a_filter_that_cannot_be_read_means_no_job(given: dict[str, Any], member: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        JobFilter(given).jobs()
    assert refused.value.details["field"] == member


def test_a_site_adds_a_member_in_a_subclass() -> None:
    class Ours(JobFilter):
        attempt = DeclaredFilter(IntegerField, lambda wanted, value: Q(attempt=value))
        highest = django_filters.NumberFilter(field_name="priority", lookup_expr="lte")

    jobs = pushed(2)
    fetch(Fetch(["default"]))
    assert [job.pk for job in Ours({"attempt": 1}).jobs()] == [jobs[0].pk]
    assert [job.pk for job in Ours({"attempt": 0, "states": "available"}).jobs()] == [jobs[1].pk]
    request = Request(RequestFactory().get("/", {"attempt": "0", "highest": "0", "queue": "default"}))
    assert [job.pk for job in filters.of_query(request, kind=Ours)] == [jobs[1].pk]
    request = Request(RequestFactory().get("/", {"highest": "-1", "only_queues": "x"}))
    assert list(filters.of_query(request, kind=Ours)) == []


def test_django_filter_uses_it_as_any_other() -> None:
    (mail,), _ = pushed(type="mail.send"), pushed(type="sms.send")
    found = JobFilter(QueryDict("type=mail.*&other=1"), Job.objects.all())
    assert [job.pk for job in found.qs] == [mail.pk]
    assert dead_letters().jobs().count() == 0
