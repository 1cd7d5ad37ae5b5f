"""The schema registry over HTTP: `/schemas...` and `/admin/schemas...`, two shapes of one store (binding 7)."""

from __future__ import annotations

import re
from typing import Any

from django.db import router
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound, PermissionDenied
from django_ojs.http import fields
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSView
from django_ojs.http.pagination import Key, paginate, parse_name
from django_ojs.http.permissions import check_type, principal, queue_limit
from django_ojs.jsontext import is_integer
from django_ojs.models import JobSchema
from django_ojs.operations import schemas
from django_ojs.policies import names
from django_ojs.policies.durations import format_instant
from django_ojs.policies.faults import shorten

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+\-]{0,63}")
_URI_PARTS = re.compile(r"urn:ojs:schema:(.+):v([A-Za-z0-9][A-Za-z0-9._+\-]*)")
_MAX_URI = 512
_ORDER = [Key("job_type", descending=False, parse=parse_name), Key("id", descending=False, parse=int)]
#: What it takes to look at schemas below `/admin`.
_LOOKED_AT, _LOOKER = {"GET": "admin.read"}, {"GET": "view_jobschema"}


class Schemas(OJSView):
    """`GET` and `POST /schemas`"""

    scopes = {"GET": "read", "POST": "admin"}
    rights = {"POST": "add_jobschema"}

    def get(self, request: Request) -> Response:
        page = paginate(JobSchema.objects.using(router.db_for_write(JobSchema)).defer("schema"), request, _ORDER)
        latest = schemas.latest({row.job_type for row in page.rows})
        rows = [_shown(row, latest.get(row.job_type) == row.pk, with_schema=False) for row in page.rows]
        return Response({"schemas": rows, "pagination": page.pagination})

    @audited("schema.register")
    def post(self, request: Request) -> Response:
        body = self.payload()
        uri = _uri(body)
        implied = _URI_PARTS.fullmatch(uri)
        job_type = _type(body.get("job_type", body.get("type")) or (implied[1] if implied else None))
        given = body.get("version")
        version, numeric = _version(given if given is not None else implied[2] if implied else None)
        self.act.target = f"{job_type} {version}"
        _check_limits(request, job_type)
        schema = schemas.register(job_type, version, _document(body, "schema"), numeric=numeric, uri=uri)
        return Response({"schema": _shown(schema, _is_latest(schema))}, status=201)


class SchemaVersions(OJSView):
    """`GET /schemas/{type}/versions`, in the admin family too: newest first."""

    scopes = {"GET": "read"}
    admin = False

    def get(self, request: Request, name: str) -> Response:
        return Response({"versions": _versions(name, self.admin)})


class SchemaDetail(OJSView):
    """`GET` and `DELETE /schemas/{x}`, where x is a URI (it has a colon), a type, or a type and a version."""

    scopes = {"GET": "read", "DELETE": "admin"}
    rights = {"DELETE": "delete_jobschema"}

    def get(self, request: Request, name: str, version: str | None = None) -> Response:
        return Response({"schema": _shown(*_find(name, version))})

    @audited("schema.delete")
    def delete(self, request: Request, name: str, version: str | None = None) -> Response:
        if version is None and ":" not in name and "/" not in name:
            raise NotFound.resource("schema", shorten(name))
        schema, _ = _find(name, version)
        _check_limits(request, schema.job_type)
        schemas.remove(schema)
        self.act.target = f"{schema.job_type} {schema.version}"
        shown = {"uri": schema.uri, "job_type": schema.job_type, "type": schema.job_type}
        return Response({"deleted": True, **shown, "version": schema.wire_version})


class AdminSchema(OJSView):
    """`PUT`, `GET` and `DELETE /admin/schemas/{type}/{version}`"""

    scopes = {**_LOOKED_AT, "PUT": "admin.write", "DELETE": "admin.purge"}
    rights = {**_LOOKER, "PUT": "add_jobschema", "DELETE": "delete_jobschema"}

    @audited("schema.register")
    def put(self, request: Request, name: str, version: str) -> Response:
        body = self.payload()
        member = "schema" if body.get("schema") is not None else "args_schema"
        text, _ = _version(version)
        self.act.target = f"{name} {text}"
        document = _document(body, member)
        _check_limits(request, _type(name))
        schema = schemas.register(_type(name), text, document, numeric=version.isdecimal() and version.isascii())
        return Response(_shown(schema, _is_latest(schema), admin=True), status=201)

    def get(self, request: Request, name: str, version: str) -> Response:
        return Response(_shown(*schemas.find(name, version), admin=True))

    @audited("schema.delete")
    def delete(self, request: Request, name: str, version: str) -> Response:
        schema, _ = schemas.find(name, version)
        _check_limits(request, schema.job_type)
        schemas.remove(schema)
        self.act.target = f"{schema.job_type} {schema.version}"
        return Response({"deleted": True, "type": schema.job_type, "version": _number(schema)})


