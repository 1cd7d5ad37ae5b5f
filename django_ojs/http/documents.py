"""What bodies and answers hold that other modules read and make, for the OpenAPI document.

A serializer that renders by its own code (`AnswerSerializer.show`) declares no fields: the document finds them here, in
the class of the same name. Members that are not named are allowed. A class goes when its serializer declares fields.
"""

# mypy: disable-error-code="assignment"
# The members of the wire have names such as `data`, `errors` and `source`, which DRF's classes have too.

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from django_ojs.http.serializers import (  # noqa: F401
    EnvelopeSerializer,
    ErrorSerializer,
    NothingSerializer,
    PaginationSerializer,
    WarningSerializer,
)
from django_ojs.states import State

STATES = [state.value for state in State]


class Document(serializers.Serializer[Any]):
    """Members of a JSON object."""

    #: Schemas of the document that hold beside the fields; `Envelope` is `schemas/envelope.json`.
    also: ClassVar[tuple[str, ...]] = ()
    #: Whether there may be no other members than the fields.
    closed: ClassVar[bool] = False
    #: The documents of which it is one, for one without members of its own.
    any_of: ClassVar[tuple[type[Document], ...]] = ()


def text(*, required: bool = True, **more: Any) -> serializers.CharField:
    return serializers.CharField(required=required, **more)


def number(*, required: bool = True, **more: Any) -> serializers.IntegerField:
    return serializers.IntegerField(required=required, **more)


def texts(*, required: bool = True, **more: Any) -> serializers.ListField:
    return serializers.ListField(child=serializers.CharField(), required=required, **more)


def objects(*, required: bool = True) -> serializers.ListField:
    return serializers.ListField(child=serializers.DictField(), required=required)


def words(*choices: str, required: bool = True) -> serializers.ChoiceField:
    return serializers.ChoiceField(choices=choices, required=required)


def flag(*, required: bool = True, **more: Any) -> serializers.BooleanField:
    return serializers.BooleanField(required=required, **more)


def instant(*, required: bool = True, **more: Any) -> serializers.DateTimeField:
    return serializers.DateTimeField(required=required, **more)


def anything(*, required: bool = True) -> serializers.JSONField:
    return serializers.JSONField(required=required)


# What every resource has


# Jobs


class JobSerializer(Document):
    """A job: its envelope, with what the server knows of it."""

    also = ("Envelope",)

    specversion = text()
    id = text()
    type = text()
    queue = text()
    args = anything()
    meta = serializers.DictField()
    priority = number()
    state = words(*STATES)
    attempt = number()
    max_attempts = number()
    created_at = text()


class JobAnswerSerializer(JobSerializer):
    """One job, flat and once more under `job`."""

    job = JobSerializer(required=False)
    deduplicated = flag(required=False)
    warnings = WarningSerializer(many=True, required=False)


class JobDroppedSerializer(Document):
    """A push that enqueue middleware, or a full queue, has dropped."""

    job = anything(required=False)
    dropped = flag()


class PushedSerializer(Document):
    any_of = (JobAnswerSerializer, JobDroppedSerializer)


class JobDetailSerializer(JobSerializer):
    errors = objects()
    retry_policy = serializers.DictField()
    metadata = serializers.DictField()


class JobLineSerializer(Document):
    """A job in a list."""

    id = text()
    type = text()
    queue = text()
    state = words(*STATES)
    priority = number()
    attempt = number()
    created_at = instant()
    completed_at = instant(required=False)
    scheduled_at = instant(required=False)


class JobBatchSerializer(Document):
    jobs: Any = serializers.ListSerializer(child=EnvelopeSerializer(), min_length=1)


class JobBatchAnswerSerializer(Document):
    jobs = JobSerializer(many=True)
    count = number()
    warnings = WarningSerializer(many=True, required=False)


class ProgressReportSerializer(Document):
    progress = serializers.FloatField(required=False, help_text="From 0 to 1.")
    percentage = serializers.FloatField(required=False, help_text="From 0 to 100.")
    progress_percent = serializers.FloatField(required=False, help_text="From 0 to 100.")
    message = text(required=False)
    data = anything(required=False)
    worker_id = text(required=False)
    attempt = number(required=False)


class ProgressSerializer(Document):
    job_id = text()
    state = words(*STATES)
    progress = serializers.FloatField(allow_null=True, min_value=0, max_value=1)
    data = anything()
    message = text(allow_null=True)
    updated_at = instant(allow_null=True)


class UniqueKeySerializer(Document):
    key = text()
    job_id = text()
    type = text()
    queue = text()
    state = words(*STATES)
    locked_until = instant(allow_null=True)


# Workers


class AckOfPathSerializer(Document):
    """ACK, where the path names the job."""

    worker_id = text(required=False)
    result = anything(required=False)


class AckAnswerSerializer(Document):
    acknowledged = flag()
    job_id = text()
    state = words(*STATES)
    job = JobSerializer()


class NackOfPathSerializer(Document):
    """FAIL, where the path names the job."""

    worker_id = text(required=False)
    error = serializers.DictField(required=False)


class NackAnswerSerializer(Document):
    job_id = text()
    state = words(*STATES)
    job = JobSerializer()


# Acts on many jobs, and dead letters


class DeadLetterSerializer(JobSerializer):
    errors = objects()
    error = serializers.DictField(required=False)
    total_attempts = number()
    metadata = serializers.DictField()
    discarded_at = instant(required=False)


class DeadLetterAnswerSerializer(DeadLetterSerializer):
    job = DeadLetterSerializer()
