"""Who may make which call: no key, each scope alone, and users with none, one, some and all permissions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import transaction
from django.test import Client

from django_ojs import clock, keys
from django_ojs.models import APIKey
from tests.http.test_rights import OPEN, methods
from tests.rights.calls import CALLS, PUBLIC_RPCS, RPCS, STREAMS, Call
from tests.rights.world import World, forget

pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.slow]
SCOPES = list(APIKey.Scope.values)


def bearer(*scopes: str, **limits: Any) -> Client:
    _, text = keys.create(f"{'-'.join(scopes)} {len(limits)}", scopes, **limits)
    return Client(headers={"Authorization": f"Bearer {text}"})


def session(name: str, codenames: Any = (), **flags: Any) -> Client:
    user = get_user_model().objects.create_user(name, **flags)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames, content_type__app_label="django_ojs"))
    client = Client()
    client.force_login(user)
    return client


def statuses(calls: Iterable[Call], client: Client, world: World) -> dict[str, int]:
    """The status of each call about what is on the caller's side; what it has done is undone."""
    found: dict[str, int] = {}
    for call in calls:
        with transaction.atomic():
            found[str(call)] = call.send(client, world.own).status_code
            transaction.set_rollback(True)
        forget()
    return found


def test_the_table_has_every_call_that_there_is() -> None:
    there = {f"{method} {route}" for route, method, *_ in methods() if route != OPEN}
    written = [f"{call.method} {call.route}" for call in CALLS]
    plain = {one.replace("ojs/v1/", "", 1).replace("<str:", "<").replace("<path:", "<") for one in there}
    assert sorted(written) == sorted(plain)


def test_the_table_has_every_rpc_that_there_is() -> None:
    pytest.importorskip("grpc")
    from django_ojs.grpc.definition import METHODS

    assert sorted([*RPCS, *PUBLIC_RPCS, *STREAMS]) == sorted(METHODS)
    assert {call for call, _ in RPCS.values()} <= set(map(str, CALLS))


def test_without_credentials_nothing_is_done(world: World) -> None:
    client = Client()
    assert statuses(CALLS, client, world) == dict.fromkeys(map(str, CALLS), 401)


@pytest.mark.parametrize("ended", ["revoked_at", "expires_at"])
def test_a_key_that_is_over_may_do_nothing(world: World, ended: str) -> None:
    client = bearer("admin")
    APIKey.objects.update(**{ended: clock.now()})
    forget()
    assert statuses(CALLS, client, world) == dict.fromkeys(map(str, CALLS), 401)


def test_a_user_who_is_inactive_may_do_nothing(world: World) -> None:
    client = session("root", is_superuser=True)
    get_user_model().objects.update(is_active=False)
    assert statuses(CALLS, client, world) == dict.fromkeys(map(str, CALLS), 401)


#: Calls that name a worker. That of the caller's side is another's, so that naming it takes an operator.
NAMING = {str(call) for call in CALLS if "worker" in call.route}


@pytest.mark.parametrize("held", SCOPES)
def test_a_key_may_make_the_calls_of_its_scope_and_no_others(world: World, held: str) -> None:
    found = statuses(CALLS, bearer(held), world)
    for call in CALLS:
        if held not in (call.scope, "admin"):
            assert found.pop(str(call)) == 403, call
    refused = {name for name, status in found.items() if status in (401, 403, 500)}
    assert refused <= (set() if held.startswith("admin") else NAMING)


def test_a_user_without_permissions_may_do_nothing(world: World) -> None:
    for client in (session("ann", is_staff=True), session("bob")):
        assert statuses(CALLS, client, world) == dict.fromkeys(map(str, CALLS), 403)


def test_a_user_who_may_view_everything_changes_nothing(world: World) -> None:
    views = [name for name in permissions() if name.startswith("view_")]
    found = statuses(CALLS, session("ann", views), world)
    looks = {str(call): call.right.startswith("view_") for call in CALLS}
    assert {name: status != 403 for name, status in found.items()} == looks


def test_each_call_takes_its_permission_and_no_other(world: World) -> None:
    for right in sorted({call.right for call in CALLS}):
        calls = [call for call in CALLS if call.right == right]
        only = statuses(calls, session(f"only {right}", [right]), world)
        assert {name for name, status in only.items() if status in (401, 403, 500)} <= NAMING, right
        others = [
            name for name in permissions() if name not in (right, "ojs_admin", "ojs_read", "ojs_push", "ojs_work")
        ]
        without = statuses(calls, session(f"all but {right}", others), world)
        events = {name for name in without if "events" in name or "history" in name}  # `view_event` is enough for them
        assert {name for name, status in without.items() if status != 403} <= events, right


def test_operators_and_superusers_may_do_everything(world: World) -> None:
    for client in (session("ann", ["ojs_admin"]), session("root", is_superuser=True)):
        found = statuses(CALLS, client, world)
        assert {str(call): found[str(call)] for call in CALLS if not call.success(found[str(call)])} == {}


@pytest.mark.parametrize("scope", ["read", "push", "work"])
def test_the_permission_of_a_scope_allows_what_the_scope_allows(world: World, scope: str) -> None:
    calls = [call for call in CALLS if not call.scope.startswith("admin") and str(call) not in NAMING]
    found = statuses(calls, session("ann", [f"ojs_{scope}"]), world)
    allowed = {str(call): call.scope == scope and not call.route.startswith("webhooks/") for call in calls}
    assert {name: status != 403 for name, status in found.items()} == allowed


def permissions() -> list[str]:
    return list(Permission.objects.filter(content_type__app_label="django_ojs").values_list("codename", flat=True))


def test_an_rpc_asks_for_what_its_call_asks_for(world: World) -> None:
    pytest.importorskip("grpc")
    from tests.rights.rpcs import outcome

    texts = {held: keys.create(f"of {held}", [held])[1] for held in SCOPES}
    scopes = {str(call): call.scope for call in CALLS}
    for rpc, (asked, document) in RPCS.items():
        assert outcome(rpc, document, world.own, "") == "UNAUTHENTICATED", rpc
        for held, text in texts.items():
            named = rpc in ("Fetch", "Heartbeat") and held != "admin"  # a worker that is another's
            allowed = held in (scopes[asked], "admin") and not named
            assert (outcome(rpc, document, world.own, text) != "PERMISSION_DENIED") is allowed, (rpc, held)
