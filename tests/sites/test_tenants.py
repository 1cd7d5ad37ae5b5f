"""Sites that show each caller other data on one connection: by schema (django-tenants), role or row-level security."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.conf import settings
from django.core import checks
from django.db import connection
from django.test import override_settings

from django_ojs import tenants
from django_ojs.checks import check_tenants
from django_ojs.database import url_of
from django_ojs.groupcommit import CommitGroup
from tests.waiting import eventually


@pytest.fixture
def database_of_its_own(transactional_db: None) -> Iterator[str]:
    name = f"{connection.settings_dict['NAME']}_tenants_{uuid.uuid4().hex[:6]}"
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}"')
    try:
        yield url_of(connection.settings_dict | {"NAME": name})
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.mark.postgres
@pytest.mark.slow
def test_two_tenants_of_one_process_never_meet(database_of_its_own: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sites.tenancy.play", database_of_its_own],
        cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == []
    assert found["jobs"] == {"public": {}, "one": {"of.one": 600}, "two": {"of.two": 600}}
    assert found["events"] == found["jobs"]
    assert found["queues"] == {"public": {}, "one": {"q.one": 1}, "two": {"q.two": 1}}
    assert found["key"] == [200, 401, 200, 401], "a key is one in its own schema only"
    assert found["config"] == [200, 201, 422, 201, 422], "what a queue takes is said by its own tenant"
    assert found["salts"] == 2
    assert found["polled"] == {"one": ["of.one"], "two": ["of.two", "other.one"]}
    assert found["fetched"] == [["of.one"] * 2, ["of.two"] * 2, ["of.one"] * 2]
    assert found["stream"][0] == 422
    assert found["late"] == [1, None], "the row of its queue, too, though it is written after the commit"
    assert "django_ojs.W014" not in found["checks"]


_who = threading.local()


def execute(items: Sequence[int], *, using: str) -> list[int]:
    return list(items)


def who() -> str:
    return str(_who.name)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("given", [who, f"{__name__}.who"], ids=["callable", "path"])
def test_calls_with_different_keys_share_no_batch(given: Any) -> None:
    batches: list[list[str]] = []
    go, led = threading.Event(), threading.Event()

    def execute(items: Any, *, using: str) -> list[str]:
        batches.append(sorted(items))
        if len(batches) == 1:
            led.set()
            go.wait(30)
        return list(items)

    group: CommitGroup[str, str] = CommitGroup(execute, patience=30)
    _who.name = "a"

    def call(name: str) -> None:
        _who.name = name
        group.call(name, connection.alias)
        connection.close()

    with override_settings(OJS={"GROUP_KEY": given}):
        threads = [threading.Thread(target=call, args=("a",))]
        threads[0].start()
        assert led.wait(30)
        threads += [threading.Thread(target=call, args=(name,)) for name in "aabb"]
        for thread in threads[1:]:
            thread.start()
        eventually(lambda: ["b"] in batches or ["b", "b"] in batches, "b waits for nobody of a")
        lane = group._lanes[connection.alias, "a"]
        eventually(lambda: len(lane.waiting) == 2, "the others of a wait")
        go.set()
        for thread in threads:
            thread.join(30)
    assert all(len(set(batch)) == 1 for batch in batches), batches
    assert ["a", "a"] in batches


@pytest.mark.django_db(transaction=True)
def test_a_site_switches_groups_off() -> None:
    group: CommitGroup[int, int] = CommitGroup(execute)
    with override_settings(OJS={"GROUP_CALLS": False}):
        assert group.call(3, connection.alias) == 3
        assert group._lanes == {}
    assert group.call(4, connection.alias) == 4
    assert list(group._lanes) == [connection.alias]


@pytest.mark.django_db(transaction=True)
def test_lanes_of_tenants_that_have_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ojs.groupcommit.MOST_LANES", 10)
    group: CommitGroup[int, int] = CommitGroup(execute)
    with override_settings(OJS={"GROUP_KEY": who}):
        for number in range(100):
            _who.name = f"tenant {number}"
            group.call(number, connection.alias)
    assert len(group._lanes) <= 10


@pytest.mark.parametrize(
    "name, value",
    [
        ("INSTALLED_APPS", "shop.tenants"),
        ("MIDDLEWARE", "shop.middleware.TenantMiddleware"),
        ("DATABASE_ROUTERS", "shop.tenant_routers.Router"),
    ],
)
def test_a_site_that_seems_to_have_tenants_is_asked_for_their_key(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_tenants() == []
    with monkeypatch.context() as patch:
        patch.setattr(settings, name, [*getattr(settings, name), value])
        (problem,) = check_tenants()
        assert problem.id == "django_ojs.W014"
        assert value in problem.msg
        for mended in ({"GROUP_KEY": who}, {"GROUP_CALLS": False}):
            with override_settings(OJS=mended):
                assert check_tenants() == []


def test_a_key_that_cannot_be_called_is_an_error() -> None:
    with override_settings(OJS={"GROUP_KEY": "shop.nowhere"}):
        assert [message.id for message in checks.run_checks() if str(message.id).startswith("django_ojs.E")] == [
            "django_ojs.E012"
        ]
    with override_settings(OJS={"GROUP_KEY": 5}):
        assert [message.id for message in checks.run_checks() if str(message.id).startswith("django_ojs.E")] == [
            "django_ojs.E002"
        ]


@pytest.mark.django_db
def test_an_ordinary_site_has_no_key() -> None:
    assert tenants.key(connection.alias) is None
    assert tenants.scope(connection.alias) == connection.alias
