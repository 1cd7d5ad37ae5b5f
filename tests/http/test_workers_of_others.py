"""Whose a worker is: a call that names the worker of another principal is refused at every door and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connections
from django.test import Client

from django_ojs import clock, keys
from django_ojs.errors import PermissionDenied
from django_ojs.jobs.fetch import Fetch, fetch_each
from django_ojs.models import APIKey, Job, Worker
from django_ojs.workerregistry import ownership
from django_ojs.workerregistry.heartbeat import Beat, beat
from django_ojs.workerregistry.ownership import Principal
from tests.http.conftest import Api, error_of

WORKER = "wb"


@pytest.fixture
def owner(with_key: Any) -> Api:
    """The key of a worker of queue b, which has registered and holds a job."""
    found: Api = with_key("work", "push", queues=["b"])
    register(found)
    found.push("b.run", queue="b")
    found.fetch("b", worker_id=WORKER)
    return found


def register(api: Api, worker_id: str = WORKER, **facts: Any) -> Any:
    return api.post("/workers/register", {"worker_id": worker_id, "queues": ["b"], "hostname": "host-b", **facts})


def calls(own_job: str, queue: str = "a") -> dict[str, Callable[[Api], Any]]:
    """Every call that names the worker; the job and the queue in it are the caller's own."""
    return {
        "register": lambda api: api.post("/workers/register", {"worker_id": WORKER}),
        "create": lambda api: api.post("/workers", {"worker_id": WORKER}),
        "beat": lambda api: api.post("/workers/heartbeat", {"worker_id": WORKER}),
        "beat, terminate": lambda api: api.post("/workers/heartbeat", {"worker_id": WORKER, "state": "terminate"}),
        "beat, by another name": lambda api: api.post("/workers/beat", {"worker_id": WORKER, "shutdown": True}),
        "fetch": lambda api: api.post("/workers/fetch", {"queues": [queue], "worker_id": WORKER}),
        "fetch of jobs": lambda api: api.post("/jobs/fetch", {"queues": [queue], "worker_id": WORKER}),
        "deregister": lambda api: api.post("/workers/deregister", {"worker_id": WORKER}),
        "remove": lambda api: api.delete(f"/workers/{WORKER}"),
        "health": lambda api: api.get(f"/workers/{WORKER}/health"),
        "ack": lambda api: api.post("/workers/ack", {"job_id": own_job, "worker_id": WORKER}),
        "ack of a job": lambda api: api.post(f"/jobs/{own_job}/ack", {"worker_id": WORKER}),
        "nack": lambda api: api.post("/workers/nack", {"job_id": own_job, "worker_id": WORKER, "requeue": True}),
        "fail": lambda api: api.post(f"/jobs/{own_job}/fail", {"worker_id": WORKER, "requeue": True}),
        "progress": lambda api: api.post(
            "/workers/progress", {"job_id": own_job, "worker_id": WORKER, "progress": 0.5}
        ),
        "progress of a job": lambda api: api.client.put(
            f"/ojs/v1/jobs/{own_job}/progress", {"worker_id": WORKER, "progress": 0.5}, "application/json"
        ),
        "quiet": lambda api: api.post(f"/admin/workers/{WORKER}/quiet"),
        "resume": lambda api: api.post(f"/admin/workers/{WORKER}/resume"),
        "terminate": lambda api: api.post(f"/admin/workers/{WORKER}/terminate"),
        "restart": lambda api: api.post(f"/admin/workers/{WORKER}/restart"),
        "remove, by operators": lambda api: api.delete(f"/admin/workers/{WORKER}"),
        "look, by operators": lambda api: api.get(f"/admin/workers/{WORKER}"),
    }


NAMES = list(calls(""))
#: What nobody but an operator may do, so that the owner is refused, too.
OPERATORS = {"quiet", "resume", "terminate", "restart", "remove, by operators", "look, by operators"}


