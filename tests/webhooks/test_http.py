"""The endpoints: every shape that published clients read, refusals, limits of keys, and secrets that stay secret."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs import clock, enqueue, webhooks
from django_ojs.events.filters import NARROWING
from django_ojs.models import AuditEntry, WebhookDelivery, WebhookSubscription
from django_ojs.store import store_of
from django_ojs.webhooks import deliveries, subscriptions
from tests.http.conftest import Api, error_of
from tests.webhooks.conftest import SECRET, Sender, deliver, is_uuid7, relayed
from tests.webhooks.receiver import Receiver

pytestmark = pytest.mark.django_db
SUBSCRIPTIONS = "/webhooks/subscriptions"
BODY = {"url": "https://example.com/hooks", "events": ["job.completed", "job.failed"], "secret": "whsec_test_secret12"}


@pytest.fixture
def api(db: None) -> Api:
    return Api()


@pytest.fixture
def with_key(db: None, settings: Any) -> Any:
    from django_ojs import keys

    settings.OJS = {**settings.OJS, "ALLOW_ANONYMOUS": False}
    count = iter(range(100))

    def make(*scopes: str, **limits: Any) -> Api:
        _, text = keys.create(f"key {next(count)}", scopes, **limits)
        return Api(authorization=f"Bearer {text}")

    return make


def call(api: Api, method: str, path: str, body: Any = None) -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    return api.client.generic(method, f"/ojs/v1{path}", data, content_type="application/json")


def created(api: Api, **members: Any) -> dict[str, Any]:
    response = api.post(SUBSCRIPTIONS, {**BODY, **members})
    assert response.status_code == 201, response.content
    return response.json()


def test_the_published_cases_life_of_a_subscription(api: Api) -> None:
    """Create, list, get, change and delete, each read flat and inside the wrapper."""
    wanted = {"queues": ["mail"], "sources": None}
    response = api.post(SUBSCRIPTIONS, {**BODY, "filter": wanted, "metadata": {"team": "x"}})
    assert response.status_code == 201
    body = response.json()
    inner = body["subscription"]
    assert is_uuid7(inner["id"], "sub_")
    assert (inner["url"], inner["events"], inner["active"]) == (BODY["url"], BODY["events"], True)
    assert inner["secret"] == BODY["secret"]
    assert inner["filter"] == {"queues": ["mail"], "job_types": []}
    assert inner["metadata"] == {"team": "x"}
    assert {name: body[name] for name in inner} == inner
    path = f"{SUBSCRIPTIONS}/{inner['id']}"
    assert response["Location"] == f"/ojs/v1{path}"

    listed = api.get(SUBSCRIPTIONS).json()
    assert listed["subscriptions"] == listed["items"]
    assert [entry["id"] for entry in listed["items"]] == [inner["id"]]
    assert (listed["total"], listed["pagination"]["total"]) == (1, 1)

    got = api.get(path).json()
    assert got["subscription"]["id"] == got["id"] == inner["id"]
    assert "secret" not in got
    assert "secret" not in got["subscription"]

    for method in ("PATCH", "PUT"):
        changed = call(api, method, path, {"active": False, "events": ["job.*"]}).json()
        assert (changed["active"], changed["events"], changed["url"]) == (False, ["job.*"], BODY["url"])
        assert changed["subscription"]["active"] is False
        assert changed["filter"]["queues"] == ["mail"], "what is not named stays"
        assert "secret" not in changed

    assert api.delete(path).status_code == 204
    error_of(api.get(path), 404, "not_found")
    error_of(api.delete(path), 404, "not_found")


def test_a_secret_is_made_where_none_is_given_and_stored_encrypted(api: Api) -> None:
    body = {name: BODY[name] for name in ("url", "events")}
    first, second = (api.post(SUBSCRIPTIONS, body).json()["secret"] for _ in range(2))
    assert first.startswith("whsec_")
    assert len(first) >= len("whsec_") + 43
    assert first != second
    created(api)
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM django_ojs_webhooksubscription")
        stored = repr(cursor.fetchall())
    assert first not in stored
    assert BODY["secret"] not in stored


def test_secrets_that_an_older_release_stored_can_be_read(settings: Any) -> None:
    settings.SECRET_KEY = "the key of a site"
    stored = "gAAAAABrBCs2LW-HBXYxjklMQ2Io6I22zL2V5P4e8qwrJ1BqE6PjLocMaQbvr2irZU6aqZQhYbzXdOcDYlLwvTQqAl107S3Whw=="
    assert subscriptions.unseal(stored) == "whsec_old"


def test_a_new_secret_key_reads_old_secrets_through_its_fallbacks(api: Api, settings: Any) -> None:
    row = WebhookSubscription.objects.get(pk=created(api)["id"].removeprefix("sub_"))
    old = settings.SECRET_KEY
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another", [old]
    assert subscriptions.unseal(row.secret) == BODY["secret"]
    settings.SECRET_KEY_FALLBACKS = []
    with pytest.raises(subscriptions.UnreadableSecret):
        subscriptions.unseal(row.secret)
    assert api.get(f"{SUBSCRIPTIONS}/{row.public_id}").status_code == 200
    tested = api.post(f"{SUBSCRIPTIONS}/{row.public_id}/test").json()
    assert tested["success"] is False
    assert "SECRET_KEY_FALLBACKS" in tested["error"]


def test_what_was_read_can_be_sent_back_with_a_change(api: Api) -> None:
    """As a form does that loads the whole object, wrapper and all."""
    path = f"{SUBSCRIPTIONS}/{created(api, headers={'X-A': 'b'}, filter={'queues': ['mail']})['id']}"
    before = api.get(path).json()
    after = call(api, "PUT", path, {**before, "active": False}).json()
    assert after["active"] is False
    for name in before.keys() - {"active", "updated_at", "subscription"}:
        assert after[name] == before[name], name
    assert json.loads(subscriptions.unseal(WebhookSubscription.objects.get().headers)) == {"X-A": "b"}


def test_a_change_that_names_no_member_of_a_subscription_is_refused(api: Api) -> None:
    path = f"{SUBSCRIPTIONS}/{created(api)['id']}"
    error = error_of(call(api, "PATCH", path, {"enabled": False}), 400, "invalid_request")
    assert (error["details"]["field"], "active" in error["message"]) == ("enabled", True)
    assert call(api, "PATCH", path, {"enabled": False, "active": False}).json()["active"] is False
    assert call(api, "PATCH", path, {}).status_code == 200


def test_hidden_headers_do_not_go_to_another_server(api: Api) -> None:
    subscription = created(api, url="https://example.com/a", headers={"Authorization": "Bearer hush"})
    path = f"{SUBSCRIPTIONS}/{subscription['id']}"
    call(api, "PATCH", path, {"url": "https://example.com/b"})
    for url in ("https://example.org/b", "https://sub.example.com/b"):
        for more in ({}, {"headers": {"Authorization": "***"}}):
            error = error_of(call(api, "PATCH", path, {"url": url, **more}), 400, "invalid_request")
            assert error["details"]["field"] == "headers"
    assert WebhookSubscription.objects.get().url == "https://example.com/b"
    changed = call(api, "PATCH", path, {"url": "https://example.org/b", "headers": {"Authorization": "new"}}).json()
    assert changed["url"] == "https://example.org/b"
    assert call(api, "PATCH", path, {"url": "https://example.com/b", "headers": {}}).json()["headers"] == {}


def test_rotation_shows_the_new_secret_once(api: Api, frozen_clock: Any) -> None:
    path = f"{SUBSCRIPTIONS}/{created(api)['id']}"
    rotated = api.post(f"{path}/rotate-secret").json()
    assert rotated["new_secret"] == rotated["secret"] != BODY["secret"]
    assert rotated["previous_secret_expires_at"] == "2026-01-16T12:00:00.000Z"
    assert api.post(f"{path}/rotate-secret", {"secret": "mine"}).json()["secret"] == "mine"
    error_of(api.post(f"{path}/rotate-secret", {"secret": ""}), 400, "invalid_request")
    everything = api.get(path).content + api.get(SUBSCRIPTIONS).content + api.get("/events").content
    assert b"mine" not in everything
    assert rotated["secret"].encode() not in everything


def test_custom_headers_are_hidden_and_come_back_unharmed(api: Api) -> None:
    subscription = created(api, headers={"Authorization": "Bearer hush", "X-Team": "a"})
    assert subscription["headers"] == {"Authorization": "***", "X-Team": "***"}
    path = f"{SUBSCRIPTIONS}/{subscription['id']}"
    call(api, "PUT", path, {"headers": {"Authorization": "***", "X-Team": "b"}})
    row = WebhookSubscription.objects.get()
    assert json.loads(subscriptions.unseal(row.headers)) == {"Authorization": "Bearer hush", "X-Team": "b"}
    assert call(api, "PATCH", path, {"headers": None}).json()["headers"] == {}


@pytest.mark.parametrize(
    "members, field",
    [
        ({"url": None}, "url"), ({"url": 5}, "url"), ({"url": "nonsense"}, "url"), ({"url": "ftp://x.example"}, "url"),
        ({"events": None}, "events"), ({"events": []}, "events"), ({"events": "job.*"}, "events"),
        ({"events": ["Job"]}, "events"), ({"events": ["job.*.x"]}, "events"), ({"events": [None]}, "events"),
        ({"events": ["a" * 65]}, "events"), ({"active": "yes"}, "active"), ({"secret": ""}, "secret"),
        ({"secret": "a\nb"}, "secret"), ({"secret": "a" * 513}, "secret"), ({"filter": []}, "filter"),
        ({"filter": {"queue": ["mail"]}}, "filter.queue"), ({"filter": {}, "queues": ["mail"]}, "queues"),
        ({"filter": {"queues": "mail"}}, "filter.queues"), ({"filter": {"queues": ["No Queue"]}}, "filter.queues"),
        ({"filter": {"job_types": [5]}}, "filter.job_types"), ({"filter": {"job_types": ["*"]}}, "filter.job_types"),
        ({"metadata": []}, "metadata"), ({"metadata": {"a": "x" * 20_000}}, "metadata"),
        ({"metadata": {"a": "é" * 10_000}}, "metadata"),
        ({"headers": ["a"]}, "headers"), ({"headers": {"Host": "x"}}, "headers"),
        ({"headers": {"a b": "x"}}, "headers"),
        ({"headers": {"X-OJS-Signature": "x"}}, "headers"), ({"headers": {"X-A": "a\r\nX-B: b"}}, "headers"),
        ({"headers": {"X-A": "1", "x-a": "2"}}, "headers"), ({"headers": {"X-A": ""}}, "headers"),
        ({"timeout_seconds": 4}, "timeout_seconds"), ({"timeout_seconds": 61}, "timeout_seconds"),
        ({"timeout_seconds": "5"}, "timeout_seconds"), ({"signature_format": "md5"}, "signature_format"),
        ({"signature_format": []}, "signature_format"),
    ],
)  # fmt: skip
def test_bad_bodies_are_refused_by_name_and_store_nothing(api: Api, members: dict[str, Any], field: str) -> None:
    error = error_of(api.post(SUBSCRIPTIONS, {**BODY, **members}), 400, "invalid_request")
    assert error["details"]["field"] == field
    assert not WebhookSubscription.objects.exists()
    if None not in members.values():  # null leaves a member as it is
        path = f"{SUBSCRIPTIONS}/{created(api)['id']}"
        error_of(call(api, "PATCH", path, members), 400, "invalid_request")


@pytest.mark.parametrize(
    "url", ["https://localhost/", "https://10.0.0.1/", "https://[::1]/", "https://169.254.169.254/latest", "https://x:y@e.com/"]
)  # fmt: skip
def test_urls_against_the_policy_are_422(api: Api, settings: Any, url: str) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    error = error_of(api.post(SUBSCRIPTIONS, {**BODY, "url": url}), 422, "invalid_url")
    assert error["details"]["field"] == "url"
    path = f"{SUBSCRIPTIONS}/{created(api)['id']}"
    error_of(call(api, "PATCH", path, {"url": url}), 422, "invalid_url")


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b'"x"', b"\xff", b"[" * 300])
def test_what_is_no_object_is_400(api: Api, body: bytes) -> None:
    error_of(api.raw(SUBSCRIPTIONS, body), 400, "invalid_payload")


@pytest.mark.parametrize(
    "text", ["x", "sub_", "sub_x", "sub_" + "0" * 32, "00000000-0000-7000-8000-000000000000", "%00"]
)
def test_ids_that_cannot_be_are_not_found(api: Api, text: str) -> None:
    for path in (f"{SUBSCRIPTIONS}/{text}", f"/webhooks/deliveries/{text}"):
        error_of(api.get(path), 404, "not_found")


def test_a_test_reports_what_the_receiver_said(api: Api, receiver: Receiver) -> None:
    path = f"{SUBSCRIPTIONS}/{created(api, url=receiver.url())['id']}/test"
    receiver.plan((200, {}, b"<b>thanks</b>"), 500)
    good = api.post(path).json()
    assert (good["success"], good["status_code"], good["status"]) == (True, 200, 200)
    assert good["response_body"] == "<b>thanks</b>"
    assert isinstance(good["response_time_ms"], int)
    bad = api.post(path)
    assert bad.status_code == 200
    assert (bad.json()["success"], bad.json()["status_code"]) == (False, 500)
    assert receiver.got[0].event["type"] == "webhook.test"
    receiver.close()
    gone = api.post(path).json()
    assert (gone["success"], gone["status_code"], gone["error"]) == (False, 0, "The connection was refused.")


@pytest.mark.django_db(transaction=True)
def test_the_record_of_deliveries_and_a_retry(api: Api, receiver: Receiver, sender: Sender) -> None:
    mine = created(api, url=receiver.url(), events=["job.enqueued"])
    other = created(api, url=receiver.url("/other"), events=["job.enqueued"])
    receiver.by_path["/other"] = (400, {}, b"no thanks")
    for _ in range(3):
        enqueue("a.b")
    deliver(sender)
    page = api.get("/webhooks/deliveries", {"per_page": 4}).json()
    assert page["items"] == page["deliveries"]
    assert len(page["items"]) == 4
    assert page["pagination"]["total"] == 6
    rest = api.get("/webhooks/deliveries", {"limit": 4, "cursor": page["pagination"]["next_cursor"]}).json()["items"]
    assert len({entry["id"] for entry in page["items"] + rest}) == 6
    good = api.get("/webhooks/deliveries", {"subscription_id": mine["id"]}).json()["items"]
    assert {entry["subscription_id"] for entry in good} == {mine["id"]}
    assert {entry["status"] for entry in good} == {"success"}
    dead = api.get("/webhooks/deliveries", {"status": "dead", "event_type": "job.enqueued"}).json()["items"]
    assert {entry["subscription_id"] for entry in dead} == {other["id"]}
    for types, count in (("job.failed", 0), ("JOB.ENQUEUED", 0), ("job.failed, job.enqueued", 1), (",", 1)):
        asked = {"status": "dead", "event_type": types, "limit": 1}
        assert len(api.get("/webhooks/deliveries", asked).json()["items"]) == count, types
    many = ",".join(f"job.{n}*" for n in range(1000))
    error_of(api.get("/webhooks/deliveries", {"event_type": many}), 400, "invalid_request")
    error_of(api.get("/webhooks/deliveries", {"status": "lost"}), 400, "invalid_request")

    path = f"/webhooks/deliveries/{dead[0]['id']}"
    detail = api.get(path).json()
    assert (detail["response_status"], detail["response_body"], detail["attempt_count"]) == (400, "no thanks", 1)
    assert detail["attempts"][0]["error"] == "The receiver answered 400."
    again = api.post(f"{path}/retry")
    assert (again.status_code, again.json()["status"]) == (202, "pending")
    error_of(api.post(f"{path}/retry"), 409, "conflict")
    receiver.by_path["/other"] = (200, {}, b"")
    sender.until_idle()
    assert api.get(path).json()["status"] == "success"

    assert api.delete(f"{SUBSCRIPTIONS}/{other['id']}").status_code == 204
    assert api.get(path).status_code == 200, "the record stays"
    error_of(api.post(f"{path}/retry"), 409, "conflict")


def test_scopes(with_key: Any) -> None:
    path = f"{SUBSCRIPTIONS}/{created(with_key('admin'))['id']}"
    reader, pusher = with_key("read"), with_key("push", "work")
    assert reader.get(path).status_code == 200
    assert reader.get("/webhooks/deliveries").status_code == 200
    for api in (reader, pusher):
        error_of(api.post(SUBSCRIPTIONS, BODY), 403, "permission_denied")
        error_of(call(api, "PATCH", path, {"active": False}), 403, "permission_denied")
        error_of(api.delete(path), 403, "permission_denied")
        error_of(api.post(f"{path}/test"), 403, "permission_denied")
        error_of(api.post(f"{path}/rotate-secret"), 403, "permission_denied")
    error_of(pusher.get(path), 403, "permission_denied")
    error_of(Api().get(path), 401, "unauthenticated")


def test_every_write_has_its_entry_in_the_audit_log_without_a_secret(with_key: Any, receiver: Receiver) -> None:
    admin = with_key("admin")
    mine = created(admin, url=receiver.url("/token"), secret=SECRET)
    path = f"{SUBSCRIPTIONS}/{mine['id']}"
    call(admin, "PATCH", path, {"metadata": {"a": 1}})
    delivery = admin.post(f"{path}/test").json()["delivery_id"]
    admin.post(f"{path}/rotate-secret", {"secret": SECRET})
    assert admin.post(f"/webhooks/deliveries/{delivery}/retry").status_code == 202
    error_of(admin.post(f"/webhooks/deliveries/{delivery}/retry"), 409, "conflict")
    admin.delete(path)
    entries = list(AuditEntry.objects.order_by("id"))
    verbs = ("create", "update", "test", "rotate", "replay", "delete")
    assert [entry.action for entry in entries] == [f"webhook.{verb}" for verb in verbs]
    assert [entry.target for entry in entries] == [delivery if verb == "replay" else mine["id"] for verb in verbs]
    for word in (SECRET, "/token"):
        assert word not in str(list(AuditEntry.objects.values()))


@pytest.mark.parametrize("word", sorted(NARROWING - {"filter", "filters", "queues", "job_types"}))
def test_what_does_not_narrow_a_webhook_is_refused_beside_the_filter_too(with_key: Any, word: str) -> None:
    admin = with_key("admin")
    made = created(admin)
    for body in ({word: ["x"]}, {"filter": {"queues": ["mail"]}, word: "x"}, {"subscription": {**BODY, word: ["x"]}}):
        refused = error_of(admin.post(SUBSCRIPTIONS, {**BODY, **body}), 400, "invalid_request")
        assert refused["details"]["field"] == word
    error_of(call(admin, "PATCH", f"{SUBSCRIPTIONS}/{made['id']}", {"active": True, word: "x"}), 400, "invalid_request")
    assert call(admin, "PUT", f"{SUBSCRIPTIONS}/{made['id']}", made).status_code == 200


def test_two_filters_of_a_webhook_say_the_same_or_are_refused(with_key: Any) -> None:
    admin, wanted = with_key("admin"), {"queues": ["mail"]}
    error = error_of(admin.post(SUBSCRIPTIONS, {**BODY, "filter": {}, "filters": wanted}), 400, "invalid_request")
    assert error["details"]["field"] == "filters"
    assert created(admin, filter=wanted, filters=wanted)["filter"] == {"queues": ["mail"], "job_types": []}


def test_answers_of_receivers_are_for_administrators(with_key: Any, receiver: Receiver) -> None:
    admin, reader = with_key("admin"), with_key("read")
    receiver.plan((200, {}, b"internal"))
    tested = admin.post(f"{SUBSCRIPTIONS}/{created(admin, url=receiver.url())['id']}/test").json()
    path = f"/webhooks/deliveries/{tested['delivery_id']}"
    assert admin.get(path).json()["response_body"] == "internal"
    assert "response_body" not in reader.get(path).json()


def test_a_limited_key_subscribes_to_its_own_and_sees_only_that(with_key: Any) -> None:
    everybody = created(with_key("admin"))
    limited = with_key("admin", queues=["mail", "sms"], job_types=["mail.*"])
    narrowed = created(limited)
    assert narrowed["filter"] == {"queues": ["mail", "sms"], "job_types": ["mail.*"]}
    exact = created(limited, filter={"queues": ["mail"], "job_types": ["mail.send"]})
    for beyond in ({"queues": ["other"]}, {"queues": ["mail", "other"]}, {"job_types": ["other.x"]}):
        for written in ({"filter": beyond}, beyond):
            error_of(limited.post(SUBSCRIPTIONS, {**BODY, **written}), 403, "permission_denied")
    beside = created(with_key("admin"), queues=["mail"])
    assert beside["filter"] == {"queues": ["mail"], "job_types": []}
    listed = limited.get(SUBSCRIPTIONS).json()
    assert {entry["id"] for entry in listed["items"]} == {narrowed["id"], exact["id"]}
    assert listed["total"] == 2
    path = f"{SUBSCRIPTIONS}/{exact['id']}"
    error_of(call(limited, "PATCH", path, {"filter": {"queues": ["other"]}}), 403, "permission_denied")
    widened = call(limited, "PATCH", path, {"filter": None}).json()
    assert widened["filter"] == {"queues": ["mail", "sms"], "job_types": ["mail.*"]}, "as wide as the key, and no wider"
    stranger = with_key("admin", queues=["other"])
    for path in (f"{SUBSCRIPTIONS}/{everybody['id']}", f"{SUBSCRIPTIONS}/{exact['id']}"):
        error_of(stranger.get(path), 403, "permission_denied")
        error_of(call(stranger, "PATCH", path, {"active": False}), 403, "permission_denied")
        error_of(stranger.delete(path), 403, "permission_denied")
        error_of(stranger.post(f"{path}/test"), 403, "permission_denied")
        error_of(stranger.post(f"{path}/rotate-secret"), 403, "permission_denied")
    assert stranger.get(SUBSCRIPTIONS).json()["items"] == []


def test_a_limited_key_sees_only_its_deliveries(with_key: Any) -> None:
    created(with_key("admin"), events=["*"])
    limited = with_key("admin", queues=["mail"])
    created(limited, events=["*"])
    enqueue("a.b", queue="mail")
    enqueue("a.b", queue="other")
    relayed()
    assert WebhookDelivery.objects.count() == 3
    (seen,) = limited.get("/webhooks/deliveries").json()["items"]
    assert limited.get(f"/webhooks/deliveries/{seen['id']}").status_code == 200
    hidden = WebhookDelivery.objects.exclude(uid=seen["id"].removeprefix("del_")).first()
    assert hidden is not None
    error_of(limited.get(f"/webhooks/deliveries/{hidden.public_id}"), 403, "permission_denied")
    error_of(limited.post(f"/webhooks/deliveries/{hidden.public_id}/retry"), 403, "permission_denied")


@pytest.mark.parametrize("narrow", [{"queues": ["mail"]}, {"job_types": ["mail.*"]}])
def test_what_a_subscription_got_before_it_was_narrowed_is_beyond_a_key_of_its_new_filter(
    with_key: Any, narrow: dict[str, Any]
) -> None:
    """Such a key may give it another URL, and have its deliveries sent there."""
    wide = {name: [*names, "other" if name == "queues" else "other.*"] for name, names in narrow.items()}
    owner, limited = with_key("admin", **wide), with_key("admin", **narrow)
    made = created(owner, events=["job.enqueued"])
    own, other = ({"queue": name, "type": f"{name}.x"} for name in ("mail", "other"))
    jobs = [enqueue(one["type"], queue=one["queue"]) for one in (own, other, other)]
    moved = str(jobs[0].id)
    relayed()
    ended = WebhookDelivery.objects.filter(subject=str(jobs[1].id))
    ended.update(status="dead", next_attempt_at=None)
    # A job that came from beyond: its older delivery is the one that is due, and the other one waits for it.
    WebhookDelivery.objects.filter(subject=str(jobs[2].id)).update(subject=moved)
    WebhookDelivery.objects.filter(subject=moved, type="mail.x").update(held=True, next_attempt_at=None)
    path = f"{SUBSCRIPTIONS}/{made['id']}"
    error_of(limited.get(path), 403, "permission_denied")
    assert call(owner, "PATCH", path, {"filter": narrow}).status_code == 200
    assert limited.get(path).status_code == 200
    (seen,) = limited.get("/webhooks/deliveries", {"subscription_id": made["id"]}).json()["items"]
    assert (seen["subject"], seen["held"], seen["status"]) == (moved, False, "pending")
    assert list(WebhookDelivery.objects.order_by("pk").values_list("type", "status")) == [
        ("mail.x", "pending"), ("other.x", "dead"),
    ]  # fmt: skip
    hidden = f"/webhooks/deliveries/{ended.get().public_id}"
    error_of(limited.get(hidden), 403, "permission_denied")
    error_of(limited.post(f"{hidden}/retry"), 403, "permission_denied")
    assert owner.get(hidden).status_code == 200
    WebhookDelivery.objects.filter(subject=moved).update(event_type="webhook.test", queue="", type="")
    (seen,) = limited.get("/webhooks/deliveries").json()["items"]
    assert limited.get(f"/webhooks/deliveries/{seen['id']}").json()["event_type"] == "webhook.test"


def test_workers_of_a_queue_are_news_for_its_subscribers_but_not_for_limited_ones(with_key: Any) -> None:
    from django_ojs.workerregistry.registration import register

    admin = with_key("admin")
    wide = created(admin, events=["worker.*"], filter={"queues": ["mail"]})
    created(admin, events=["worker.*"], filter={"queues": ["other"]})
    created(with_key("admin", queues=["mail"]), events=["worker.*"])
    register("w", {"hostname": "h", "queues": ["mail", "secret-queue"]})
    relayed()
    assert {f"sub_{row.subscription_id}" for row in WebhookDelivery.objects.all()} == {wide["id"]}


def test_there_are_only_so_many(api: Api, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "WEBHOOK_MAX_SUBSCRIPTIONS": 1}
    created(api)
    error_of(api.post(SUBSCRIPTIONS, BODY), 409, "conflict")


def test_limited_keys_leave_some_for_others(with_key: Any, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "WEBHOOK_MAX_SUBSCRIPTIONS": 4}
    mail, other, everything = with_key("admin", queues=["mail"]), with_key("admin", queues=["other"]), with_key("admin")
    for caller, number in ((mail, 2), (other, 1), (everything, 1)):
        for _ in range(number):
            created(caller)
        error_of(caller.post(SUBSCRIPTIONS, BODY), 409, "conflict")


def test_two_who_subscribe_at_once_do_not_exceed_the_number(
    api: Api, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who had to wait for the lock sees what the other one has made."""
    settings.OJS = {**settings.OJS, "WEBHOOK_MAX_SUBSCRIPTIONS": 1}

    def lock(stripes: Any) -> None:
        now = clock.now(connection.alias)
        WebhookSubscription.objects.create(
            url=BODY["url"], events=["*"], secret="", active=False, created_at=now, updated_at=now
        )

    monkeypatch.setattr(store_of(connection.alias), "lock_stripes", lock)
    error_of(api.post(SUBSCRIPTIONS, BODY), 409, "conflict")


