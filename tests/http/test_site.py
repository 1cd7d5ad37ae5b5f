"""The API inside a site with settings, middleware and URLs of its own."""

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.contrib.auth.models import Permission, User
from django.db import connection, connections
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import URLPattern, URLResolver, get_resolver, include, path, reverse

from django_ojs.models import Job
from tests.http.conftest import Api, error_of

MIDDLEWARE = list(django_settings.MIDDLEWARE)
JOB = {"type": "a.b", "args": [1]}


def page_not_found(request: Any, exception: Any) -> HttpResponse:
    return HttpResponse("<h1>Nothing here</h1>", status=404)


def server_error(request: Any) -> HttpResponse:
    return HttpResponse("<h1>Oh no</h1>", status=500)


handler404 = page_not_found
handler500 = server_error
urlpatterns = [
    path("", include("django_ojs.urls")),
    path("", include("django_ojs.http.probes")),
    path("login/", lambda request: HttpResponse("log in")),
]


class Prefixed:
    urlpatterns = [path("api/jobs ü/", include("django_ojs.urls"))]


def every_view() -> list[Any]:
    def walk(patterns: Any) -> Any:
        for item in patterns:
            if isinstance(item, URLResolver):
                yield from walk(item.url_patterns)
            elif isinstance(item, URLPattern):
                yield item.callback

    return list(walk(get_resolver("django_ojs.urls").url_patterns))


# Paths


@override_settings(ROOT_URLCONF=__name__)
@pytest.mark.parametrize(
    "path",
    [
        "/ojs", "/ojs/", "/ojs/v1", "/ojs/v1/", "/ojs/v2/jobs", "/ojs/v1/nowhere", "/ojs/v1/jobs/", "/ojs/manifest/",
        "/ojs/v1/queues/", "/ojs/v1/queues/a/b", "/ojs/v1//jobs", "/ojs/v1/jobs/bulk/x", "/ojs/v1/jobs/results/x",
        "/ojs/v1/%0A", "/ojs/v1/x%0Ay/z", "/ojs/%00", "/ojs/%FF%FE", "/ojs/%ED%A0%80", "/ojs/" + "x" * 100_000,
        "/ojs/v1/dead-letter/retry/x", "/ojs/v1/admin/reset", "/ojs/v1/queues/a/b/c", "/ojs/v1/..%2F..%2Fadmin",
    ],
)  # fmt: skip
def test_unknown_paths_are_ours_to_answer_by_every_method(api: Api, path: str) -> None:
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        response = api.client.generic(method, path, b"", content_type="application/json")
        assert response["Content-Type"] == "application/openjobspec+json"
        error_of(response, 404, "not_found")


@override_settings(ROOT_URLCONF=__name__, APPEND_SLASH=True)
def test_nothing_is_redirected(api: Api) -> None:
    for target in ("/ojs", "/ojs/v1", "/ojs/v1/job", "/ojs/v1/jobs/", "/ojs/manifest/"):
        assert api.client.get(target).status_code == 404


@override_settings(ROOT_URLCONF=__name__)
def test_what_only_looks_like_ours_is_the_sites(api: Api) -> None:
    assert b"<h1>" in api.client.get("/ojsx").content
    assert b"<h1>" in api.client.get("/elsewhere").content


@pytest.mark.parametrize(
    "path, allow",
    [
        ("/jobs", "GET, POST, HEAD, OPTIONS"),
        ("/jobs/batch", "POST, OPTIONS"),
        ("/jobs/019539a4-0000-7000-8000-000000000000", "GET, DELETE, HEAD, OPTIONS, PATCH"),
        ("/workers/fetch", "POST, OPTIONS"),
        ("/queues", "GET, POST, HEAD, OPTIONS"),
        ("/dead-letter", "GET, DELETE, HEAD, OPTIONS"),
        ("/dead-letter/retry", "POST, OPTIONS"),
        ("/events", "GET, HEAD, OPTIONS"),
        ("/health", "GET, HEAD, OPTIONS"),
    ],
)
def test_a_wrong_method_is_405_with_the_right_ones(api: Api, path: str, allow: str) -> None:
    for method in {"PUT", "PATCH"}.difference(allow.split(", ")) | {"TRACE", "BREW", "INITIAL"}:
        response = api.client.generic(method, f"/ojs/v1{path}")
        error_of(response, 405, "invalid_request")
        assert sorted(response["Allow"].split(", ")) == sorted(allow.split(", "))


