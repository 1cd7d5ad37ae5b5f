"""The schema registry (binding 7): register, look up, delete, and check the arguments of a push.

Each process caches for a few seconds which schemas there are, so a push costs no statement where none is
registered. A job that names its schema by URI is looked up when the cache does not know it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import IntegrityError, transaction

from django_ojs import clock, jsontext, tenants
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database
from django_ojs.errors import Duplicate, InvalidRequest, NotFound, SchemaValidation
from django_ojs.faults import only_if_taken
from django_ojs.messages import phrase
from django_ojs.models import JobSchema
from django_ojs.models.fields import RawJSON, same_name
from django_ojs.rules import attributes, redaction, schemas
from django_ojs.rules.envelope import JobSpec

if TYPE_CHECKING:
    from django_ojs.jobs.candidates import Candidate

_TTL_SECONDS = 5.0


class KnownSchema(NamedTuple):
    """A registered schema as pushes need it."""

    job_type: str
    uri: str
    version: str
    text: str


@dataclasses.dataclass(slots=True)
class _LoadedSchemas:
    loaded: float
    by_type: dict[str, list[KnownSchema]]
    by_uri: dict[str, KnownSchema]


_cache: dict[Hashable, _LoadedSchemas] = {}


def register(
    job_type: str, version: str, schema: Any, *, numeric: bool = False, uri: str = "", using: str | None = None
) -> JobSchema:
    """Add one version of a type's schema. `uri` defaults to `urn:ojs:schema:{type}:v{version}`.

    Raises `InvalidRequest` for a bad document or one that breaks a minor version's promise, `Duplicate` when
    the version or the URI is taken, `Unsupported` without the extra `schemas`.
    """
    using = database(using)
    schemas.check_document(schema)
    uri = uri or f"urn:ojs:schema:{job_type}:v{version}"
    others = versions(job_type, using=using)
    if any(schemas.same_version(version, other.version) for other in others):
        raise _taken(job_type, version, uri)
    _refuse_breaks(version, schema, others)
    new = JobSchema(job_type=job_type, version=version, numeric=numeric, uri=uri, created_at=clock.now(using))
    new.schema = RawJSON(jsontext.dumps(schema))
    try:
        with atomic(using=using):
            new.save(using=using, force_insert=True)
    except IntegrityError as error:
        only_if_taken(error)
        raise _taken(job_type, version, uri) from error
    transaction.on_commit(forget, using=using)
    forget()
    new.schema = schema
    return new


def versions(job_type: str, *, using: str | None = None) -> list[JobSchema]:
    """The schemas of a type, newest version first."""
    if not job_type.isprintable():  # a NUL cannot even be looked for
        return []
    found = JobSchema.objects.using(database(using)).filter(same_name("job_type", job_type))
    return sorted(found, key=lambda schema: schemas.order(schema.version), reverse=True)


def latest(job_types: Collection[str], *, using: str | None = None) -> dict[str, int]:
    """The primary key of each type's newest version, for types that have one. One query, and it reads no documents."""
    found = JobSchema.objects.using(database(using)).filter(job_type__in=job_types)
    newest: dict[str, tuple[str, int]] = {}
    for job_type, version, pk in found.values_list("job_type", "version", "pk"):
        if job_type not in newest or schemas.order(version) > schemas.order(newest[job_type][0]):
            newest[job_type] = version, pk
    return {job_type: pk for job_type, (_, pk) in newest.items()}


def find(job_type: str, version: str | None = None, *, using: str | None = None) -> tuple[JobSchema, bool]:
    """One schema of a type, the latest unless a version is named, and whether it is the latest. Raises NotFound."""
    found = versions(job_type, using=using)
    for schema in found:
        if version is None or schemas.same_version(version, schema.version):
            return schema, schema is found[0]
    raise NotFound.resource("schema", job_type if version is None else f"{job_type}/{version}")


def find_uri(uri: str, *, using: str | None = None) -> tuple[JobSchema, bool]:
    """The schema with this URI, and whether it is the latest of its type. Raises NotFound."""
    schema = JobSchema.objects.using(database(using)).filter(uri=uri).first() if uri.isprintable() else None
    if schema is None:
        raise NotFound.resource("schema", uri)
    return schema, latest([schema.job_type], using=using).get(schema.job_type) == schema.pk


def remove(schema: JobSchema, *, using: str | None = None) -> None:
    """Delete a version; stored jobs are left alone."""
    using = database(using)
    JobSchema.objects.using(using).filter(pk=schema.pk).delete()
    transaction.on_commit(forget, using=using)
    forget()


def are_asked(spec: JobSpec, using: str) -> bool:
    """Whether a schema has a say about this job, unless its arguments are encoded."""
    return _are_asked(spec, partial(_registry, using))


