"""What a filter finds is the same on each database: the very text, whatever its collation takes for equal."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models import Q

from django_ojs import clock
from django_ojs.access import Limits
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.push import push
from django_ojs.jobs.selection import JobFilter
from django_ojs.models import AuditEntry, Job
from django_ojs.models.fields import any_of, named, same_name
from tests.http.conftest import api

pytestmark = pytest.mark.django_db

__all__ = ["api"]

#: What collations of MariaDB take for `mail.send`, or SQLite's LIKE for what begins with `mail.`.
ALIKE = ["Mail.send", "MAIL.SEND", "maïl.send", "mail.send ", "Mail.*", "MAIL*"]


@pytest.fixture(autouse=True)
def _jobs() -> None:
    push([{"type": "mail.send", "queue": "mail", "args": []}, {"type": "other", "queue": "other", "args": []}])
    for worker in ("Host-A", "host-a"):
        fetch(Fetch(["mail", "other"], worker_id=worker, check_worker=False))


def found(condition: Q) -> list[str]:
    return sorted(Job.objects.filter(condition).values_list("type", flat=True))


@pytest.mark.parametrize("text", ALIKE)
def test_a_job_type_is_found_by_its_very_name(text: str) -> None:
    for condition in (named("type", text), any_of("type", [text]), Limits(types=(text,)).condition()):
        assert found(condition) == []
        assert found(~condition) == ["mail.send", "other"]
    if not text.endswith(" "):  # which is taken off what a person writes
        assert not JobFilter({"type": text}).jobs().exists()


@pytest.mark.parametrize("text", ["mail.send", "mail.*", "mail*", "*"])
def test_a_name_and_a_pattern_find_what_they_mean(text: str) -> None:
    for condition in (named("type", text), any_of("type", [text, "nothing"]), Limits(types=(text,)).condition()):
        assert found(condition)[0] == "mail.send"
        assert (len(found(condition)) == 2) is (text == "*")
    assert {job.type for job in JobFilter({"type": text}).jobs()} >= {"mail.send"}


def test_texts_with_capitals_are_told_apart() -> None:
    held = {worker: JobFilter({"worker_id": worker}).jobs().count() for worker in ("Host-A", "host-a", "HOST-A")}
    assert held == {"Host-A": 1, "host-a": 1, "HOST-A": 0}
    assert Job.objects.filter(same_name("worker_id", "Host-A")).count() == 1
    for name in ("user:Ann", "user:ann", "user:änn"):
        AuditEntry.objects.create(time=clock.now(), actor=name, action="queue.pause", target="mail", outcome="done")
    counted = {
        text: AuditEntry.objects.filter(named("actor", text)).count() for text in ("user:Ann", "User:*", "user:a*")
    }
    assert counted == {"user:Ann": 1, "User:*": 0, "user:a*": 1}


@pytest.mark.parametrize("query", ["type=Mail.Send", "type=Mail.*", "worker_id=HOST-A"])
def test_lists_over_http(api: Any, settings: Any, query: str) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    answer = api.get(f"/jobs?{query}")
    assert (answer.status_code, answer.json()["jobs"]) == (200, [])
