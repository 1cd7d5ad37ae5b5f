"""Every page and every action of the admin, for users with none, with view and with one of the permissions."""

from __future__ import annotations

import html.parser
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.sites import site
from django.contrib.admin.utils import quote
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import transaction
from django.test import Client
from django.urls import reverse

from django_ojs import clock
from django_ojs.models import Alert, OutboxEntry
from tests.rights import world as rows
from tests.rights.world import World

pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.slow]

#: By model, the actions on its objects, each with the permission that it takes.
ACTIONS: dict[str, dict[str, str]] = {
    "apikey": {"revoke_keys": "change_apikey"},
    "approval": {},
    "alert": {},
    "bulkaction": {"cancel_bulkactions": "change_job delete_job"},  # one of them: whoever may begin one
    "cronschedule": {
        **dict.fromkeys(("run_schedules", "enable_schedules", "disable_schedules"), "change_cronschedule"),
        "delete_schedules": "delete_cronschedule",
    },
    "replayrule": {
        **dict.fromkeys(("enable_rules", "disable_rules"), "change_replayrule"), "delete_rules": "delete_replayrule",
    },
    "event": {},
    "job": {
        **dict.fromkeys(("cancel_jobs", "activate_jobs", "run_jobs_now", "retry_dead_letters"), "change_job"),
        "clear_checkpoints": "change_job", "delete_dead_letters": "delete_job", "copy_jobs": "add_job",
    },
    "outboxentry": {"retry_entries": "change_outboxentry", "discard_entries": "delete_outboxentry"},
    "ratelimit": {"lift_blocks": "change_ratelimit"},
    "queue": dict.fromkeys(("pause_queues", "resume_queues"), "change_queue"),
    "auditentry": {},
    "jobschema": {},
    "webhooksubscription": {
        **dict.fromkeys(("test_webhooks", "pause_webhooks", "resume_webhooks", "rotate_secret"),
                        "change_webhooksubscription"),
        "delete_webhooks": "delete_webhooksubscription",
    },
    "webhookdelivery": {"replay_deliveries": "change_webhookdelivery"},
    "worker": dict.fromkeys(("quiet_workers", "resume_workers", "terminate_workers", "restart_workers"),
                            "change_worker"),
    "workflow": dict.fromkeys(("cancel_workflows", "retry_workflows"), "change_workflow"),
}  # fmt: skip
#: The pages beside those that Django has for each model, and what is needed to open them.
PAGES: dict[str, str] = {
    "event_tail": "view_event", "event_tail_more": "view_event",
    "overview": "view_job", "overview_live": "view_job", "doctor": "view_job", "dead_letters": "view_job",
    "dead_letters_live": "view_job", "dead_letters_group": "change_job", "job_rows": "view_job", "job_live": "view_job",
    "job_logs": "view_job",
    "bulkaction_live": "view_job", "worker_live": "view_worker", "workflow_live": "view_workflow",
    "job_priority": "change_job", "job_edit": "change_job", "job_restart": "change_job",
    "job_give": "change_job",
    "dead_letters_all": "change_job",
    "maintenance": "change_maintenance",
    "approval_live": "view_approval", "approval_inbox": "view_approval", "approval_decide": "decide_approval",
    "approval_verb": "decide_approval",  # it has no verbs: there is nothing
    "approval_link": "",  # for whoever has a link that was made for one approval (admin/test_approval_mail.py)
}  # fmt: skip
_DJANGOS = {"changelist", "add", "history", "delete", "change"}
OURS = {str(model._meta.model_name): model for model in site._registry if model._meta.app_label == "django_ojs"}


@pytest.fixture
def world(world: World, settings: Any) -> World:
    """With one of what has pages and no calls."""
    furnish(settings)
    return world


def furnish(settings: Any) -> None:
    settings.OJS = {**settings.OJS, "OUTBOX": "default"}
    now = clock.now()
    Alert.objects.create(
        key="k", kind="queue-paused", about="qa", says="It is paused.", mend="Resume it.", raised_at=now, seen_at=now
    )
    OutboxEntry.objects.create(
        target_id=uuid.uuid4(), type="ta.run", document={}, created_at=now, aside=True, error="x"
    )


