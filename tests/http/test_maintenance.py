"""`/admin/system/maintenance`: the switch over HTTP, under the names of all clients, and who may use it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from django_ojs import clock, keys
from django_ojs.models import AuditEntry, Maintenance
from django_ojs.queues import maintenance
from django_ojs.rules.durations import format_instant
from django_ojs.statistics import summary
from tests.conftest import FrozenClock
from tests.http.conftest import Api, error_of

pytestmark = pytest.mark.django_db
PATHS = ("/admin/system/maintenance", "/admin/maintenance")
NAMES = {"maintenance", "enabled", "reason", "enabled_at", "started_at", "enabled_by", "estimated_end", "ends_at",
         "auto_end"}  # fmt: skip


def keyed(*scopes: str, **limits: Any) -> Api:
    _, key = keys.create("-".join(scopes), list(scopes), **limits)
    return Api(Authorization=f"Bearer {key}")


@pytest.mark.parametrize("path", PATHS)
def test_while_it_is_off_all_but_the_switch_is_null(api: Api, path: str) -> None:
    answer = api.get(path).json()
    assert answer.pop("enabled") is answer.pop("maintenance") is False
    assert answer == dict.fromkeys(NAMES - {"enabled", "maintenance"})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["estimated_duration", "duration"])
@pytest.mark.parametrize("length,minutes", [("PT30M", 30), ("15m", 15), ("1h", 60), ("P1DT1H", 1500)])
def test_it_is_switched_on_and_off_and_read_under_every_name(
    api: Api, frozen_clock: FrozenClock, path: str, name: str, length: str, minutes: int
) -> None:
    now, end = clock.now(), clock.now() + dt.timedelta(minutes=minutes)
    answer = api.post(path, {"enabled": True, "reason": "new disks", name: length}).json()
    assert answer == {
        "maintenance": True, "enabled": True, "reason": "new disks", "enabled_at": format_instant(now),
        "started_at": format_instant(now), "enabled_by": "anonymous", "estimated_end": format_instant(end),
        "ends_at": format_instant(end), "auto_end": False,
    }  # fmt: skip
    assert [api.get(other).json() for other in PATHS] == [answer, answer]
    off = api.post(path, {"enabled": False}).json()
    assert off == api.get(path).json()
    assert (off["enabled"], off["reason"]) == (False, None)


def test_fetch_gives_nothing_meanwhile_and_what_runs_may_end(api: Api) -> None:
    api.push()
    running = api.fetch()
    waiting = api.push()
    api.post(PATHS[0], {"enabled": True})
    assert api.push()["state"] == "available"
    for path in ("/workers/fetch", "/jobs/fetch"):
        assert api.post(path, {"queues": ["default"], "count": 5, "worker_id": "w"}).json() == {"jobs": []}
    assert api.post("/workers/heartbeat", {"worker_id": "w"}).status_code == 200
    assert api.post("/workers/ack", {"job_id": running["id"]}).status_code == 200
    api.post(PATHS[0], {"enabled": False})
    assert api.fetch()["id"] == waiting["id"]


def test_a_repeated_call_changes_only_what_it_says(api: Api, frozen_clock: FrozenClock) -> None:
    first = api.post(PATHS[0], {"enabled": True, "reason": "disks", "duration": "1h", "auto_end": True}).json()
    frozen_clock.advance(minutes=5)
    body = {"enabled": True, "reason": None, "duration": None, "auto_end": None}
    assert api.post(PATHS[0], body).json() == first
    changed = api.post(PATHS[0], {"enabled": True, "estimated_duration": "2h", "duration": "PT2H"}).json()
    assert changed["ends_at"] == format_instant(clock.now() + dt.timedelta(hours=2))
    assert changed["started_at"] == first["started_at"]
    for _ in range(2):
        assert api.post(PATHS[0], {"enabled": False}).status_code == 200


@pytest.mark.parametrize(
    "body,field",
    [
        ({}, "enabled"),
        ({"enabled": "yes"}, "enabled"),
        ({"enabled": 1}, "enabled"),
        ({"enabled": True, "reason": 5}, "reason"),
        ({"enabled": True, "reason": "x" * 501}, "reason"),
        ({"enabled": True, "reason": "two\nlines"}, "reason"),
        ({"enabled": True, "duration": 30}, "duration"),
        ({"enabled": True, "duration": "soon"}, "duration"),
        ({"enabled": True, "estimated_duration": "30"}, "estimated_duration"),
        ({"enabled": True, "estimated_duration": "PT0S"}, "estimated_duration"),
        ({"enabled": True, "estimated_duration": "P2Y"}, "estimated_duration"),
        ({"enabled": True, "estimated_duration": "1h", "duration": "2h"}, "duration"),
        ({"enabled": True, "auto_end": "yes", "duration": "1h"}, "auto_end"),
        ({"enabled": True, "auto_end": True}, "auto_end"),
        ({"enabled": False, "duration": "soon"}, "duration"),
    ],
)
def test_a_faulty_body_is_refused_by_the_name_of_its_member_and_changes_nothing(
    api: Api, body: dict[str, Any], field: str
) -> None:
    error = error_of(api.post(PATHS[0], body), 400, "invalid_request")
    assert error["details"]["field"] == field
    assert not Maintenance.objects.exists()
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("raw", [b"", b"[]", b"true", b"{"])
def test_the_body_is_an_object(api: Api, raw: bytes) -> None:
    assert api.raw(PATHS[0], raw).status_code == 400
    assert not Maintenance.objects.exists()


class TestWhoMay:
    @pytest.fixture(autouse=True)
    def _closed_site(self, settings: Any) -> None:
        settings.OJS = {"ALLOW_ANONYMOUS": False}

    def test_reading_takes_one_scope_and_switching_another(self, api: Api) -> None:
        error_of(api.get(PATHS[0]), 401, "unauthenticated")
        error_of(api.post(PATHS[0], {"enabled": True}), 401, "unauthenticated")
        for scope in ("read", "work", "push", "admin.write"):
            error_of(keyed(scope).get(PATHS[0]), 403, "permission_denied")
        reader = keyed("admin.read")
        assert reader.get(PATHS[0]).status_code == 200
        error_of(reader.post(PATHS[0], {"enabled": True}), 403, "permission_denied")
        assert not maintenance.is_on()
        answer = keyed("admin.write", "read").post(PATHS[0], {"enabled": True}).json()
        assert (answer["enabled"], answer["enabled_by"]) == (True, "key:admin.write-read")

    def test_a_key_for_some_queues_does_not_stop_the_others(self) -> None:
        error = error_of(
            keyed("admin.write", queues=["mail"]).post(PATHS[0], {"enabled": True}), 403, "permission_denied"
        )
        assert "limited" in error["message"]
        assert not maintenance.is_on()
        (entry,) = AuditEntry.objects.all()
        assert (entry.action, entry.outcome) == ("maintenance.switch", "denied")

    @pytest.mark.parametrize("right,status", [("change_maintenance", 200), ("change_queue", 403), ("ojs_admin", 200)])
    def test_a_user_needs_the_permission(self, right: str, status: int) -> None:
        user = get_user_model().objects.create_user("ann", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename=right))
        client = Client()
        client.force_login(user)
        response = client.post(f"/ojs/v1{PATHS[0]}", {"enabled": True}, content_type="application/json")
        assert response.status_code == status
        assert maintenance.is_on() is (status == 200)

    def test_the_audit_log_has_every_switch(self) -> None:
        boss = keyed("admin")
        boss.post(PATHS[0], {"enabled": True, "reason": "disks", "duration": "1h"})
        boss.post(PATHS[1], {"enabled": False, "reason": "done early"})
        on, off = AuditEntry.objects.order_by("id")
        assert (on.action, on.actor, on.target_type, on.door) == (
            "maintenance.start", "key:admin", "maintenance", "http"
        )  # fmt: skip
        assert on.detail["reason"] == "disks"
        assert on.detail["estimated_end"]
        assert (off.action, off.detail["reason"]) == ("maintenance.stop", "done early")


def test_the_health_check_tells_those_who_may_know_and_stays_well(api: Api, settings: Any) -> None:
    assert api.get("/health").json()["maintenance"] is False
    maintenance.start()
    summary.forget()
    answer = api.get("/health")
    assert (answer.status_code, answer.json()["status"], answer.json()["maintenance"]) == (200, "ok", True)
    settings.OJS = {"ALLOW_ANONYMOUS": False}
    assert "maintenance" not in api.get("/health").json()