class AdminLatest(OJSView):
    """`GET /admin/schemas/{type}`: the latest version, and which there are."""

    scopes = _LOOKED_AT
    rights = _LOOKER

    def get(self, request: Request, name: str) -> Response:
        return Response(_shown(*schemas.find(name), admin=True) | {"versions": _versions(name, admin=True)})


urls = [
    path("schemas", Schemas.as_view(), name="schemas"),
    path("schemas/<str:name>/versions", SchemaVersions.as_view(), name="schema-versions"),
    path("schemas/<str:name>/versions/<str:version>", SchemaDetail.as_view()),
    path("schemas/<path:name>", SchemaDetail.as_view(), name="schema"),
    path("admin/schemas/<str:name>", AdminLatest.as_view()),
    path("admin/schemas/<str:name>/versions", SchemaVersions.as_view(admin=True, scopes=_LOOKED_AT, rights=_LOOKER)),
    path("admin/schemas/<str:name>/<str:version>", AdminSchema.as_view()),
]


def _find(name: str, version: str | None) -> tuple[JobSchema, bool]:
    if ":" in name:
        return schemas.find_uri(name)
    if version is None and "/" in name:
        name, _, version = name.partition("/")
    return schemas.find(name, version)


def _is_latest(schema: JobSchema) -> bool:
    return schemas.latest([schema.job_type]).get(schema.job_type) == schema.pk


def _versions(name: str, admin: bool) -> list[dict[str, Any]]:
    found = schemas.versions(name)
    if not found:
        raise NotFound.resource("schema", shorten(name))
    return [
        {
            "version": _number(schema) if admin else schema.wire_version,
            "created_at": format_instant(schema.created_at),
            "is_latest": schema is found[0],
        }
        for schema in found
    ]


def _shown(schema: JobSchema, latest: bool, *, with_schema: bool = True, admin: bool = False) -> dict[str, Any]:
    shown = {"uri": schema.uri, "type": schema.job_type, "job_type": schema.job_type}
    shown["version"] = _number(schema) if admin else schema.wire_version
    if with_schema:
        shown["schema"] = schema.schema
    return shown | {"created_at": format_instant(schema.created_at), "is_latest": latest}


def _number(schema: JobSchema) -> Any:
    """The admin family shows a version of digits as a number, however it was registered."""
    return int(schema.version) if schema.version.isdecimal() else schema.version


def _document(body: dict[str, Any], name: str) -> Any:
    if body.get(name) is None:
        raise fields.fault("schema", "must be a JSON Schema")
    return body[name]


def _uri(body: dict[str, Any]) -> str:
    value = body.get("uri")
    if value is None:
        return ""
    if not names.is_schema_uri(value) or len(value) > _MAX_URI:
        raise fields.fault("uri", "must be a URI such as urn:ojs:schema:email.send:v1", value)
    return str(value)


def _check_limits(request: Request, job_type: str) -> None:
    """Raise PermissionDenied for a schema that would judge jobs beyond the limits of the caller."""
    if queue_limit(request) is not None:
        raise PermissionDenied(
            "A key that is limited to queues cannot change schemas, which hold in all of them.",
            details={"principal": principal(request), "operation": f"{request.method} {request.path}"},
        )
    check_type(request, job_type)


def _type(value: Any) -> str:
    try:
        return names.check_type(value, hyphens=ojs_settings.DIALECT == "published")
    except ValueError as error:
        raise fields.fault("job_type", str(error), value) from error


def _version(value: Any) -> tuple[str, bool]:
    """The version as text, and whether it came as a number."""
    if is_integer(value) and 0 <= value < 10**15:
        return str(int(value)), True
    if isinstance(value, str) and _VERSION.fullmatch(value):
        return value, False
    raise fields.fault("version", 'must be a number such as 1, or a text such as "1.2.0"', value)