def test_without_the_packages_it_says_what_to_install(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_ojs.checks import check_webhooks

    monkeypatch.setattr(webhooks, "missing", lambda: ("urllib3",))
    error = error_of(api.post(SUBSCRIPTIONS, BODY), 422, "unsupported")
    assert "django-ojs[webhooks]" in error["hint"]
    (note,) = check_webhooks()
    assert (note.id, "urllib3" in note.msg) == ("django_ojs.I001", True)


def test_a_missing_package_is_told_where_it_matters_and_not_by_every_command(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(**given: Any) -> set[str | None]:
        return {message.id for message in run_checks(**given)} & {"django_ojs.I001", "django_ojs.W009"}

    monkeypatch.setattr(webhooks, "missing", lambda: ("urllib3",))
    assert told() == told(databases=["default"]) == set()
    assert told(include_deployment_checks=True) == {"django_ojs.I001"}
    monkeypatch.undo()
    created(api)
    monkeypatch.setattr(webhooks, "missing", lambda: ("urllib3",))
    assert told() == set()
    assert told(databases=["default"]) == {"django_ojs.W009"}
    WebhookSubscription.objects.update(active=False)
    assert told(databases=["default"]) == set()


def test_the_manifest_says_so(api: Api) -> None:
    manifest = api.client.get("/ojs/manifest").json()
    assert manifest["capabilities"]["webhooks"] is True
    assert "webhook" in manifest["events"]["transports"]
    assert "urn:ojs:ext:webhooks" in {entry["uri"] for entry in manifest["extensions"]["official"]}


def test_a_list_costs_the_same_however_long_it_is(api: Api, long_memory: None) -> None:
    def cost(path: str) -> int:
        with CaptureQueriesContext(connection) as seen:
            assert api.get(path).status_code == 200
        return len(seen)

    created(api, events=["*"])
    enqueue("a.b")
    relayed()
    before = [cost(path) for path in (SUBSCRIPTIONS, "/webhooks/deliveries")]
    for _ in range(10):
        created(api, events=["*"])
        enqueue("a.b")
    relayed()
    assert [cost(path) for path in (SUBSCRIPTIONS, "/webhooks/deliveries")] == before


def test_nothing_of_a_secret_is_logged_or_recorded(
    api: Api, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    body = created(api, url=receiver.url("/token-in-the-path"), secret=SECRET, headers={"Authorization": "hush-hush"})
    api.post(f"{SUBSCRIPTIONS}/{body['id']}/test")
    types = "webhook.subscription.created,webhook.subscription.updated"
    told = caplog.text + api.get("/events", {"types": types}).content.decode()
    for word in (SECRET, "hush-hush", "token-in-the-path"):
        assert word not in told.replace(f"POST {receiver.url('/token-in-the-path')}", "")


def test_every_act_has_its_entry_and_none_holds_a_secret(api: Api, receiver: Receiver) -> None:
    made = created(api, url=receiver.url(), events=["job.*"])
    path = f"{SUBSCRIPTIONS}/{made['id']}"
    assert call(api, "PATCH", path, {"active": False}).status_code == 200
    assert call(api, "PUT", path, {"active": True}).status_code == 200
    assert api.post(f"{path}/rotate-secret", {"secret": "another-secret-for-tests"}).status_code == 200
    assert api.post(f"{path}/test").status_code == 200
    enqueue("mail.send", queue="mail")
    relayed()
    delivery = WebhookDelivery.objects.exclude(event_type="webhook.test").get()
    WebhookDelivery.objects.filter(pk=delivery.pk).update(status="dead", next_attempt_at=None)
    assert api.post(f"/webhooks/deliveries/{delivery.public_id}/retry").status_code == 202
    assert api.delete(path).status_code == 204
    entries = list(AuditEntry.objects.order_by("id"))
    assert [(entry.action, entry.target) for entry in entries] == [
        ("webhook.create", made["id"]), ("webhook.update", made["id"]), ("webhook.update", made["id"]),
        ("webhook.rotate", made["id"]), ("webhook.test", made["id"]), ("webhook.replay", delivery.public_id),
        ("webhook.delete", made["id"]),
    ]  # fmt: skip
    assert entries[1].detail == {"active": False}
    assert "secret-for-tests" not in str(list(AuditEntry.objects.values()))


def test_a_receiver_that_cannot_be_tested_leaves_no_entry(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    made = created(api)
    monkeypatch.setattr(deliveries, "_tests", threading.BoundedSemaphore(1))
    deliveries._tests.acquire()
    error_of(api.post(f"{SUBSCRIPTIONS}/{made['id']}/test"), 429, "rate_limited")
    assert not AuditEntry.objects.filter(action="webhook.test").exists()
    assert not WebhookDelivery.objects.exists()