def _are_asked(spec: JobSpec, registry: Callable[[], _LoadedSchemas]) -> bool:
    if spec.extra.get("schema") is not None:
        return True
    return ojs_settings.SCHEMA_VALIDATION != "off" and spec.type in registry().by_type


def check(candidates: Sequence[Candidate], using: str) -> None:
    """Refuse, or warn about, jobs whose arguments do not fit; see the setting `SCHEMA_VALIDATION`.

    A schema of a type beyond the caller's limits is as one that is not registered: a refusal would tell what it says.
    """
    registry = cache(partial(_registry, using))  # the same for all
    for candidate in candidates:
        if candidate.outcome is not None or candidate.spec is None:
            continue
        if candidate.spec.meta and attributes.is_encoded(candidate.spec.meta):
            continue
        if not _are_asked(candidate.spec, registry):
            continue
        uri = candidate.spec.extra.get("schema")
        known = _by_uri(uri, registry(), using) if uri is not None else _by_type(candidate.spec, registry())
        if known is None or not candidate.limits.covers_type(known.job_type):
            continue
        found = schemas.problems(known.text, candidate.spec.args)
        if not found:
            continue
        if uri is not None or ojs_settings.SCHEMA_VALIDATION == "strict":
            candidate.refuse(_misfit(candidate.spec, known, found))
        else:
            warnings = [{"code": "schema_validation", "schema": known.uri, **problem} for problem in found]
            candidate.warnings = (*candidate.warnings, *warnings)


def forget() -> None:
    """Drop what this process remembers about the registry."""
    _cache.clear()


def _registry(using: str) -> _LoadedSchemas:
    scope = tenants.scope(using)
    found = _cache.get(scope)
    if found is not None and time.monotonic() - found.loaded < _TTL_SECONDS:
        return found
    by_type: dict[str, list[KnownSchema]] = {}
    for schema in JobSchema.objects.using(using).order_by("pk"):
        known = _known(schema)
        by_type.setdefault(schema.job_type, []).append(known)
    for group in by_type.values():
        group.sort(key=lambda known: schemas.order(known.version), reverse=True)
    by_uri = {known.uri: known for group in by_type.values() for known in group}
    registry = _cache[scope] = _LoadedSchemas(time.monotonic(), by_type, by_uri)
    return registry


def _known(schema: JobSchema) -> KnownSchema:
    return KnownSchema(schema.job_type, schema.uri, schema.version, jsontext.dumps(schema.schema))


def _by_uri(uri: str, registry: _LoadedSchemas, using: str) -> KnownSchema | None:
    if uri not in registry.by_uri:
        schema = JobSchema.objects.using(using).filter(uri=uri).first()
        if schema is None:
            return None
        registry.by_uri[uri] = _known(schema)
    return registry.by_uri[uri]


def _by_type(spec: JobSpec, registry: _LoadedSchemas) -> KnownSchema:
    """The schema of the version that the job names, or else the newest of its type, which has one."""
    group = registry.by_type[spec.type]
    version = spec.extra.get("version")
    same = [known for known in group if version is not None and schemas.same_version(str(version), known.version)]
    return (same or group)[0]


def _misfit(spec: JobSpec, known: KnownSchema, found: list[dict[str, str]]) -> SchemaValidation:
    if redaction.tells("args", spec.type, spec.meta):
        found = [{**one, "message": "does not fit"} for one in found]
    details = {
        "field": found[0]["path"], "schema": known.uri, "job_type": spec.type, "version": known.version,
        "errors": found, "validation_errors": found,
    }  # fmt: skip
    return SchemaValidation(
        phrase(
            "%(path)s: %(message)s (schema %(uri)s).", path=found[0]["path"], message=found[0]["message"], uri=known.uri
        ),
        details=details,
    )


def _refuse_breaks(version: str, schema: Any, others: Sequence[JobSchema]) -> None:
    older = [other for other in others if schemas.order(other.version) < schemas.order(version)]
    if not older or not schemas.is_minor_step(older[0].version, version):
        return
    breaks = schemas.breaking_changes(older[0].schema, schema)
    if breaks:
        details = {"field": "version", "previous_version": older[0].version, "breaking_changes": breaks}
        message = f"Version {version} breaks what {older[0].version} accepted: {breaks[0]}."
        raise InvalidRequest(message, details=details, hint="Register it under a new major version.")


def _taken(job_type: str, version: str, uri: str) -> Duplicate:
    details = {"resource_type": "schema", "type": job_type, "version": version, "uri": uri}
    message = f"A schema with version {version} of '{job_type}', or with the URI {uri}, is registered already."
    return Duplicate(message, details=details, hint="Choose another version; a registered schema never changes.")
