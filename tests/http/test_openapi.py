"""The OpenAPI document says what the server does: every route, every method, every answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jsonschema
import pytest
from django.core.checks import run_checks
from django.test import override_settings
from django.urls import URLPattern, URLResolver, get_resolver

from django_ojs.http import inspector, openapi
from django_ojs.http.probes import Metrics
from django_ojs.workerregistry.registration import register
from tests.http.conftest import Api, error_of
from tests.realtime.conftest import database, do  # noqa: F401 - a fixture
from tests.realtime.listening import listen
from tests.rights.world import asked
from tests.webhooks.receiver import Receiver

spectacular = pytest.importorskip("drf_spectacular")
pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.slow]
METHODS = ("get", "post", "put", "patch", "delete")


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    response = Api().get("/openapi.json")
    assert (response.status_code, response["Content-Type"]) == (200, "application/json")
    found: dict[str, Any] = response.json()
    return found


@pytest.fixture
def document(api: Api) -> dict[str, Any]:
    return _document()


def routes() -> dict[str, set[str]]:
    """Path template -> methods, read from the URLs without the help of what makes the document."""

    def walk(patterns: Any, before: str) -> Any:
        for item in patterns:
            if isinstance(item, URLResolver):
                yield from walk(item.url_patterns, before + str(item.pattern))
            elif isinstance(item, URLPattern):
                yield before + str(item.pattern), item.callback

    found: dict[str, set[str]] = {}
    for pattern, callback in walk(get_resolver("django_ojs.urls").url_patterns, "/"):
        view, given = callback.cls, callback.initkwargs
        if view.__name__ in ("NotFoundView", "Reset"):
            continue
        allowed = given.get("http_method_names", view.http_method_names)
        actions = getattr(callback, "actions", {})
        path = re.sub(r"<\w+:(\w+)>", r"{\1}", pattern)
        found.setdefault(path, set()).update(
            name for name in METHODS if name in allowed and (name in actions or hasattr(view, name))
        )
    return found


def test_every_route_is_there_with_its_methods_and_nothing_else(document: dict[str, Any]) -> None:
    assert {path: set(item) for path, item in document["paths"].items()} == routes()


def test_the_document_is_sound(document: dict[str, Any]) -> None:
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))
    components = document["components"]
    known = {f"#/components/{kind}/{name}" for kind in ("schemas", "headers") for name in components[kind]}
    assert set(re.findall(r'"\$ref":"([^"]+)"', json.dumps(document, separators=(",", ":")))) <= known
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for path, item in document["paths"].items():
        for operation in item.values():
            named = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
            assert any(code.startswith("2") for code in operation["responses"])


def test_metrics_that_are_not_public_ask_for_what_the_document_offers(settings: Any, document: dict[str, Any]) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": False, "METRICS_PUBLIC": False}
    assert {"bearer": []} in document["paths"]["/ojs/v1/metrics"]["get"]["security"]
    check_answer(response := Api().get("/metrics"), document["paths"]["/ojs/v1/metrics"]["get"], document)
    assert response.status_code == 401


def test_security_is_said_where_it_is_asked_for(document: dict[str, Any], settings: Any) -> None:
    """Without credentials exactly the calls that the document calls open get in."""
    settings.OJS = {"ALLOW_ANONYMOUS": False}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            url = re.sub(r"{\w+}", "x", path)
            status = Api().client.generic(method.upper(), url, b"").status_code
            assert (status != 401) is ({} in operation["security"]), (method, path, status)


Maker = Callable[[Api], str]


def _pending(api: Api) -> str:
    return str(api.push(pending=True)["id"])


def _active(api: Api) -> str:
    job = api.push(queue="act")["id"]
    assert api.fetch("act")["id"] == job
    return str(job)


def _ended(api: Api) -> str:
    job = _active(api)
    api.post("/workers/ack", {"job_id": job, "result": {"n": 1}})
    return job


def _stale(api: Api) -> str:
    from django_ojs import clock
    from django_ojs.models import Worker

    register("w", {})
    Worker.objects.update(last_heartbeat_at=clock.now().replace(year=2001))
    return "w"


def _failed_flow(api: Api) -> str:
    flow = api.post("/workflows", {"type": "chain", "name": "f", "steps": [
        {"type": "a.b", "args": [], "queue": "flow", "retry": {"max_attempts": 1}}]}).json()["id"]  # fmt: skip
    api.post("/workers/nack", {"job_id": api.fetch("flow")["id"], "error": {"message": "m", "code": "c"}})
    return str(flow)


def _subscription(api: Api) -> str:
    body = {"url": "https://hooks.example/", "events": ["job.*"]}
    return str(api.post("/webhooks/subscriptions", body).json()["id"])


def _delivery(api: Api) -> str:
    """One that has ended."""
    from django_ojs.models import WebhookDelivery, WebhookSubscription
    from django_ojs.models.webhook import parse_public_id

    subscription = WebhookSubscription.objects.get(pk=parse_public_id(_subscription(api), "sub_"))
    delivery = WebhookDelivery.objects.create(
        subscription=subscription, event_id="evt_x", event_type="job.completed", subject="x", body="{}",
        status="dead", attempt_count=1, max_attempts=1, response_status=500, created_at=subscription.created_at,
    )  # fmt: skip
    return delivery.public_id


#: What a path's parameter stands for: by the end of the path, else by its name.
_BY_PATH: dict[str, Maker] = {
    "/activate": _pending, "/jobs/{job_id}/ack": _active, "/jobs/{job_id}/nack": _active,
    "/jobs/{job_id}/fail": _active, "/result": _ended, "/workflows/{workflow_id}/retry": _failed_flow,
    "/jobs/{job_id}/retry": lambda api: str(api.dead_letter()["id"]),
    "/jobs/{job_id}/run": lambda api: str(api.push(scheduled_at="2098-01-01T00:00:00Z")["id"]),
}  # fmt: skip


def _flow(api: Api) -> str:
    steps = [{"type": "a.b", "args": []}]
    return str(api.post("/workflows", {"type": "chain", "name": "f", "steps": steps}).json()["id"])


def _bulk_action(api: Api) -> str:
    api.push()
    body = {"filter": {}, "confirm": True, "background": True}
    return str(api.post("/admin/jobs/bulk/cancel", body).json()["id"])


def _limit(api: Api) -> str:
    api.push(rate_limit={"key": "k", "limit": 5, "period": "PT1M"})
    api.client.put("/ojs/v1/rate-limits/k", {"concurrency": 3}, content_type="application/json")
    return "k"


def _schedule(api: Api) -> str:
    api.post("/cron", {"name": "nightly", "cron": "@daily", "type": "a.b"})
    return "nightly"


def _rule(api: Api) -> str:
    where = "/ojs/v1/admin/dead-letter/replay-rules/again"
    api.client.put(where, {"filter": {"queue": "q"}}, content_type="application/json")
    return "again"


def _schema(api: Api) -> str:
    body = {"schema": {"type": "array"}, "job_type": "mail.send", "version": "1"}
    assert api.post("/schemas", body).status_code == 201
    return "mail.send"


def _queue(api: Api) -> str:
    api.push(queue="q")
    return "q"


def _approval(api: Api) -> str:
    return asked(str(api.push()["id"]), "default", "a.b", "refund")


def _worker(api: Api) -> str:
    register("w", {"queues": ["q"]})
    return "w"


def value_of(name: str, path: str, method: str, api: Api) -> str:
    for end, make in _BY_PATH.items():
        if path.endswith(end):
            return make(api)
    if "/replay-rules" in path:
        return _rule(api)
    if "dead-letter" in path:
        return str(api.dead_letter()["id"])
    if path == "/ojs/v1/admin/workers/{worker_id}" and method == "delete":
        return _stale(api)
    if "/cron" in path:
        return _schedule(api)
    if "/schemas" in path:
        if name == "version":
            return "1"
        known = "other.job" if method == "put" else _schema(api)
        return f"urn:ojs:schema:{known}:v1" if (path, method) == ("/ojs/v1/schemas/{name}", "delete") else known
    if path == "/ojs/v1/queues/{name}" and method == "delete":
        api.post("/queues", {"name": "empty"})
        return "empty"
    if (path, method) in (("/ojs/v1/jobs/{job_id}/progress", "put"), ("/ojs/v1/jobs/{job_id}/logs", "post")):
        return _active(api)
    if "checkpoint" in path:
        job_id = _active(api)
        api.post(f"/jobs/{job_id}/checkpoint", {"state": [1], "step_index": 1})
        return job_id
    makers: dict[str, Maker] = {"job_id": lambda api: str(api.push()["id"]), "name": _queue, "worker_id": _worker,
                                "workflow_id": _flow, "key": _limit, "subscription_id": _subscription,
                                "delivery_id": _delivery, "action_id": _bulk_action,
                                "approval_id": _approval}  # fmt: skip
    return makers[name](api)


def body_of(path: str, method: str, api: Api) -> Any:
    job = {"type": "a.b", "args": []}
    cron = {"name": "nightly", "cron": "@daily", "type": "a.b"}
    tail = path.removeprefix("/ojs/v1").replace("/crons", "/cron").replace("/admin/cron", "/cron")
    bodies: dict[tuple[str, str], Callable[[], Any]] = {
        ("post", "/jobs"): lambda: job,
        ("post", "/jobs/batch"): lambda: {"jobs": [job]},
        ("post", "/jobs/bulk"): lambda: {"jobs": [job]},
        ("post", "/jobs/results"): lambda: {"ids": [_ended(api)]},
        ("post", "/jobs/fetch"): lambda: {"queues": [_queue(api)]},
        ("post", "/workers/fetch"): lambda: {"queues": [_queue(api)]},
        ("post", "/workers"): lambda: {"worker_id": "w"},
        ("post", "/workers/register"): lambda: {"worker_id": "w"},
        ("post", "/workers/deregister"): lambda: {"worker_id": _worker(api)},
        ("post", "/workers/heartbeat"): lambda: {"worker_id": "w"},
        ("post", "/workers/beat"): lambda: {"worker_id": "w"},
        ("post", "/queues"): lambda: {"name": "new"},
        ("post", "/workflows"): lambda: {"type": "chain", "name": "f", "steps": [job]},
        ("post", "/cron"): lambda: cron,
        ("put", "/cron/{name}"): lambda: cron,
        ("post", "/jobs/{job_id}/nack"): lambda: {"error": {"message": "m", "code": "c"}},
        ("post", "/jobs/{job_id}/fail"): lambda: {"error": {"message": "m", "code": "c"}},
        ("post", "/admin/schemas"): lambda: {"schema": {}, "job_type": "a.b", "version": "1"},
        ("post", "/schemas"): lambda: {"schema": {}, "job_type": "a.b", "version": "1"},
        **{
            call: lambda: {"state": {"page": 3}, "metadata": {"attempt": "1"}}
            for call in (
                ("put", "/jobs/{job_id}/checkpoint"),
                ("post", "/jobs/{job_id}/checkpoint"),
                ("post", "/checkpoints/{job_id}"),
                ("post", "/ojs/v1/checkpoints/{job_id}"),
            )
        },
        ("put", "/jobs/{job_id}/progress"): lambda: {"progress": 0.5, "message": "half", "data": {"n": 1}},
        ("post", "/jobs/{job_id}/logs"): lambda: {"lines": [{"message": "m", "level": "info", "fields": {"n": 1}}]},
        ("post", "/approvals/{approval_id}/decide"): lambda: {"approved": True, "comment": "Fine."},
        ("post", "/approvals/{approval_id}/delegate"): lambda: {"to": ["perm:shop.refund"]},
        ("post", "/durable-events"): lambda: {"name": "order.paid", "key": "7", "payload": {"cents": 1}},
        ("post", "/workers/progress"): lambda: {"job_id": _active(api), "percentage": 50},
        ("post", "/webhooks/subscriptions"): lambda: {"url": "https://hooks.example/", "events": ["job.*"]},
        ("put", "/webhooks/subscriptions/{subscription_id}"): lambda: {"events": ["job.failed"]},
        ("patch", "/webhooks/subscriptions/{subscription_id}"): lambda: {"active": False},
        ("post", "/admin/maintenance"): lambda: {"enabled": True, "duration": "1h"},
        ("post", "/admin/system/maintenance"): lambda: {"enabled": True, "reason": "new disks"},
        ("post", "/admin/workers/directive"): lambda: {"directive": "quiet"},
        ("post", "/queues/{name}/purge"): lambda: {"states": ["completed"], "confirm": True},
        ("delete", "/admin/queues/{name}/jobs"): lambda: {"states": ["completed"], "confirm": True},
    }
    if (method, tail) in bodies:
        return bodies[method, tail]()
    if tail in ("/workers/ack", "/workers/nack", "/workers/fail"):
        return {"job_id": _active(api), "error": {"message": "m", "code": "c"}}
    if "/bulk/" in tail and "admin" not in tail:
        return {"job_ids": [_ended(api) if "delete" in tail else api.push()["id"] if "cancel" in tail
                            else api.dead_letter()["id"]]}  # fmt: skip
    many = "{" not in tail and tail.endswith(("dead-letter", "dead-letter/retry", "dead-letter/purge"))
    if many or ("admin" in tail and "/bulk/" in tail):
        return {"filter": {"state": "discarded"} if "cancel" not in tail else {}, "confirm": True}
    if method == "patch" and "/jobs/" in tail:
        return {"priority": 5}
    if "/replay-rules/" in tail and method == "put":
        return {"filter": {"type": "mail.*"}}
    if method in ("put", "patch"):
        return {"schema": {}} if "schemas" in tail else {"enabled": False} if "cron" in tail else {"concurrency": 3}
    return None


def url_of(api: Api, path: str, method: str) -> str:
    """The path of something that is there."""
    url = path
    for name in re.findall(r"{(\w+)}", path):
        url = url.replace(f"{{{name}}}", value_of(name, path, method, api))
    return url


#: What the query of a call must have.
NEEDED_QUERIES = {("/ojs/v1/history", "delete"): "?before=2999-01-01T00:00:00Z"}


def called(api: Api, path: str, method: str) -> Any:
    """One call that should succeed."""
    url = url_of(api, path, method) + NEEDED_QUERIES.get((path, method), "")
    body = body_of(path, method, api)
    data, kind = (b"", "") if body is None else (json.dumps(body).encode(), "application/json")
    return api.client.generic(method.upper(), url, data, content_type=kind)


def check_answer(response: Any, operation: dict[str, Any], document: dict[str, Any]) -> None:
    """The answer is one of those documented for its status."""
    documented = operation["responses"][str(response.status_code)]
    if "content" not in documented:
        assert response.content == b""
        return
    kind = response["Content-Type"].partition(";")[0]
    whole = {**documented["content"][kind]["schema"], "components": document["components"]}
    said = response.json() if kind.endswith("json") else response.content.decode()
    jsonschema.Draft202012Validator(whole).validate(said)


OPERATIONS = sorted((path, method) for path, methods in routes().items() for method in methods)


#: What answers with nothing but a stream. The document must say so, see the first test of streams.
STREAMS = sorted(path for path, _ in OPERATIONS if path.endswith("/stream") or re.search(r"[^1]/events$", path))
#: What sends something: tried against a receiver, below.
SENDING = "/ojs/v1/webhooks/subscriptions/{subscription_id}/test"
ANSWERED = [found for found in OPERATIONS if found[0] not in STREAMS and found[0] != SENDING]


def test_a_test_of_a_webhook_answers_as_documented(api: Api, document: dict[str, Any], settings: Any) -> None:
    """Also where nobody is there to receive it."""
    settings.OJS = {**settings.OJS, "WEBHOOK_ALLOW_HTTP": True, "WEBHOOK_ALLOWED_HOSTS": ["127.0.0.1"]}
    receiver = Receiver()
    made = api.post("/webhooks/subscriptions", {"url": receiver.url(), "events": ["*"]}).json()
    for status in (200, 0):
        response = api.post(f"/webhooks/subscriptions/{made['id']}/test")
        check_answer(response, document["paths"][SENDING]["post"], document)
        assert response.json()["status_code"] == (status and 204)
        receiver.close()


def test_metrics_are_text_for_who_asks_for_it(api: Api, document: dict[str, Any]) -> None:
    response = api.get("/metrics", {"format": "prometheus"})
    check_answer(response, document["paths"]["/ojs/v1/metrics"]["get"], document)
    assert response["Content-Type"].startswith("text/plain")


def test_streams_are_documented_as_nothing_else(document: dict[str, Any]) -> None:
    only = {openapi.EVENT_STREAM}
    found = {path for path, item in document["paths"].items()
             if "get" in item and set(item["get"]["responses"]["200"].get("content", ())) == only}  # fmt: skip
    assert found == set(STREAMS)
    assert len(STREAMS) == 7
    assert {*inspector.MEDIA, *only} == set(document["paths"]["/ojs/v1/events"]["get"]["responses"]["200"]["content"])


@pytest.mark.parametrize("path", [*STREAMS, "/ojs/v1/events"])
def test_a_stream_under_wsgi_is_the_documented_refusal(api: Api, document: dict[str, Any], path: str) -> None:
    response = api.client.get(url_of(api, path, "get"), headers={"Accept": "text/event-stream"})
    error_of(response, 406, "unsupported")
    check_answer(response, document["paths"][path]["get"], document)


@pytest.mark.usefixtures("database")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", [*STREAMS, "/ojs/v1/events"])
async def test_a_stream_under_asgi_is_the_documented_answer(path: str) -> None:
    document = await do(_document)
    url = await do(url_of, Api(), path, "get")
    async with listen(url.removeprefix("/ojs/v1"), accept="text/event-stream") as stream:
        documented = document["paths"][path]["get"]["responses"][str(stream.status)]
        assert stream.status == 200
        assert stream.headers["content-type"].partition(";")[0] in documented["content"]
        assert (await stream.frame()).retry


def test_a_view_that_nobody_has_described_is_left_out_and_the_rest_stays(
    document: dict[str, Any], monkeypatch: Any, caplog: Any
) -> None:
    known = inspector.doc_of
    monkeypatch.setattr(
        inspector, "doc_of", lambda view, method: None if type(view) is Metrics else known(view, method)
    )
    found = openapi.document("1", "")["paths"]
    assert set(document["paths"]) - set(found) == {"/ojs/v1/metrics"}
    assert "leaves out GET /ojs/v1/metrics" in caplog.text


def test_without_drf_spectacular_the_path_says_so_and_all_else_works(api: Api, monkeypatch: Any) -> None:
    monkeypatch.setattr(openapi, "find_spec", lambda name: None)
    openapi._inspector.cache_clear()
    try:
        assert "django-ojs[openapi]" in error_of(api.get("/openapi.json"), 404, "not_found")["hint"]
        assert api.push()["state"] == "available"
    finally:
        openapi._inspector.cache_clear()


@pytest.mark.parametrize("urls", ["tests.urls", "tests.http.urls_below", "tests.http.urls_probed"])
def test_a_site_with_drf_spectacular_passes_its_deploy_check(settings: Any, urls: str) -> None:
    settings.ROOT_URLCONF = urls
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "drf_spectacular"]
    import drf_spectacular.checks  # noqa: F401

    found = [message for message in run_checks(include_deployment_checks=True)
             if (message.id or "").startswith("drf_spectacular")]  # fmt: skip
    assert found == []


@override_settings(ROOT_URLCONF="tests.http.urls_probed")
def test_the_root_paths_are_in_a_sites_document_under_names_of_their_own(settings: Any, caplog: Any) -> None:
    from drf_spectacular.generators import SchemaGenerator

    paths = SchemaGenerator().get_schema(request=None, public=True)["paths"]  # type: ignore[no-untyped-call]
    assert {"/health", "/healthz", "/ready", "/readyz", "/metrics", "/ojs/v1/health"} <= set(paths)
    names = [operation["operationId"] for item in paths.values() for operation in item.values()]
    assert len(names) == len(set(names))
    for path in ("/health", "/healthz", "/ready", "/readyz", "/metrics"):
        response = Api().client.get(path)
        assert response.status_code == 200
        assert response["Content-Type"].partition(";")[0] in paths[path]["get"]["responses"]["200"]["content"]
    assert not caplog.records


@override_settings(ROOT_URLCONF="tests.http.urls_below")
def test_below_a_prefix_the_server_is_named_with_it(db: None) -> None:
    document = Api().client.get("/below/ojs/v1/openapi.json").json()
    assert document["servers"] == [{"url": "/below"}]
    assert "/ojs/v1/jobs" in document["paths"]