def test_the_urls_have_names() -> None:
    assert reverse("ojs:jobs") == "/ojs/v1/jobs"
    assert reverse("ojs:job", args=["1"]) == "/ojs/v1/jobs/1"


@override_settings(ROOT_URLCONF=Prefixed)
def test_a_site_may_put_it_below_a_prefix(db: None) -> None:
    client = Client()
    response = client.post("/api/jobs ü/ojs/v1/jobs", JOB, content_type="application/json")
    assert response["Location"].startswith("/api/jobs%20%C3%BC/ojs/v1/jobs/")
    assert client.get(response["Location"]).status_code == 200
    manifest = client.get("/api/jobs ü/ojs/manifest").json()
    assert manifest["endpoints"]["base_url"] == "http://testserver/api/jobs%20%C3%BC/ojs/v1"


def test_probes_are_where_the_site_includes_them(api: Api) -> None:
    assert api.client.get("/healthz").status_code == 404
    with override_settings(ROOT_URLCONF=__name__):
        assert api.client.get("/health").json()["status"] == "ok"
        assert api.client.get("/healthz").json() == {"status": "ok"}
        assert api.client.get("/ready").json() == api.client.get("/readyz").json() == {"status": "ready"}


# Middleware


@override_settings(
    MIDDLEWARE=[*MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"], LOGIN_URL="/login/"
)
def test_no_client_is_sent_to_a_login_page(api: Api) -> None:
    assert api.push()
    assert api.get("/health").status_code == 200
    error_of(api.get("/nowhere"), 404, "not_found")


@override_settings(
    MIDDLEWARE=[
        "django.middleware.cache.UpdateCacheMiddleware",
        "django.middleware.gzip.GZipMiddleware",
        "django.middleware.http.ConditionalGetMiddleware",
        *MIDDLEWARE,
        "django.middleware.locale.LocaleMiddleware",
        "django.middleware.cache.FetchFromCacheMiddleware",
    ],
    CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
)
def test_caching_and_conditional_middleware_neither_stale_nor_strip_answers(api: Api) -> None:
    job = api.push(args=["x" * 5000])
    path = f"/jobs/{job['id']}"
    first = api.get(path, **{"Accept-Encoding": "gzip"})
    assert first["Content-Encoding"] == "gzip"
    assert not first.has_header("ETag")
    api.fetch()
    second = api.get(path, **{"If-None-Match": "*", "If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"})
    assert second.status_code == 200
    assert second.json()["job"]["state"] == "active"
    assert second["OJS-Version"] == "1.0"


@override_settings(
    MIDDLEWARE=[
        "django.middleware.cache.UpdateCacheMiddleware",
        *MIDDLEWARE,
        "django.middleware.cache.FetchFromCacheMiddleware",
    ],
    CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
)
def test_a_site_wide_cache_shows_nobody_the_answer_to_somebody_else(with_key: Any) -> None:
    assert with_key("read").get("/queues").status_code == 200
    error_of(Api().get("/queues"), 401, "unauthenticated")


def test_programs_need_no_csrf_token(with_key: Any) -> None:
    api = with_key("push")
    api.client.handler.enforce_csrf_checks = True
    assert api.push()


def test_writes_of_a_session_need_one(db: None, settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": False}
    user = User.objects.create_user("ann")
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_queue", "add_job"]))
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    assert client.get("/ojs/v1/queues").status_code == 200
    error_of(client.post("/ojs/v1/jobs", JOB, content_type="application/json"), 403, "permission_denied")
    client.cookies["csrftoken"] = token = "x" * 32
    response = client.post("/ojs/v1/jobs", JOB, content_type="application/json", headers={"X-CSRFToken": token})
    assert response.status_code == 201


def test_a_user_without_permissions_is_refused_not_sent_to_log_in(db: None, settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": False}
    client = Client()
    client.force_login(User.objects.create_user("bob", is_staff=True))
    error_of(client.get("/ojs/v1/queues"), 403, "permission_denied")


# Settings


def test_no_view_runs_inside_the_sites_request_transaction() -> None:
    for view in every_view():
        assert set(connections) <= view._non_atomic_requests


def test_what_is_answered_has_been_committed_even_with_atomic_requests(
    transactional_db: None, monkeypatch: Any
) -> None:
    from django_ojs.http import jobs

    seen = []
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    original = jobs.push_one

    def push(*args: Any, **kwargs: Any) -> Any:
        seen.append(connection.in_atomic_block)
        return original(*args, **kwargs)

    monkeypatch.setattr(jobs, "push_one", push)
    job = Api().push()
    assert seen == [False]
    assert Job.objects.filter(pk=job["id"]).exists()


class Hostile:
    """Stands for whatever a site may name in REST_FRAMEWORK: fails when it is so much as made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("The site's REST framework settings must not matter here.")


HOSTILE = f"{__name__}.Hostile"


def exception_handler(exc: Any, context: Any) -> None:
    raise AssertionError("The site's exception handler must not be asked.")


@override_settings(
    REST_FRAMEWORK={
        **{
            f"DEFAULT_{name}_CLASSES": [HOSTILE]
            for name in ("RENDERER", "PARSER", "AUTHENTICATION", "PERMISSION", "THROTTLE")
        },
        "DEFAULT_CONTENT_NEGOTIATION_CLASS": HOSTILE,
        "DEFAULT_VERSIONING_CLASS": HOSTILE,
        "DEFAULT_METADATA_CLASS": HOSTILE,
        "DEFAULT_PAGINATION_CLASS": HOSTILE,
        "EXCEPTION_HANDLER": f"{__name__}.exception_handler",
        "UNAUTHENTICATED_USER": None,
        "UNAUTHENTICATED_TOKEN": None,
        "URL_FORMAT_OVERRIDE": "format",
        "UNICODE_JSON": False,
        "COMPACT_JSON": False,
    }
)
def test_the_sites_rest_framework_settings_change_nothing(api: Api) -> None:
    job = api.push(args=["ü"])
    assert "ü".encode() in api.get(f"/jobs/{job['id']}", {"format": "html"}).content
    error_of(api.get("/nowhere"), 404, "not_found")
    error_of(api.get("/queues", {"limit": "x"}), 400, "invalid_request")
    assert api.client.options("/ojs/v1/jobs").status_code == 204


def test_every_view_names_its_own_policies() -> None:
    from rest_framework.settings import api_settings
    from rest_framework.views import APIView

    for view in every_view():
        for name in ("renderer_classes", "parser_classes", "permission_classes", "throttle_classes",
                     "content_negotiation_class", "metadata_class", "versioning_class"):  # fmt: skip
            defined_by = next(cls for cls in view.cls.__mro__ if name in vars(cls))
            assert defined_by is not APIView, (view.cls, name)
    assert api_settings.DEFAULT_RENDERER_CLASSES


@override_settings(ALLOWED_HOSTS=["elsewhere.example"], MIDDLEWARE=[])
def test_the_manifest_survives_a_host_that_is_not_allowed(api: Api) -> None:
    assert api.client.get("/ojs/manifest").json()["endpoints"]["base_url"] == "/ojs/v1"


@override_settings(USE_I18N=True, LANGUAGE_CODE="de")
def test_messages_and_times_do_not_follow_the_sites_language(api: Api) -> None:
    assert (
        error_of(api.client.put("/ojs/v1/jobs"), 405, "invalid_request")["message"]
        == "This path takes GET, POST, HEAD, OPTIONS only."
    )


async def test_it_works_under_asgi_with_bodies_of_any_size(transactional_db: None, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    client = AsyncClient()
    body = {"type": "a.b", "args": ["x" * 500_000]}
    response = await client.post("/ojs/v1/jobs", body, content_type="application/json")
    assert response.status_code == 201
    assert (await client.get(response["Location"])).status_code == 200
    assert (await client.get("/ojs/v1/nowhere/")).status_code == 404
    await sync_to_async(connections.close_all)()
