"""`/admin/dead-letter/replay-rules`, and the same rules by the command and in the admin."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.test import Client

from django_ojs import checks, jsontext
from django_ojs.jobs import replay
from django_ojs.models import AuditEntry, ReplayRule
from tests.http.conftest import V1, Api, error_of

ROOT = "/admin/dead-letter/replay-rules"
RULE = {"filter": {"queue": "default"}, "delay": "PT1H", "max_replays": 2}
WHOLE = {**RULE, "name": "again", "per_minute": 60, "enabled": True, "source": "api"}


def put(api: Api, name: str, body: Any) -> Any:
    return api.client.generic("PUT", f"{V1}{ROOT}/{name}", json.dumps(body).encode(), content_type="application/json")


def test_a_rule_is_made_shown_replaced_and_deleted_and_every_change_audited(api: Api) -> None:
    made = put(api, "again", RULE)
    assert (made.status_code, made.json()) == (201, WHOLE)
    assert api.get(f"{ROOT}/again").json() == WHOLE
    listed = api.get(ROOT).json()
    assert (listed["items"], listed["pagination"]["total"]) == ([WHOLE], 1)
    changed = put(api, "again", {**WHOLE, "enabled": False})  # what was shown is taken back
    assert (changed.status_code, changed.json()["enabled"]) == (200, False)
    assert api.delete(f"{ROOT}/again").status_code == 204
    error_of(api.get(f"{ROOT}/again"), 404, "not_found")
    entries = AuditEntry.objects.order_by("id").values_list("action", "target", "door")
    assert list(entries) == [("replayrule.set", "again", "http")] * 2 + [("replayrule.delete", "again", "http")]


def test_what_is_wrong_with_a_rule_is_named_and_nothing_is_made(api: Api) -> None:
    error = error_of(put(api, "again", {"filter": {}}), 400, "invalid_request")
    assert error["details"]["field"] == "filter"
    error_of(put(api, "again", {**RULE, "name": "other"}), 400, "invalid_request")
    error_of(put(api, "No Name", RULE), 400, "invalid_request")
    assert not ReplayRule.objects.exists()
    error_of(api.delete(f"{ROOT}/again"), 404, "not_found")
    error_of(api.post(f"{ROOT}/again/preview"), 404, "not_found")


def test_the_preview_counts_what_fits_and_what_is_due(api: Api, frozen_clock: Any) -> None:
    job = api.dead_letter()
    put(api, "again", RULE)
    answer = api.post(f"{ROOT}/again/preview").json()
    assert answer == {"name": "again", "matched": 1, "exhausted": 0, "due": 0, "looked_at": 0}
    frozen_clock.advance(seconds=3600)
    assert api.post(f"{ROOT}/again/preview").json()["due"] == 1
    assert api.get(f"/jobs/{job['id']}").json()["job"]["state"] == "discarded"


def test_a_job_retried_by_a_rule_shows_it_over_http(api: Api, frozen_clock: Any) -> None:
    job = api.dead_letter()
    put(api, "again", RULE)
    frozen_clock.advance(seconds=3600)
    assert replay.replay() == 1
    shown = api.get(f"/jobs/{job['id']}").json()["job"]
    assert (shown["state"], shown["attempt"]) == ("available", 0)
    assert (shown["meta"]["ojs.replay_count"], shown["meta"]["ojs.replay_rule"]) == (1, "again")
    (event,) = api.get("/events", {"types": "dead_letter.replayed"}).json()["events"]
    assert (event["data"]["job_id"], event["data"]["rule"], event["data"]["count"]) == (job["id"], "again", 1)


def test_a_rule_of_the_settings_is_shown_and_left_alone(api: Api, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "REPLAY_RULES": [{"name": "fixed", **RULE}]}
    assert api.get(f"{ROOT}/fixed").json()["source"] == "settings"
    error_of(put(api, "fixed", RULE), 409, "conflict")
    error_of(api.delete(f"{ROOT}/fixed"), 409, "conflict")


@pytest.mark.parametrize("rules", [[{"name": "x"}], [{"name": "x", **RULE}] * 2, ["x"]])
def test_a_setting_that_holds_no_valid_rules_is_an_error_of_the_checks(settings: Any, rules: Any) -> None:
    settings.OJS = {"REPLAY_RULES": rules}
    assert [problem.id for problem in checks.check_settings()] == ["django_ojs.E002"]


def test_a_limited_key_touches_only_rules_within_its_limits(with_key: Any) -> None:
    everything, limited = with_key("admin"), with_key("admin", queues=["mine"], job_types=["mail.*"])
    put(everything, "foreign", RULE)
    assert limited.get(ROOT).json()["items"] == []
    error_of(limited.get(f"{ROOT}/foreign"), 403, "permission_denied")
    error_of(limited.delete(f"{ROOT}/foreign"), 403, "permission_denied")
    error_of(limited.post(f"{ROOT}/foreign/preview"), 403, "permission_denied")
    mine = {"filter": {"queue": "mine", "type": "mail.*"}}
    error_of(put(limited, "foreign", mine), 403, "permission_denied")  # it may not replace it either
    for wider in ({"queue": "mine"}, {"type": "mail.*"}, {"queue": "mine", "type": "mail*"}):
        error_of(put(limited, "own", {"filter": wider}), 403, "permission_denied")
    assert put(limited, "own", mine).status_code == 201
    assert len(limited.get(ROOT).json()["items"]) == 1


@pytest.mark.parametrize(
    "scope, read, write", [("admin.read", 200, 403), ("admin.write", 403, 201), ("read", 403, 403)]
)
def test_each_call_needs_its_scope(with_key: Any, scope: str, read: int, write: int) -> None:
    key = with_key(scope)
    assert (key.get(ROOT).status_code, put(key, "again", RULE).status_code) == (read, write)


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("ojs_dead_letter", *arguments, stdout=out, stderr=out, no_color=True)
    return out.getvalue().strip()


def test_the_command_makes_lists_previews_and_deletes_rules(api: Api) -> None:
    api.dead_letter()
    told = run("set-rule", "again", "--queue", "default", "--delay", "1h", "--max-replays", "2")
    assert told == "again made: 1 job fit, 0 of them due now, 0 without a retry left."
    assert json.loads(run("rules", "--json")) == [WHOLE]
    assert run("rules").splitlines()[1].split() == ["again", "queue", "default", "PT1H", "2", "60", "yes", "api"]
    assert run("preview-rule", "again").startswith("1 job fit")
    run("set-rule", "again", "--queue", "default", "--disabled")
    assert not replay.find("again").enabled
    with pytest.raises(CommandError, match="filter"):
        run("set-rule", "all")
    assert run("delete-rule", "again") == "again deleted."
    assert run("rules") == "There are no rules."
    with pytest.raises(CommandError):
        run("delete-rule", "again")
    actions = AuditEntry.objects.filter(door="command").order_by("id").values_list("action", flat=True)
    assert list(actions) == ["replayrule.set", "replayrule.set", "replayrule.delete"]


LIST = "/admin/django_ojs/replayrule/"


def test_a_rule_is_made_changed_switched_and_deleted_in_the_admin(admin_client: Client) -> None:
    form = {"name": "again", "enabled": "on", "type": "mail.*", "delay": "30m", "max_replays": "2", "per_minute": "10"}
    assert admin_client.post(f"{LIST}add/", form).status_code == 302
    made = replay.find("again")
    assert made.facts() == {
        "name": "again", "filter": {"type": "mail.*"}, "delay": "PT30M", "max_replays": 2, "per_minute": 10,
        "enabled": True,
    }  # fmt: skip
    pk = ReplayRule.objects.get().pk
    page = admin_client.get(f"{LIST}{pk}/change/").content.decode()
    assert "PT30M" in page
    assert "0 fit" in page
    assert admin_client.post(f"{LIST}{pk}/change/", {**form, "type": "", "queue": "a"}).status_code == 302
    assert replay.find("again").filter == {"queue": "a"}
    admin_client.post(f"{LIST}{pk}/do/disable_rules/", {"sure": "1"})
    assert not replay.find("again").enabled
    assert "again" in admin_client.get(LIST).content.decode()
    admin_client.post(f"{LIST}{pk}/do/delete_rules/", {"sure": "1"})
    assert not ReplayRule.objects.exists()
    entries = AuditEntry.objects.filter(door="admin").order_by("id")
    assert [entry.action for entry in entries] == ["replayrule.set"] * 3 + ["replayrule.delete"]
    assert entries[2].detail["enabled"] is False


def test_a_refusal_stands_beside_its_field_and_a_rule_of_the_settings_is_named(
    admin_client: Client, settings: Any
) -> None:
    form = {"name": "again", "delay": "soon", "max_replays": "2", "per_minute": "10", "queue": "a"}
    answer = admin_client.post(f"{LIST}add/", form)
    assert list(answer.context["adminform"].form.errors) == ["delay"]
    answer = admin_client.post(f"{LIST}add/", {**form, "delay": "1h", "queue": ""})
    assert list(answer.context["adminform"].form.errors) == ["queue"]
    settings.OJS = {**settings.OJS, "REPLAY_RULES": [{"name": "fixed", **RULE}]}
    assert "fixed, which comes before these" in admin_client.get(LIST).content.decode()
    assert admin_client.post(f"{LIST}add/", {**form, "name": "fixed", "delay": "1h"}).status_code == 302
    assert not ReplayRule.objects.exists()


def test_who_may_only_look_at_rules_changes_none(client: Client, db: None) -> None:
    user = get_user_model().objects.create_user("ann", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_replayrule"))
    client.force_login(user)
    call_command("ojs_dead_letter", "set-rule", "again", "--queue", "a", stdout=io.StringIO())
    pk = ReplayRule.objects.get().pk
    assert client.get(f"{LIST}{pk}/change/").status_code == 200
    assert client.get(f"{LIST}add/").status_code == 403
    assert client.post(f"{LIST}{pk}/do/delete_rules/", {"sure": "1"}).status_code == 403
    assert ReplayRule.objects.exists()


def test_a_rule_keeps_numbers_of_a_jobs_meta_as_they_are(api: Api, frozen_clock: Any) -> None:
    exact = '{"type": "a.b", "args": [], "retry": {"max_attempts": 1}, "meta": {"n": 12345678901234567890.123456789}}'
    job = api.raw("/jobs", exact.encode()).json()["job"]
    api.fetch()
    api.post("/workers/nack", {"job_id": job["id"], "error": {"message": "x"}})
    put(api, "again", RULE)
    frozen_clock.advance(seconds=3600)
    replay.replay()
    assert b"12345678901234567890.123456789" in api.get(f"/jobs/{job['id']}").content
    assert jsontext.loads(api.get(f"/jobs/{job['id']}").content)