def patterns() -> Iterator[tuple[str, Any]]:
    for kind, model in OURS.items():
        for pattern in site._registry[model].get_urls():
            if pattern.name:
                yield kind, pattern


def address(kind: str, name: str, world: World, action: str = "") -> str:
    """The address of a page about an object of the caller's side."""
    (pattern,) = (one for owner, one in patterns() if (owner, one.name) == (kind, f"django_ojs_{name}"))
    model = OURS[kind]
    dead = name in ("job_edit", "job_restart") or action in ("retry_dead_letters", "delete_dead_letters")
    pk: Any = world.own.jobs["discarded" if dead else "available"] if kind == "job" else None
    if pk is None:
        first = model._default_manager.order_by("pk").first()
        pk = first.pk if first is not None else "1"
    values = {"object_id": quote(str(pk)), "job_id": pk, "name": action or "retry_dead_letters"}
    return reverse(f"admin:{pattern.name}", kwargs={part: values[part] for part in pattern.pattern.converters})


def addresses(world: World) -> Iterator[tuple[str, str]]:
    """Every page of the table with its address."""
    for kind, pattern in patterns():
        name = pattern.name.removeprefix("django_ojs_")
        for action in ACTIONS[kind] if name.endswith("_verb") else [""]:
            yield f"{name} {action}".strip(), address(kind, name, world, action)


def login(name: str, *codenames: str) -> Client:
    user = get_user_model().objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames, content_type__app_label="django_ojs"))
    client = Client()
    client.force_login(user)
    return client


def all_rights(but: str = "") -> list[str]:
    found = Permission.objects.filter(content_type__app_label="django_ojs").exclude(
        codename__in=[*but.split(), "ojs_admin"]
    )
    return list(found.values_list("codename", flat=True))


def sent(
    client: Client, method: str, to: str, before: set[str], given: dict[str, Any] | None = None
) -> tuple[int, str, bool]:
    """The status, where it leads, and whether a row of ours is another than `before`; what was done is undone."""
    with transaction.atomic():
        given = given or {
            "sure": "yes", "post": "yes", "confirm": "1", "priority": "9", "_save": "1", "enabled": "on"
        }  # fmt: skip
        written = rows.written()
        response = client.post(to, given) if method == "POST" else client.get(to)
        changed = rows.written() != written and rows.snapshot() != before
        transaction.set_rollback(True)
    rows.forget()
    return response.status_code, response.get("Location", ""), changed


def test_the_tables_have_every_page_and_every_action() -> None:
    assert sorted(ACTIONS) == sorted(OURS)
    for kind, model in OURS.items():
        assert sorted(ACTIONS[kind]) == sorted(verb.name for verb in getattr(site._registry[model], "verbs", ()))
    ours = {pattern.name.removeprefix("django_ojs_") for _, pattern in patterns()}
    djangos = {f"{kind}_{page}" for kind in OURS for page in _DJANGOS}
    verbs = {f"{kind}_verb" for kind, actions in ACTIONS.items() if actions}
    assert ours - djangos - verbs == set(PAGES)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_stranger_and_staff_without_permissions_see_and_change_nothing(world: World, method: str) -> None:
    staff, before = login("eve"), rows.snapshot()
    for name, to in addresses(world):
        status, location, changed = sent(Client(), method, to, before)
        if name == "approval_link":
            assert (status, changed) == (404, False)
            continue
        assert (status, "/login/" in location, changed) == (302, True, False), name
        status, location, changed = sent(staff, method, to, before)
        if status == 302:  # Django says that the object is not there, on another page
            assert location == reverse("admin:index"), (name, location)
        assert status in (302, 403, 405), (name, status)
        assert not changed, name


def test_a_user_who_may_view_everything_sees_all_pages_and_changes_nothing(world: World) -> None:
    looker = login("ann", *[name for name in all_rights() if name.startswith("view_")])
    before = rows.snapshot()
    for name, to in addresses(world):
        page, _, action = name.partition(" ")
        status, _, changed = sent(looker, "GET", to, before)
        looks = page.rpartition("_")[2] in ("changelist", "change", "history") or PAGES.get(page, "").startswith(
            "view_"
        )
        assert not changed, name
        if looks:
            assert status == 200, (name, status)
        elif action:
            assert status == 403, (name, status)
        status, _, changed = sent(looker, "POST", to, before)
        assert not changed, (name, status)
        assert status < 500, name


