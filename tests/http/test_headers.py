"""Headers, media types and versions of requests and answers (binding 1.1 to 1.3)."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.test import RequestFactory, override_settings

from django_ojs import jsontext
from django_ojs.http import media
from django_ojs.models.fields import RawJSON
from tests.http.conftest import Api, error_of

ALIASED = 'application/openjobspec+json; alias="application/json"'


def answers(api: Api) -> list[Any]:
    """One answer of each kind."""
    return [
        api.post("/jobs", {"type": "a.b", "args": []}),
        api.get("/queues"),
        api.get("/health"),
        api.client.get("/ojs/manifest"),
        api.get("/jobs/none"),
        api.get("/nowhere"),
        api.client.get("/ojs"),
        api.client.put("/ojs/v1/jobs"),
        api.client.options("/ojs/v1/jobs"),
        api.client.head("/ojs/v1/queues"),
        api.raw("/jobs", b"{"),
        api.get("/queues", **{"OJS-Version": "7"}),
    ]


def test_every_answer_has_the_headers_of_the_protocol(api: Api) -> None:
    for response in answers(api):
        assert response["OJS-Version"] == response["X-OJS-Version"] == "1.0"
        assert re.fullmatch(r"req_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{17,}", response["X-Request-Id"])
        assert response["X-Content-Type-Options"] == "nosniff"


@override_settings(MIDDLEWARE=[])
def test_the_length_is_there_without_any_middleware_of_the_site(api: Api) -> None:
    response = api.get("/queues")
    assert int(response["Content-Length"]) == len(response.content)


@pytest.mark.parametrize("path", ["/ojs/v1/queues", "/ojs/v1/nowhere", "/ojs/manifest"])
def test_head_has_the_headers_of_get_and_nothing_behind_them(api: Api, path: str) -> None:
    """Servers warn of a body, or send it, and the client takes it for its next answer."""
    server, factory = WSGIHandler(), RequestFactory()
    got, head = server.get_response(factory.get(path)), server.get_response(factory.head(path))
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head["Content-Length"] == str(len(got.content))


def test_no_cache_may_keep_an_answer(api: Api) -> None:
    for response in answers(api):
        assert {"private", "no-store"} <= set(response["Cache-Control"].split(", "))


def test_an_answer_without_body_names_no_type(api: Api) -> None:
    response = api.client.options("/ojs/v1/jobs")
    assert (response.status_code, response.content) == (204, b"")
    assert not response.has_header("Content-Type")
    assert response["Allow"] == "GET, POST, HEAD, OPTIONS"


@pytest.mark.parametrize("given", ["abc", "!~", "x" * 128, "0"])
def test_a_clean_request_id_is_echoed_and_named_in_the_error(api: Api, given: str) -> None:
    response = api.get("/nowhere", **{"X-Request-Id": given})
    assert response["X-Request-Id"] == given
    assert response.json()["error"]["request_id"] == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "é", "a\tb", "\x7f"])
def test_any_other_request_id_is_replaced(api: Api, given: str) -> None:
    response = api.get("/nowhere", **{"X-Request-Id": given})
    assert response["X-Request-Id"].startswith("req_")


@pytest.mark.parametrize(
    "accept, expected",
    [
        ("", "application/openjobspec+json"),
        ("*/*", "application/openjobspec+json"),
        ("text/html", "application/openjobspec+json"),
        ("application/openjobspec+json", "application/openjobspec+json"),
        ("application/json, application/openjobspec+json", "application/openjobspec+json"),
        ("application/json", "application/json"),
        ("application/json;q=0.1, text/html", "application/json"),
        ("Application/JSON", "application/json"),
    ],
)
def test_accept_chooses_the_name_of_the_type_and_is_never_refused(api: Api, accept: str, expected: str) -> None:
    for path in ("/queues", "/nowhere", "/health"):
        assert api.get(path, Accept=accept)["Content-Type"] == expected


def test_clients_that_send_a_version_get_the_type_with_the_alias(api: Api) -> None:
    assert api.get("/queues", **{"OJS-Version": "1.0"})["Content-Type"] == ALIASED
    assert api.get("/nowhere", **{"OJS-Version": "1.0"})["Content-Type"] == ALIASED
    both = api.get("/queues", **{"OJS-Version": "1.0", "Accept": "application/json"})
    assert both["Content-Type"] == "application/json"


def test_the_manifest_is_plain_json_always(api: Api) -> None:
    for headers in ({}, {"OJS-Version": "1.0"}, {"Accept": "application/openjobspec+json"}):
        assert api.client.get("/ojs/manifest", headers=headers)["Content-Type"] == "application/json"


@pytest.mark.parametrize("version", ["1", "1.0", "1.0.0", "1.0.0-rc.1", "1.0-rc.12", "1-rc.2"])
def test_versions_of_the_first_line_are_welcome(api: Api, version: str) -> None:
    assert api.get("/queues", **{"OJS-Version": version}).status_code == 200


@pytest.mark.parametrize(
    "version", ["", "2", "1.1", "0.9", "1.0.1", "1.0.0-rc.", "1.0.0-rc.1 x", "1.0\n2", "one", "x" * 999]
)
def test_other_versions_are_unsupported(api: Api, version: str) -> None:
    response = api.post("/jobs", {"type": "a.b", "args": []}, **{"OJS-Version": version})
    error = error_of(response, 422, "unsupported")
    assert error["details"]["supported"] == ["1.0", "1.0.0-rc.1"]


def test_manifest_and_health_answer_any_version(api: Api) -> None:
    assert api.client.get("/ojs/manifest", headers={"OJS-Version": "9"}).status_code == 200
    assert api.get("/health", **{"OJS-Version": "9"}).status_code == 200


def test_an_extension_we_do_not_have_is_refused_by_name(api: Api) -> None:
    response = api.get("/queues", **{"OJS-Requires-Extension": "urn:ojs:ext:teleportation"})
    error = error_of(response, 422, "unsupported")
    assert error["extension"] == error["details"]["extension"] == "urn:ojs:ext:teleportation"
    assert error["details"]["canonical"] == "EXTENSION_NOT_SUPPORTED"
    assert "urn:ojs:ext:durable-execution" in error["details"]["supported"]


@pytest.mark.parametrize("name", ["durable-execution", "execution-history"])
def test_xl_3_an_extension_is_known_in_either_rank(api: Api, name: str) -> None:
    for urn in (f"urn:ojs:ext:{name}", f"urn:ojs:ext:experimental:{name}"):
        assert api.get("/queues", **{"OJS-Requires-Extension": urn}).status_code == 200
    urn = f"urn:ojs:ext:experimental:experimental:{name}"
    error_of(api.get("/queues", **{"OJS-Requires-Extension": urn}), 422, "unsupported")


def test_an_extension_we_have_may_be_demanded(api: Api, monkeypatch: Any) -> None:
    from django_ojs.http import manifest

    entry = {"name": "x", "uri": "urn:ojs:ext:x", "version": "1.0.0"}
    monkeypatch.setitem(manifest.EXTENSIONS, "official", [entry])
    assert api.get("/queues", **{"OJS-Requires-Extension": "urn:ojs:ext:x"}).status_code == 200


@pytest.mark.parametrize(
    "name", ["rate-limiting", "admin-api", "dead-letter", "durable-execution", "queue-config", "graceful-shutdown"]
)
def test_a_push_may_demand_what_this_server_does(api: Api, name: str) -> None:
    job = {"type": "a.b", "args": []}
    assert api.post("/jobs", job, **{"OJS-Requires-Extension": f"urn:ojs:ext:{name}"}).status_code == 201


@pytest.mark.parametrize("name", ["multi-tenancy", "fair-scheduling", "observability", "experimental:job-versioning"])
def test_what_is_there_in_part_cannot_be_demanded(api: Api, name: str) -> None:
    job = {"type": "a.b", "args": []}
    error_of(api.post("/jobs", job, **{"OJS-Requires-Extension": f"urn:ojs:ext:{name}"}), 422, "unsupported")


def test_every_extension_is_declared_in_full_and_in_the_documentation(api: Api) -> None:
    extensions = api.client.get("/ojs/manifest").json()["extensions"]
    declared = extensions["official"]
    text = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()
    section = text.partition("## Extensions")[2].partition("The server has these extensions only in part")[0]
    names = [entry["name"] for entry in declared]
    assert names == sorted(set(names))
    assert all(entry["uri"] == f"urn:ojs:ext:{entry['name']}" and entry["version"] for entry in declared)
    trials = {entry["name"]: entry["uri"] for entry in extensions["experimental"]}
    assert trials == {name: f"urn:ojs:ext:experimental:{name}" for name in trials}
    assert set(re.findall(r"`([a-z-]+)`", section)) - {"urn:ojs:ext:"} == {*names, *trials, "webhooks"}


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/openjobspec+json",
        "Application/JSON; charset=latin-1",
        "application/json;",
        "",
    ],
)
def test_both_media_types_are_taken_and_none_at_all(api: Api, content_type: str) -> None:
    assert api.raw("/jobs", b'{"type":"a.b","args":["\xc3\xbc"]}', content_type).json()["job"]["args"] == ["ü"]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded", "x" * 500, "é"]
)
def test_another_media_type_is_400_and_says_what_came(api: Api, content_type: str) -> None:
    error = error_of(api.raw("/jobs", b'{"type":"a.b","args":[]}', content_type), 400, "invalid_request")
    assert error["details"]["received"].startswith(content_type[:5])


def test_the_charset_of_the_type_says_nothing_of_the_query(api: Api) -> None:
    given = {"Content-Type": "application/json; charset=utf-16"}
    response = api.client.get("/ojs/v1/queues?limit=11", headers=given)
    assert response.json()["pagination"]["limit"] == 11
    for charset in ("utf-16", "UTF-8"):
        request = RequestFactory().get("/ojs/v1/queues?limit=11", CONTENT_TYPE=f"text/x; charset={charset}")
        read = request.GET  # as a middleware of the site does
        assert jsontext.loads(WSGIHandler().get_response(request).content)["pagination"]["limit"] == 11
        assert (request.GET is read) == (charset == "UTF-8"), "a middleware may have changed it"


def test_the_type_of_an_empty_body_does_not_matter(api: Api) -> None:
    assert api.raw("/queues/q/pause", b"", "text/plain").status_code == 200


def test_bodies_of_get_and_delete_are_ignored(api: Api) -> None:
    job = api.push()
    for method, path in (("GET", "queues"), ("DELETE", f"jobs/{job['id']}")):
        response = api.client.generic(method, f"/ojs/v1/{path}", b"\xff{not json", content_type="text/plain")
        assert response.status_code == 200


def test_head_is_get_without_body(api: Api) -> None:
    response = api.client.head("/ojs/v1/queues")
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("beside", ["a", "ü", "\x01", "\ud800"])
def test_each_member_of_an_answer_is_written_for_itself(beside: str) -> None:
    """What UTF-8 cannot carry is escaped in its member alone, and JSON that is there already is put in as it is."""
    members = {"text": "ü", "beside": {"deep": [beside]}, "number": 1.5, "none": None, "list": [], "true": True}
    expected = "{" + ",".join(f'"{name}":{jsontext.dumps(value)}' for name, value in members.items())
    assert media.to_text(members) == expected + "}"
    raw = {"raw": RawJSON('{"a": 1}'), "several": [RawJSON("1 "), RawJSON("2")]}
    assert media.to_text(members | raw) == expected + ',"raw":{"a": 1},"several":[1 ,2]}'
