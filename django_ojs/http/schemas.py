"""The schema registry over HTTP: `/schemas...` and `/admin/schemas...`, two shapes of one store (binding 7)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django.db import router
from django.db.models import QuerySet
from django.urls import path
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import spellings
from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound
from django_ojs.http.base import OJSViewSet
from django_ojs.http.operation import operation
from django_ojs.http.pagination import SamePagination, SortKey, parse_name
from django_ojs.http.permissions import check_type, denied, limits
from django_ojs.http.serializers import AnswerSerializer, BodySerializer, EitherField, InstantField
from django_ojs.jobs import schemas
from django_ojs.jsontext import is_integer
from django_ojs.models import JobSchema
from django_ojs.models.fields import any_of
from django_ojs.rules import names
from django_ojs.rules.faults import fault, shorten

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+\-]{0,63}")
_URI_PARTS = re.compile(r"urn:ojs:schema:(.+):v([A-Za-z0-9][A-Za-z0-9._+\-]*)")
_MAX_URI = 512


class VersionField(EitherField):
    """A number or a text, as it was registered."""

    def __init__(self, **given: Any) -> None:
        super().__init__(serializers.IntegerField(), serializers.CharField(), **given)


class SchemaSerializer(AnswerSerializer):
    """A version of a schema."""

    uri = serializers.CharField()
    type = serializers.CharField(source="job_type")
    job_type = serializers.CharField()
    version = VersionField(source="wire_version")
    schema = serializers.JSONField()
    created_at = InstantField()
    is_latest = serializers.SerializerMethodField()

    def prepare(self, instances: Sequence[JobSchema]) -> None:
        """Read which one is the latest of each job type."""
        self.latest = schemas.latest({row.job_type for row in instances})

    def get_is_latest(self, row: JobSchema) -> bool:
        return self.latest.get(row.job_type) == row.pk


class SchemaLineSerializer(SchemaSerializer):
    """A schema in a list."""

    schema = None  # type: ignore[assignment]


class SchemaAnswerSerializer(AnswerSerializer):
    schema = SchemaSerializer(source="*")

    def prepare(self, instances: Sequence[JobSchema]) -> None:
        nested: Any = self.fields["schema"]
        nested.prepare(instances)


class AdminSchemaSerializer(SchemaSerializer):
    """The operator's door shows a version of digits as a number, however it was registered."""

    version = serializers.SerializerMethodField()  # type: ignore[assignment]

    def get_version(self, row: JobSchema) -> int | str:
        return _number(row)


class SchemaVersionSerializer(AnswerSerializer):
    version = VersionField()
    created_at = InstantField()
    is_latest = serializers.BooleanField()


class AdminSchemaLatestSerializer(AdminSchemaSerializer):
    """The latest version, and which there are."""

    versions = SchemaVersionSerializer(many=True, source="siblings")


class SchemaVersionsSerializer(AnswerSerializer):
    versions = SchemaVersionSerializer(many=True)


class SchemaDeletedSerializer(AnswerSerializer):
    """A version of a schema that is gone."""

    deleted = serializers.BooleanField()
    type = serializers.CharField()
    version = VersionField()
    uri = serializers.CharField(required=False)
    job_type = serializers.CharField(required=False)


class SchemaRequestSerializer(BodySerializer):
    """A schema to be registered. The URI may say the type and the version; the schema itself is looked at later."""

    schema = serializers.JSONField()
    job_type = serializers.CharField(required=False)
    version = serializers.JSONField(required=False)

    def to_internal_value(self, data: Any) -> Any:
        uri = _uri(data)
        implied = _URI_PARTS.fullmatch(uri)
        job_type = _type(data.get(spellings.SCHEMA.name_in(data, "job_type")) or (implied[1] if implied else None))
        given = data.get("version")
        version, numeric = _version(given if given is not None else implied[2] if implied else None)
        return {"uri": uri, "job_type": job_type, "version": version, "numeric": numeric}