@pytest.mark.parametrize("kind", [kind for kind, actions in ACTIONS.items() if actions])
def test_each_action_takes_its_permission(world: World, kind: str) -> None:
    """As a page, and as an action of the list, which may be one that the list offers to others, or Django's own."""
    before, listed = rows.snapshot(), address(kind, f"{kind}_changelist", world)
    pks = [str(pk) for pk in OURS[kind]._default_manager.values_list("pk", flat=True)[:50]]
    chosen = {"_selected_action": pks, "sure": "yes", "post": "yes", "index": "0"}
    for action, right in ACTIONS[kind].items():
        to = address(kind, f"{kind}_verb", world, action)
        without = login(f"all but {action}", *all_rights(but=right))
        status, _, changed = sent(without, "POST", to, before)
        assert (status, changed) == (403, False), action
        assert not sent(without, "POST", listed, before, {**chosen, "action": action})[2], action
        status, _, _ = sent(login(f"only {action}", *right.split(), f"view_{kind}", "view_job"), "POST", to, before)
        assert status < 400, (action, status)
    without = login("may not delete", *all_rights(but=f"delete_{kind}"))
    assert not sent(without, "POST", listed, before, {**chosen, "action": "delete_selected"})[2]
    if kind == "job":  # it is what would change something
        client = login("with the right", "change_job", "view_job")
        assert sent(client, "POST", listed, before, {**chosen, "action": "cancel_jobs"})[2]


def test_no_page_changes_anything_when_it_is_opened(world: World) -> None:
    """The page of another site may let the browser of an operator open it."""
    boss, before = login("boss", *all_rights(), "ojs_admin"), rows.snapshot()
    for name, to in addresses(world):
        assert not sent(boss, "GET", to, before)[2], name


def test_each_page_takes_its_permission(world: World) -> None:
    before = rows.snapshot()
    for page, right in PAGES.items():
        kind = next(owner for owner, pattern in patterns() if pattern.name == f"django_ojs_{page}")
        to = address(kind, page, world)
        _, _, changed = sent(login(f"all but {page}", *all_rights(but=right)), "POST", to, before)
        assert not changed, page
        if right.startswith("view_"):
            only = login(f"only {page}", right)
            assert sent(only, "GET", to, before)[0] in (200, 302, 404), page


class Names(html.parser.HTMLParser):
    """The fields, buttons, links and pictures of a page without a name that a screen reader could say."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._inside = 0
        self._silent = ""  #: the tag of the open button or link of which nothing has been said yet
        self._fields: list[tuple[dict[str, str | None], str]] = []
        self._others: list[str] = []
        self._labelled: set[str | None] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        named = any(given.get(name) for name in ("aria-label", "aria-labelledby", "title"))
        text = self.get_starttag_text() or ""
        if tag == "label":
            self._inside += 1
            self._labelled.add(given.get("for"))
        silent = tag == "input" and given.get("type") in ("hidden", "submit", "button", "reset")
        if tag in ("input", "select", "textarea") and not silent and not (self._inside or named):
            self._fields.append((given, text))
        usable = tag == "button" or (tag == "a" and "href" in given)
        if usable and not named and "hidden" not in given:
            self._silent = text
        elif named or given.get("alt"):
            self._silent = ""
        if (tag == "img" and "alt" not in given) or (tag == "svg" and given.get("role") == "img" and not named):
            self._others.append(text)

    def handle_data(self, data: str) -> None:
        if data.strip():
            self._silent = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "label":
            self._inside -= 1
        elif tag in ("a", "button") and self._silent:
            self._others.append(self._silent)
            self._silent = ""

    @property
    def missing(self) -> list[str]:
        fields = [text for given, text in self._fields if given.get("id") not in self._labelled - {None}]
        return fields + self._others


def test_what_can_be_used_on_each_page_has_a_name(world: World) -> None:
    """The least of what axe asks for, which looks at all pages in a browser (`dashboard/test_accessible`)."""
    boss = login("boss", *all_rights(), "ojs_admin")
    for name, to in addresses(world):
        response = boss.get(to)
        if response.status_code == 200 and response["Content-Type"].startswith("text/html"):
            assert Names(response.content.decode()).missing == [], name