def rows() -> list[dict[str, Any]]:
    return [*Worker.objects.order_by("pk").values(), *Job.objects.order_by("pk").values()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limits", [{"queues": ["a"]}, {"job_types": ["a.*"]}, {}], ids=["queue", "type", "none"])
def test_the_worker_of_another_key_is_nobodys_business(
    owner: Api, with_key: Any, name: str, limits: dict[str, Any]
) -> None:
    scopes = ("work", "read", "push", *(["admin"] if limits else []))
    foreigner = with_key(*scopes, **limits)
    own = foreigner.push("a.run", queue="a")["id"]
    before = rows()
    if name == "look, by operators" and "job_types" in limits:  # it may serve any type, and shows its caller no other
        assert calls(own)[name](foreigner).json()["jobs"] == []
        return
    error = error_of(calls(own)[name](foreigner), 403, "permission_denied")
    assert "host-b" not in str(error)
    assert "b.run" not in str(error), "what it has to do"
    assert error["details"].get("queue") != "b"
    assert rows() == before


@pytest.mark.parametrize("name", ["deregister", "remove"])
def test_a_silent_worker_that_is_refused_tells_nothing_of_its_jobs(with_key: Any, name: str) -> None:
    """Its name is free, but it holds a job beyond the limits of who says goodbye for it."""
    owner, foreigner = with_key("work", "push", queues=["b"]), with_key("work", queues=["a"])
    owner.push("b.run", queue="b")
    owner.fetch("b", worker_id=WORKER)
    Worker.objects.update(owner="", queues=None)
    before = rows()
    error = error_of(calls("")[name](foreigner), 403, "permission_denied")
    assert ("b.run" in str(error), error["details"].get("queue")) == (False, None)
    assert rows() == before


@pytest.mark.parametrize("name", NAMES)
def test_who_registered_it_and_operators_may_name_it(owner: Api, with_key: Any, name: str) -> None:
    boss = with_key("admin")
    if name not in OPERATORS:
        status = 403 if name == "health" else 200  # which takes another scope
        assert calls(str(Job.objects.get().pk), "b")[name](owner).status_code == status, name
        register(owner)
    assert calls(str(Job.objects.get().pk), "b")[name](boss).status_code not in (401, 403), name


def test_the_owner_of_a_worker_reads_its_health(with_key: Any) -> None:
    api = with_key("work", "read", queues=["b"])
    register(api)
    assert api.get(f"/workers/{WORKER}/health").json()["queues"] == ["b"]


def test_a_worker_says_of_itself_only_what_its_key_reaches(with_key: Any) -> None:
    by_queue, by_type = with_key("work", queues=["a"]), with_key("work", job_types=["a.*"])
    for path in ("/workers/register", "/workers/heartbeat"):
        error_of(by_queue.post(path, {"worker_id": "w", "queues": ["a", "b"]}), 403, "permission_denied")
        error_of(by_type.post(path, {"worker_id": "w", "job_types": ["a.x", "b.x"]}), 403, "permission_denied")
    assert not Worker.objects.exists()


def test_a_worker_that_only_fetches_is_of_the_key_that_fetched_first(with_key: Any) -> None:
    first, second = with_key("work"), with_key("work")
    assert first.post("/workers/fetch", {"queues": ["b"], "worker_id": "f"}).status_code == 200
    error_of(second.post("/workers/fetch", {"queues": ["a"], "worker_id": "f"}), 403, "permission_denied")
    assert Worker.objects.get().queues == ["b"]
    assert first.post("/workers/fetch", {"queues": ["b"], "worker_id": "f"}).status_code == 200


class TestNamesThatAreFree:
    """A key that replaces another, and rows from before there were owners."""

    @pytest.fixture(params=["beat", "fetch", "register"])
    def come(self, request: Any) -> Callable[[Api], int]:
        """Come as the worker, and say how it went."""
        done = {"beat": "/workers/heartbeat", "fetch": "/workers/fetch", "register": "/workers/register"}[request.param]
        return lambda api: api.post(done, {"worker_id": WORKER, "queues": ["b"]}).status_code

    @pytest.mark.parametrize("how", ["revoked", "deleted", "expired", "silent"])
    def test_the_next_key_takes_the_name(self, owner: Api, with_key: Any, come: Any, how: str) -> None:
        taker = with_key("work", queues=["b"])
        assert come(taker) == 403
        key = APIKey.objects.get(queues__contains="b", scopes__contains="push")
        if how == "silent":
            Worker.objects.update(last_heartbeat_at="2020-01-01T00:00Z", last_seen_at="2020-01-01T00:00Z")
        elif how == "deleted":
            key.delete()
        elif how == "expired":
            key.expires_at = clock.now()
            key.save()
        else:
            keys.revoke(key)
        assert come(taker) == 200
        assert Worker.objects.get().owner == f"key:{APIKey.objects.latest('pk').pk}"

    def test_another_queues_key_does_not(self, owner: Api, with_key: Any) -> None:
        APIKey.objects.all().delete()
        other = with_key("work", queues=["a"])
        body = {"worker_id": WORKER, "queues": ["a"]}
        for path in ("/workers/heartbeat", "/workers/fetch", "/workers/register"):
            error_of(other.post(path, body), 403, "permission_denied")
        error_of(other.delete(f"/workers/{WORKER}"), 403, "permission_denied")

    def test_a_row_from_before_the_upgrade(self, with_key: Any, come: Any) -> None:
        Worker.objects.create(pk=WORKER, queues=["b"], started_at=clock.now(), last_seen_at=clock.now())
        other, own = with_key("work", queues=["a"]), with_key("work", queues=["b"])
        error_of(other.delete(f"/workers/{WORKER}"), 403, "permission_denied")
        assert come(own) == 200
        assert Worker.objects.get().owner.startswith("key:")
        error_of(with_key("work").delete(f"/workers/{WORKER}"), 403, "permission_denied")

    def test_an_ojs_worker_is_nobodys(self, with_key: Any, come: Any) -> None:
        beat(Beat(WORKER, incarnation="process", info={"queues": ["b"]}))
        Worker.objects.update(last_heartbeat_at="2020-01-01T00:00Z", last_seen_at="2020-01-01T00:00Z")
        for api in (with_key("work", queues=["b"]), with_key("work")):
            assert come(api) == 403
        assert come(with_key("admin")) == 200

    def test_a_worker_from_a_time_when_all_were_let_in(self, api: Api, with_key: Any, settings: Any, come: Any) -> None:
        own = with_key("work")
        settings.OJS = {"ALLOW_ANONYMOUS": True}
        register(api)
        assert Worker.objects.get().owner == ownership.ANONYMOUS
        assert come(own) == 403, "who is anonymous is still let in"
        settings.OJS = {"ALLOW_ANONYMOUS": False}
        assert come(own) == 200


def test_users_are_principals_too(db: None, settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": False}

    def user(name: str, *rights: str) -> Client:
        made = User.objects.create_user(name)
        made.user_permissions.set(Permission.objects.filter(codename__in=rights))
        client = Client()
        client.force_login(made)
        return client

    ann, bob, boss = user("ann", "change_job"), user("bob", "change_job"), user("boss", "change_job", "change_worker")
    for client, status in ((ann, 200), (bob, 403), (boss, 200), (ann, 200)):
        sent = client.post("/ojs/v1/workers/heartbeat", {"worker_id": "w"}, content_type="application/json")
        assert sent.status_code == status
    assert Worker.objects.get().owner == f"user:{User.objects.get(username='ann').pk}"


def test_calls_that_meet_have_each_their_own_answer(transactional_db: None) -> None:
    """One claim serves several callers: who names another's worker is refused, and the others have their jobs."""
    settled = [Principal("user:1"), Principal("user:2"), Principal("key:3", operator=True), None]
    asked = [Fetch(("b",), worker_id="w", who=who) for who in settled]
    outcomes = fetch_each([asked[0]], using="default")
    outcomes = fetch_each(asked, using="default")
    assert [type(one).__name__ for one in outcomes] == ["list", "PermissionDenied", "list", "list"]
    new = fetch_each([Fetch(("b",), worker_id="new", who=who) for who in settled[:2]], using="default")
    assert [type(one).__name__ for one in new] == ["list", "PermissionDenied"]
    assert Worker.objects.get(pk="new").owner == "user:1"


def test_of_two_that_register_at_once_one_has_the_name(transactional_db: None) -> None:
    barrier, outcomes = Barrier(2), []

    def come(who: Principal) -> None:
        barrier.wait()
        try:
            beat(Beat("w", who=who))
            outcomes.append(who.id)
        except Exception as error:  # noqa: BLE001 - told below
            outcomes.append(type(error).__name__)
        finally:
            connections.close_all()

    threads = [Thread(target=come, args=(Principal(f"user:{n}"),)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["PermissionDenied", Worker.objects.get().owner]


@pytest.mark.django_db
def test_what_is_known_of_a_worker_is_not_known_of_another_tenants(settings: Any) -> None:
    """Each tenant may have a key with the same primary key."""
    tenant = "one"
    settings.OJS = {**settings.OJS, "GROUP_KEY": lambda: tenant}
    caller = Principal("key:1")
    ownership.remember_owner(WORKER, caller, "default")
    Worker.objects.create(
        pk=WORKER, owner="user:2", started_at=clock.now(), last_seen_at=clock.now(), last_heartbeat_at=clock.now()
    )
    ownership.check_name(WORKER, caller, using="default")
    tenant = "two"
    with pytest.raises(PermissionDenied):
        ownership.check_name(WORKER, caller, using="default")