class AdminSchemaRequestSerializer(BodySerializer):
    """`validated_data` is the schema."""

    schema = serializers.JSONField()

    def to_internal_value(self, data: Any) -> Any:
        return _document(data, spellings.ADMIN_SCHEMA.name_in(data, "schema"))


class SchemaViewSet(OJSViewSet):
    """The versions of the schemas. A public path may name one by its URI, the operator's by type and version only."""

    model_name = "jobschema"
    serializer_class, operator_serializer_class = SchemaAnswerSerializer, AdminSchemaSerializer
    pagination_class = SamePagination
    ordering = [SortKey("job_type", descending=False, parse=parse_name), SortKey("id", descending=False, parse=int)]
    list_names = ("schemas",)

    def get_queryset(self) -> QuerySet[JobSchema]:
        """Those of the types that the caller may use."""
        found = JobSchema.objects.using(router.db_for_write(JobSchema)).defer("schema")
        types = limits(self.request).types
        return found if types is None else found.filter(any_of("job_type", types))

    @operation(scope="read", answer=SchemaLineSerializer)
    def list(self, request: Request) -> Response:
        """The argument schemas."""
        return self.listed(self.get_queryset())

    @operation(
        right="add_jobschema",
        body=SchemaRequestSerializer,
        answer=SchemaAnswerSerializer,
        audit="schema.register",
        errors=(409,),
    )
    def create(self, request: Request) -> Response:
        """Register an argument schema."""
        body = self.payload()
        wanted = self.validated(body)
        job_type, version = wanted["job_type"], wanted["version"]
        self.act.target = f"{job_type} {version}"
        _check_limits(request, job_type)
        _check_uri(request, wanted["uri"])
        document = _document(body, "schema")
        schema = schemas.register(job_type, version, document, numeric=wanted["numeric"], uri=wanted["uri"])
        return Response(self.represent(schema), status=201)

    @operation(scope="read")
    def retrieve(self, request: Request, name: str, version: str | None = None) -> Response:
        """A schema."""
        schema = self._find(name, version)
        check_type(request, schema.job_type)
        return Response(self.represent(schema))

    @operation(answer=AdminSchemaLatestSerializer)
    def latest(self, request: Request, name: str) -> Response:
        """The latest version of a schema, and which there are."""
        schema, _ = schemas.find(name)
        check_type(request, schema.job_type)
        schema.siblings = self._versions(name)  # type: ignore[attr-defined]
        return Response(self.represent(schema))

    @operation(scope="read", answer=SchemaVersionsSerializer)
    def versions(self, request: Request, name: str) -> Response:
        """The versions of a schema."""
        check_type(request, name)
        return Response(self.represent({"versions": self._versions(name)}))

    @operation(
        right="add_jobschema",
        body=AdminSchemaRequestSerializer,
        statuses=(201,),
        audit="schema.register",
        errors=(409,),
        missing_ok=True,
    )
    def update(self, request: Request, name: str, version: str) -> Response:
        """Register an argument schema."""
        body = self.payload()
        text, _ = _version(version)
        self.act.target = f"{name} {text}"
        document = self.validated(body)
        _check_limits(request, _type(name))
        schema = schemas.register(_type(name), text, document, numeric=version.isdecimal() and version.isascii())
        return Response(self.represent(schema), status=201)

    @operation(
        right="delete_jobschema", answer=SchemaDeletedSerializer, statuses=(200,), audit="schema.delete",
    )  # fmt: skip
    def destroy(self, request: Request, name: str, version: str | None = None) -> Response:
        """Delete a schema."""
        if version is None and ":" not in name and "/" not in name:
            raise NotFound.resource("schema", shorten(name))
        schema = self._find(name, version)
        _check_limits(request, schema.job_type)
        schemas.remove(schema)
        self.act.target = f"{schema.job_type} {schema.version}"
        gone = {"deleted": True, "type": schema.job_type, "version": self._version(schema)}
        named = {} if self.operator else {"uri": schema.uri, "job_type": schema.job_type}
        return Response(self.represent(gone | named))

    def _find(self, name: str, version: str | None) -> JobSchema:
        """The schema in the path. A public path may name it by its URI (it has a colon)."""
        if not self.operator and ":" in name:
            return schemas.find_uri(name)[0]
        if not self.operator and version is None and "/" in name:
            name, _, version = name.partition("/")
        return schemas.find(name, version)[0]

    def _version(self, schema: JobSchema) -> Any:
        """As this door shows it."""
        return _number(schema) if self.operator else schema.wire_version

    def _versions(self, name: str) -> Sequence[dict[str, Any]]:
        """Newest first."""
        found = schemas.versions(name)
        if not found:
            raise NotFound.resource("schema", shorten(name))
        return [
            {
                "version": self._version(schema),
                "created_at": schema.created_at,
                "is_latest": schema is found[0],
            }
            for schema in found
        ]


