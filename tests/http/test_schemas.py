"""The schema registry: three views of one store, and what it does to a push."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs.jobs import bulk, schemas
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail_one
from django_ojs.jobs.retry import retry_one
from django_ojs.models import Job, JobSchema
from django_ojs.rules import schemas as policy
from tests.http.conftest import Api, error_of

TWO = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "minItems": 2}  # draft 7, unnamed
USER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


def put(api: Api, path: str, body: Any) -> Any:
    return api.client.put(f"/ojs/v1/admin/schemas/{path}", json.dumps(body), content_type="application/json")


def register(api: Api, schema: Any = TWO, **more: Any) -> Any:
    return api.post("/schemas", {"job_type": "test.echo", "version": 1, "schema": schema, **more})


def push(api: Api, args: Any, **more: Any) -> Any:
    return api.post("/jobs", {"type": "test.echo", "args": args, **more})


class TestRegistry:
    def test_register_and_read(self, api: Api) -> None:
        answer = register(api)
        assert answer.status_code == 201
        shown = answer.json()["schema"]
        uri = "urn:ojs:schema:test.echo:v1"
        assert {k: shown[k] for k in ("uri", "type", "job_type", "version", "schema", "is_latest")} == {
            "uri": uri, "type": "test.echo", "job_type": "test.echo", "version": 1, "schema": TWO, "is_latest": True,
        }  # fmt: skip
        for path in ("test.echo", "test.echo/1", "test.echo/versions/1", quote(uri, safe="")):
            assert api.get(f"/schemas/{path}").json() == {"schema": shown}, path
        (listed,) = api.get("/schemas").json()["schemas"]
        assert listed == {key: value for key, value in shown.items() if key != "schema"}

    def test_the_latest_version_is_found_by_number_then_semver(self, api: Api) -> None:
        for version in (2, 10, "9.5", "10.1.0-rc.1", "10.1.0", "1"):
            assert register(api, {"type": "array"}, version=version).status_code == 201
        versions = api.get("/schemas/test.echo/versions").json()["versions"]
        assert [entry["version"] for entry in versions] == ["10.1.0", "10.1.0-rc.1", 10, "9.5", 2, "1"]
        assert [entry["is_latest"] for entry in versions] == [True, *[False] * 5]
        assert api.get("/schemas/test.echo").json()["schema"]["version"] == "10.1.0"

    def test_a_uri_may_say_type_and_version(self, api: Api) -> None:
        answer = api.post("/schemas", {"uri": "urn:ojs:schema:mail.send:v3", "schema": {}})
        assert (answer.json()["schema"]["type"], answer.json()["schema"]["version"]) == ("mail.send", "3")
        own = api.post("/schemas", {"uri": "https://x.test/a/b", "type": "a.b", "version": "1", "schema": True})
        assert own.status_code == 201
        found = api.get(f"/schemas/{quote('https://x.test/a/b', safe='')}")
        assert found.json()["schema"]["schema"] is True

    @pytest.mark.parametrize("version", [1, "1", "1.0"])
    def test_a_version_is_registered_once(self, api: Api, version: Any) -> None:
        register(api)
        error_of(register(api, version=version, uri="urn:x:y"), 409, "duplicate")
        error_of(register(api, version=5, uri="urn:ojs:schema:test.echo:v1"), 409, "duplicate")
        error_of(put(api, "test.echo/1", {"schema": TWO}), 409, "duplicate")

    @pytest.mark.parametrize(
        "body",
        [
            {}, {"job_type": "a.b", "version": 1}, {"job_type": "a.b", "schema": {}}, {"version": 1, "schema": {}},
            {"job_type": "A", "version": 1, "schema": {}}, {"job_type": "a.b", "version": "a b", "schema": {}},
            {"job_type": "a.b", "version": 1.5, "schema": {}}, {"job_type": "a.b", "version": 1, "schema": "x"},
            {"job_type": "a.b", "version": 1, "schema": {}, "uri": "nope"},
        ],
    )  # fmt: skip
    def test_bad_requests(self, api: Api, body: dict[str, Any]) -> None:
        error_of(api.post("/schemas", body), 400, "invalid_request")

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "nonsense"}, {"$schema": "https://json-schema.org/draft/2031-01/schema"}, {"$schema": 5},
            {"$ref": "http://127.0.0.1:1/x.json"}, {"items": {"$ref": "file:///etc/passwd"}}, {"$ref": "#/nowhere"},
            {"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]}, {"pattern": "("},
        ],
    )  # fmt: skip
    def test_what_is_no_schema_or_leads_elsewhere_is_refused(self, api: Api, schema: Any) -> None:
        assert error_of(register(api, schema), 400, "invalid_request")["details"]["schema_error"]
        assert not JobSchema.objects.exists()

    def test_a_minor_version_may_not_break(self, api: Api) -> None:
        register(api, USER, version="1.0.0")
        harsher = {**USER, "required": ["id", "name"]}
        details = error_of(register(api, harsher, version="1.1.0"), 400, "invalid_request")["details"]
        assert details["breaking_changes"] == ["schema: name became required"]
        assert register(api, harsher, version="2.0.0").status_code == 201
        assert register(api, {**USER, "required": []}, version="1.1.0").status_code == 201

    @pytest.mark.parametrize("path", ["test.echo/1", "test.echo/versions/1", quote("urn:ojs:schema:test.echo:v1")])
    def test_delete(self, api: Api, path: str) -> None:
        register(api)
        push(api, ["a", 1])
        answer = api.delete(f"/schemas/{path}")
        assert answer.json() == {
            "deleted": True, "uri": "urn:ojs:schema:test.echo:v1", "job_type": "test.echo", "type": "test.echo",
            "version": 1,
        }  # fmt: skip
        for again in (path, "test.echo"):
            error_of(api.delete(f"/schemas/{again}"), 404, "not_found")
        error_of(api.get("/schemas/test.echo/versions"), 404, "not_found")
        assert Job.objects.count() == 1

    def test_the_admin_family(self, api: Api) -> None:
        answer = put(api, "a.b/2", {"args_schema": USER})
        assert answer.status_code == 201
        assert (answer.json()["type"], answer.json()["version"], answer.json()["schema"]) == ("a.b", 2, USER)
        assert put(api, "a.b/3", {"schema": {}}).status_code == 201
        latest = api.get("/admin/schemas/a.b").json()
        assert (latest["version"], [entry["version"] for entry in latest["versions"]]) == (3, [3, 2])
        assert api.get("/admin/schemas/a.b/2").json()["is_latest"] is False
        assert [e["version"] for e in api.get("/admin/schemas/a.b/versions").json()["versions"]] == [3, 2]
        assert api.delete("/admin/schemas/a.b/3").json() == {"deleted": True, "type": "a.b", "version": 3}
        assert api.get("/admin/schemas/a.b").json()["version"] == 2
        error_of(put(api, "a.b/4", {}), 400, "invalid_request")
        for path in ("a.b/9", "x.y", "x.y/versions"):
            error_of(api.get(f"/admin/schemas/{path}"), 404, "not_found")

    def test_writing_needs_the_admin_scope(self, with_key: Any) -> None:
        error_of(register(with_key("push", "read")), 403, "permission_denied")
        error_of(with_key("push").get("/schemas"), 403, "permission_denied")

    def test_a_limited_key_changes_no_schema_of_others(self, with_key: Any) -> None:
        assert put(with_key("admin"), "a.b/1", {"schema": TWO}).status_code == 201
        for limit in ({"queues": ["mine"]}, {"job_types": ["mail.*"]}):
            limited = with_key("admin", **limit)
            error_of(put(limited, "a.b/2", {"schema": TWO}), 403, "permission_denied")
            error_of(register(limited), 403, "permission_denied")
            error_of(limited.delete("/admin/schemas/a.b/1"), 403, "permission_denied")
            error_of(limited.delete("/schemas/a.b/1"), 403, "permission_denied")
        own = with_key("admin", job_types=["a.*"])
        assert put(own, "a.b/2", {"schema": TWO}).status_code == 201
        assert own.delete("/admin/schemas/a.b/2").status_code == 200

    def test_nor_does_it_take_a_uri_by_which_jobs_of_others_name_a_schema(self, with_key: Any) -> None:
        """Their pushes would be held against it, and they could not register theirs."""
        limited = with_key("admin", job_types=["mail.*"])
        for uri in ("urn:ojs:schema:pay.run:v1", "https://example.com/schemas/1"):
            body = {"job_type": "mail.send", "version": 1, "schema": {"maxItems": 0}, "uri": uri}
            error_of(limited.post("/schemas", body), 403, "permission_denied")
            assert with_key("push").post("/jobs", {"type": "pay.run", "args": [1], "schema": uri}).status_code == 201
        assert limited.post("/schemas", {**body, "uri": "urn:ojs:schema:mail.send:v1"}).status_code == 201
        assert limited.post("/schemas", {**body, "uri": None, "version": 2}).status_code == 201

    @pytest.mark.parametrize("path", ["/jobs", "/jobs/batch", "/jobs/bulk", "/workflows"])
    def test_what_a_limited_key_pushes_is_told_nothing_of_the_schemas_of_others(self, with_key: Any, path: str) -> None:
        admin = with_key("admin")
        assert put(admin, "pay.run/1", {"schema": USER}).status_code == 201
        job = {"type": "mail.send", "args": [{}], "schema": "urn:ojs:schema:pay.run:v1"}
        whole = {"/jobs": job, "/workflows": {"type": "group", "name": "w", "jobs": [job]}}
        body = whole.get(path, {"jobs": [job]})
        assert "required" in admin.post(path, body).content.decode()
        limited = with_key("push", job_types=["mail.*"]).post(path, body)
        assert limited.status_code == 201, limited.content
        assert "required" not in limited.content.decode()

    @pytest.mark.parametrize("how", ["one", "many", "background"])
    def test_nor_what_it_retries(self, with_key: Any, how: str) -> None:
        assert put(with_key("admin"), "pay.run/1", {"schema": USER}).status_code == 201
        job = {"type": "mail.send", "args": [], "schema": "urn:ojs:schema:pay.run:v1", "retry": {"max_attempts": 1}}
        limited = with_key("push", "admin", job_types=["mail.*"])
        assert limited.post("/jobs", job).status_code == 201
        row = fetch(Fetch(["default"], worker_id="w"))[0]
        fail_one(Failure(row["id"], {"message": "x", "code": "x"}, "w"))
        body: dict[str, Any] = {"override": {"args": [{}]}}
        path = "/admin/dead-letter/retry"
        if how == "one":
            path = f"/admin/dead-letter/{row['id']}/retry"
        else:
            body |= {"filter": {}, "confirm": True, "background": how == "background"}
        answer = limited.post(path, body)
        while bulk.advance_action():
            pass
        assert "required" not in answer.content.decode()
        assert Job.objects.get().state == "available"

    def test_the_admin_family_has_the_scopes_of_admin(self, with_key: Any) -> None:
        with_key("admin").post("/schemas", {"job_type": "a.b", "version": 1, "schema": TWO})
        for path in ("", "/a.b", "/a.b/versions", "/a.b/1"):
            assert with_key("admin.read").get(f"/admin/schemas{path}").status_code == 200, path
            for scope in ("read", "admin.write", "admin.purge"):
                error = error_of(with_key(scope).get(f"/admin/schemas{path}"), 403, "permission_denied")
                assert error["details"]["required_scope"] == "admin.read"
        for scope in ("read", "admin.read", "admin.purge"):
            error_of(put(with_key(scope), "a.b/2", {"schema": TWO}), 403, "permission_denied")
        assert put(with_key("admin.write"), "a.b/2", {"schema": TWO}).status_code == 201
        for scope in ("read", "admin.read", "admin.write"):
            error_of(with_key(scope).delete("/admin/schemas/a.b/2"), 403, "permission_denied")
        assert with_key("admin.purge").delete("/admin/schemas/a.b/2").status_code == 200

    def test_a_longer_list_takes_no_more_queries_and_reads_no_schemas(self, api: Api) -> None:
        def listed(types: int) -> tuple[int, list[dict[str, Any]]]:
            for number in range(types):
                for version in (1, 2, "1.5"):
                    register(api, job_type=f"a.n{number}", version=version)
            with CaptureQueriesContext(connection) as captured:
                rows: list[dict[str, Any]] = api.get("/schemas", {"limit": 200}).json()["schemas"]
            assert not any('"schema"' in query["sql"] or "`schema`" in query["sql"] for query in captured)
            return len(captured), rows

        few, rows = listed(2)
        assert [row["version"] for row in rows if row["is_latest"]] == [2, 2]
        many, rows = listed(12)
        assert (few, len(rows), sum(row["is_latest"] for row in rows)) == (many, 36, 12)


class TestPush:
    def test_a_named_schema_must_fit_whatever_the_mode(self, api: Api, settings: Any) -> None:
        register(api)
        for mode in ("off", "warn", "strict"):
            settings.OJS = {**settings.OJS, "SCHEMA_VALIDATION": mode}
            error = error_of(push(api, ["a", "b"], schema="urn:ojs:schema:test.echo:v1"), 422, "schema_validation")
            assert error["details"]["errors"][0]["path"] == "args[1]"
            assert error["type"] == "validation_error"
            assert push(api, ["a", 1], options={"schema": "urn:ojs:schema:test.echo:v1"}).status_code == 201

    def test_an_unknown_schema_is_kept(self, api: Api) -> None:
        assert push(api, [], schema="urn:x:unknown").json()["job"]["schema"] == "urn:x:unknown"

    def test_a_schema_registered_by_another_process_is_found(self, api: Api) -> None:
        push(api, [])  # fills the cache
        register(api)
        schemas._cache["default"] = schemas._LoadedSchemas(schemas.time.monotonic(), {}, {})
        error_of(push(api, [1], schema="urn:ojs:schema:test.echo:v1"), 422, "schema_validation")

    @pytest.mark.parametrize("mode, status", [("off", 201), ("warn", 201), ("strict", 422)])
    def test_a_schema_of_the_type_warns_or_refuses(self, api: Api, settings: Any, mode: str, status: int) -> None:
        settings.OJS = {**settings.OJS, "SCHEMA_VALIDATION": mode}
        register(api)
        answer = push(api, ["a"])
        assert answer.status_code == status
        assert ("warnings" in answer.json()) is (mode == "warn")
        assert "warnings" not in push(api, ["a", 1]).json()
        assert push(api, ["a"], type="test.other").status_code == 201

    def test_warnings_in_a_batch_name_their_job(self, api: Api) -> None:
        register(api)
        jobs = [{"type": "test.echo", "args": args} for args in (["a", 1], [5, 1])]
        (warning,) = api.post("/jobs/batch", {"jobs": jobs}).json()["warnings"]
        assert (warning["index"], warning["path"]) == (1, "args[0]")
        items = api.post("/jobs/bulk", {"jobs": jobs}).json()["items"]
        assert ["warnings" in item for item in items] == [False, True]

    def test_the_jobs_version_chooses_the_schema(self, api: Api, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "SCHEMA_VALIDATION": "strict"}
        register(api)
        register(api, {"maxItems": 0}, version=2)
        assert push(api, []).status_code == 201
        error_of(push(api, ["a", 1]), 422, "schema_validation")
        for version in (1, "1.0"):
            assert push(api, ["a", 1], version=version).status_code == 201

    def test_a_retry_with_other_arguments_keeps_to_the_jobs_version(self, api: Api, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "SCHEMA_VALIDATION": "strict"}
        register(api)
        register(api, {"maxItems": 0}, version=2)
        push(api, ["a", 1], version=1, retry={"max_attempts": 1})
        (row,) = fetch(Fetch(["default"]))
        fail_one(Failure(row["id"], {"message": "no"}))
        assert retry_one(row["id"], override={"args": ["b", 2]})["state"] == "available"

    def test_a_schema_for_an_object_gets_the_only_argument(self, api: Api, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "SCHEMA_VALIDATION": "strict"}
        register(api, USER)
        assert push(api, [{"id": 1}]).status_code == 201
        error = error_of(push(api, [{"id": "x"}]), 422, "schema_validation")
        assert error["details"]["field"] == "args[0].id"
        error_of(push(api, [{"id": 1}, 2]), 422, "schema_validation")

    def test_what_the_site_hides_is_not_repeated(self, api: Api, settings: Any) -> None:
        register(api, USER)
        for redact in ({"types": {"*": ["args"]}}, {"keys": ["*id*"]}):
            settings.OJS = {**settings.OJS, "SCHEMA_VALIDATION": "strict", "REDACT": redact}
            answer = push(api, [{"id": "4711"}])
            assert error_of(answer, 422, "schema_validation")["details"]["field"] == "args[0].id"
            assert "4711" not in answer.content.decode()

    def test_one_misfit_refuses_a_batch(self, api: Api, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "SCHEMA_VALIDATION": "strict"}
        register(api)
        jobs = [{"type": "test.echo", "args": args} for args in (["a", 1], [])]
        assert error_of(api.post("/jobs/batch", {"jobs": jobs}), 422, "schema_validation")["details"]["index"] == 1
        assert not Job.objects.exists()

    def test_numbers_and_texts_that_the_validator_cannot_hold(self, api: Api, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "SCHEMA_VALIDATION": "strict"}
        register(api, {"items": {"type": ["number", "string", "object"]}})
        args = b'1e400,0.1234567890123456789,123456789012345678901234567890,"\\ud800",{"\\udfff":1}'
        assert api.raw("/jobs", b'{"type":"test.echo","args":[' + args + b"]}").status_code == 201

    def test_a_push_asks_the_registry_once_in_a_while(self, api: Api) -> None:
        push(api, [])
        with CaptureQueriesContext(connection) as captured:
            push(api, [])
        assert not any(JobSchema._meta.db_table in query["sql"] for query in captured)


@pytest.mark.parametrize(
    "meta, status",
    [
        ({"ojs_encoded": True}, 201), ({"ojs.codec.encodings": ["binary/encrypted"]}, 201),
        ({"ojs_encoded": False}, 422), ({"ojs.codec.encodings": []}, 422), ({}, 422),
    ],
)  # fmt: skip
@pytest.mark.parametrize("named", [False, True])
def test_encoded_arguments_are_held_against_no_schema(
    api: Api, settings: Any, meta: dict[str, Any], status: int, named: bool
) -> None:
    settings.OJS = {**settings.OJS, "SCHEMA_VALIDATION": "strict"}
    uri = register(api).json()["schema"]["uri"]
    answer = push(api, ["bm9uc2Vuc2U="], meta=meta, **({"schema": uri} if named else {}))
    assert answer.status_code == status
    if status == 201:
        assert (answer.json()["job"]["args"], answer.json()["job"]["meta"]) == (["bm9uc2Vuc2U="], meta)


@pytest.mark.parametrize(
    "old, new, broken",
    [
        ({}, {}, False), ({"type": "integer"}, {"type": "number"}, False),
        ({"type": "number"}, {"type": "integer"}, True),
        ({}, {"type": "array"}, True), ({"enum": [1, 2]}, {"enum": [1]}, True),
        ({"enum": [1]}, {"enum": [1, 2]}, False),
        (USER, {**USER, "additionalProperties": False}, True), (True, False, True),
        ({"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"type": "integer"}}}, True),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"additionalProperties": False}, True),
        ({"items": {"type": "string"}}, {"items": {"type": "null"}}, True),
        ({"type": ["string"]}, {"type": "string"}, False),
    ],
)  # fmt: skip
def test_breaking_changes(old: Any, new: Any, broken: bool) -> None:
    assert bool(policy.breaking_changes(old, new)) is broken
