"""Beside ten million ended jobs no statement reads a large table from end to end, and none looks at more rows than a
bound, whatever clients, workers, operators and the scheduler ask for.

What is left out here are acts on all ended jobs that fit a filter, such as a purge, and their dry runs: they go
through, or count, all that they are about. So does the look for jobs with too many events, which a process has once an
hour.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_ojs.jobs import history
from django_ojs.models import Event, Job
from tests.growth import scenarios
from tests.growth.plans import watched
from tests.http.conftest import Api

pytestmark = [
    pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("history")
]  # fmt: skip


@pytest.fixture(autouse=True)
def _open_site(settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True, "EVENT_MAX_COUNT": 10**9}


@pytest.fixture(autouse=True)
def _hourly_look(_open_site: None) -> None:
    """The process has had it."""
    history.trim(connection.alias)


def check(*acts: Callable[[], Any]) -> None:
    """Do all of these; fail with the statements that look at too much, each once, and their plans."""
    faults: dict[str, str] = {}
    for act in acts:
        with watched() as plans:
            act()
        for plan in plans:
            for fault in plan.faults():
                faults.setdefault(plan.sql[:200], f"{act}: {fault}:\n{plan.sql[:3000]}\n{plan.text}")
    assert not faults, "\n\n".join(faults.values())


def test_a_statement_that_reads_a_table_is_found() -> None:
    for bad in (Job.objects.filter(type="nothing.such").exists, Event.objects.filter(type="x").order_by("id").first):
        with pytest.raises(AssertionError, match=r"reads all of|rows of"):
            check(bad)


@pytest.mark.parametrize("story", scenarios.STORIES)
def test_verbs_and_duties(story: Callable[[], Any]) -> None:
    check(story)


@pytest.mark.wide
def test_lists_and_figures_over_http() -> None:
    api = Api()
    check(*(partial(scenarios.answer, api, address) for address in scenarios.lists_of_clients()))


def test_acts_on_many_jobs() -> None:
    api = Api()
    check(*(partial(scenarios.act, api, address, body) for address, body in scenarios.acts_on_many()))


@pytest.mark.wide
def test_the_pages_of_the_admin() -> None:
    client = scenarios.staff()
    check(*(partial(scenarios.page, client, address) for address in scenarios.lists_of_operators()))


@pytest.mark.wide
def test_commands() -> None:
    check(*(partial(scenarios.command, *arguments) for arguments in scenarios.commands()))