_LIST, _VERSIONS = {"get": "list", "post": "create"}, {"get": "versions"}
_ONE = {"get": "retrieve", "delete": "destroy"}
_view = SchemaViewSet.as_view
#: By hand: what follows a name may belong to it, as it may be a URI.
urls = [
    path("schemas", _view(_LIST), name="schemas"),
    path("schemas/<str:name>/versions", _view(_VERSIONS), name="schema-versions"),
    path("schemas/<str:name>/versions/<str:version>", _view(_ONE)),
    path("schemas/<path:name>", _view(_ONE), name="schema"),
    path("admin/schemas", _view(_LIST, operator=True)),
    path("admin/schemas/<str:name>", _view({"get": "latest"}, operator=True)),
    path("admin/schemas/<str:name>/versions", _view(_VERSIONS, operator=True)),
    path("admin/schemas/<str:name>/<str:version>", _view({**_ONE, "put": "update"}, operator=True)),
]


def _number(schema: JobSchema) -> int | str:
    return int(schema.version) if schema.version.isdecimal() else schema.version


def _document(body: dict[str, Any], name: str) -> Any:
    if body.get(name) is None:
        raise fault("schema", "must be a JSON Schema")
    return body[name]


def _uri(body: dict[str, Any]) -> str:
    value = body.get("uri")
    if value is None:
        return ""
    if not names.is_schema_uri(value) or len(value) > _MAX_URI:
        raise fault("uri", "must be a URI such as urn:ojs:schema:email.send:v1", value)
    return str(value)


def _check_limits(request: Request, job_type: str) -> None:
    """Raise PermissionDenied for a schema that would judge jobs beyond the limits of the caller."""
    check_type(request, job_type)
    if not limits(request).covers_type_in_all_queues(job_type):
        message = "A key that is limited to queues cannot change schemas, which hold in all of them."
        raise denied(request, message)


def _check_uri(request: Request, uri: str) -> None:
    """Raise PermissionDenied for a URI by which jobs of types beyond the limits of the caller may name the schema."""
    implied = _URI_PARTS.fullmatch(uri)
    if uri and limits(request).types is not None and not (implied and limits(request).covers_type(implied[1])):
        raise denied(
            request,
            "A key that is limited to job types cannot register a schema under a URI that is not of one of them.",
            uri=shorten(uri),
            hint="Leave the uri out: it is then urn:ojs:schema:{type}:v{version}.",
        )


def _type(value: Any) -> str:
    try:
        return names.check_type(value, hyphens=ojs_settings.DIALECT == "published")
    except ValueError as error:
        raise fault("job_type", str(error), value) from error


def _version(value: Any) -> tuple[str, bool]:
    """The version as text, and whether it came as a number."""
    if is_integer(value) and 0 <= value < 10**15:
        return str(int(value)), True
    if isinstance(value, str) and _VERSION.fullmatch(value):
        return value, False
    raise fault("version", 'must be a number such as 1, or a text such as "1.2.0"', value)
