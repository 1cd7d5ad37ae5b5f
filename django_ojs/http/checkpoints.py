"""Checkpoints over HTTP (orchestration 5.2): a worker saves the state of its job, and the next attempt goes on from it.

They stand at `/jobs/{id}/checkpoint`, and once more at `/checkpoints/{id}` for the helpers of the published clients.
"""

from __future__ import annotations

import uuid
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound
from django_ojs.http import fields, permissions, redacted
from django_ojs.http.base import OJSViewSet
from django_ojs.http.operation import operation
from django_ojs.http.serializers import AnswerSerializer, BodySerializer, InstantField, ObjectField, TextField
from django_ojs.jobs import checkpoints, steps
from django_ojs.jobs.checkpoints import MAX_NUMBER, NewCheckpoint
from django_ojs.models import JobCheckpoint
from django_ojs.rules.faults import fault

#: What a body may have beside the state: names, numbers, white space.
FRAME = 16 * 1024


class CheckpointBodySerializer(BodySerializer):
    """What is saved: `state` is any JSON value, null too. `step_index` and `metadata` are the client's own."""

    state = serializers.JSONField()
    sequence = serializers.IntegerField(
        required=False, allow_null=True, min_value=0, max_value=MAX_NUMBER,
        help_text="Greater than the stored one; the next one where it is absent.",
    )  # fmt: skip
    step_index = serializers.IntegerField(required=False, allow_null=True, min_value=0, max_value=MAX_NUMBER)
    metadata = ObjectField()
    worker_id = TextField()
    attempt = serializers.IntegerField(required=False, allow_null=True)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if "state" not in data:
            raise fault("state", "must be there: any JSON value, null too")
        return {
            "state": data["state"],
            "sequence": _exact(data, "sequence"),
            "step_index": _exact(data, "step_index"),
            "metadata": _texts(data),
            "worker_id": fields.worker_id(data),
            "attempt": fields.integer(data, "attempt", minimum=1),
        }


def _texts(data: dict[str, Any]) -> dict[str, Any] | None:
    """The metadata, which clients of typed languages read as texts by name."""
    metadata = fields.member(data, "metadata")
    for name, value in (metadata or {}).items():
        if not isinstance(value, str):
            raise fault(f"metadata.{name[:100]}", "must be a text", value)
    return metadata


def _exact(data: dict[str, Any], field: str) -> int | None:
    """A number that is kept as it is, so that one that is too large is refused."""
    number = fields.integer(data, field, minimum=0, maximum=MAX_NUMBER + 1)
    if number is not None and number > MAX_NUMBER:
        raise fault(field, f"must be at most {MAX_NUMBER}", data[field])
    return number


class SavedStateSerializer(AnswerSerializer):
    """What is kept of a job's work."""

    job_id = serializers.CharField()
    state = serializers.JSONField()
    sequence = serializers.IntegerField()
    created_at = InstantField()


class CheckpointSerializer(SavedStateSerializer):
    """The checkpoint of a job, flat and once more under `checkpoint`."""

    checkpoint = SavedStateSerializer()


class CheckpointClearedSerializer(AnswerSerializer):
    deleted = serializers.BooleanField(help_text="Whether there was one.")
    job_id = serializers.CharField()


class ResumedStateSerializer(AnswerSerializer):
    """Where to go on, with what the client kept beside the state."""

    state = serializers.JSONField()
    step_index = serializers.IntegerField(allow_null=True)
    metadata = serializers.DictField()
    sequence = serializers.IntegerField()
    created_at = InstantField()


class ResumeSerializer(AnswerSerializer):
    """Whether there is something to go on from."""

    has_checkpoint = serializers.BooleanField()
    checkpoint = ResumedStateSerializer(required=False)


class JobCheckpoints(OJSViewSet):
    """`/jobs/{id}/checkpoint`, a part of the ViewSet of jobs."""

    @operation(detail=True, methods=["get"], scope="read", answer=CheckpointSerializer)
    def checkpoint(self, request: Request, job_id: str) -> Response:
        """The checkpoint of a job, the state that was saved last."""
        row = self.get_object()
        found = checkpoints.read(row["id"])
        if found is None:
            raise NotFound.resource("checkpoint", str(row["id"]))
        return Response(self.represent(_shown(found, redacted.checkpoint(row, found.state))))

    @operation(
        at=checkpoint,
        methods=["put", "post"],
        scope="work",
        doors="public",
        body=CheckpointBodySerializer,
        answer=CheckpointSerializer,
        errors=(409,),
    )
    def save_checkpoint(self, request: Request, job_id: str) -> Response:
        """Save the checkpoint of a job, in place of the one before."""
        return saved(self, fields.path_id(job_id))

    @operation(
        at=checkpoint,
        methods=["delete"],
        scope="work",
        right="change_job",
        answer=CheckpointClearedSerializer,
        audit="job.clear_checkpoint",
        audit_doors="operator",
        errors=(409,),
    )
    def clear_checkpoint(self, request: Request, job_id: str) -> Response:
        """Delete the checkpoint of a job: its next attempt starts over."""
        return cleared(self, fields.path_id(job_id))


class CheckpointViewSet(OJSViewSet):
    """`/checkpoints`, where the helpers of the published clients look for it. Workers call it."""

    lookup_url_kwarg = "job_id"
    model_name = "job"

    @operation(
        detail=True,
        methods=["get"],
        aliases=("/ojs/v1/checkpoints/<str:job_id>/resume",),
        scope="work",
        doors="public",
        answer=ResumeSerializer,
    )
    def resume(self, request: Request, job_id: str) -> Response:
        """Where a job goes on, if it has a checkpoint."""
        identifier = fields.path_id(job_id)
        permissions.check_jobs(request, [identifier])
        return Response(self.represent(checkpoints.resume(checkpoints.read(identifier), steps.of(identifier))))

    @operation(
        scope="work",
        doors="public",
        body=CheckpointBodySerializer,
        answer=CheckpointSerializer,
        errors=(409,),
    )
    def save(self, request: Request, job_id: str) -> Response:
        """Save the checkpoint of a job.

        For clients that do not know `/jobs/{job_id}/checkpoint`.
        """
        return saved(self, fields.path_id(job_id))

    @operation(scope="work", doors="public", answer=CheckpointClearedSerializer, errors=(409,))
    def remove(self, request: Request, job_id: str) -> Response:
        """Delete the checkpoint of a job.

        For clients that do not know `/jobs/{job_id}/checkpoint`.
        """
        return cleared(self, fields.path_id(job_id))


def body_limit() -> int:
    """Bytes of a body that has a checkpoint in it."""
    return ojs_settings.MAX_CHECKPOINT_BYTES + FRAME


def saved(view: OJSViewSet, job_id: uuid.UUID) -> Response:
    """Save what the body says; answer with it."""
    given = view.validated(view.payload(limit=body_limit(), field="checkpoint"))
    permissions.check_jobs(view.request, [job_id])
    permissions.check_worker(view.request, given["worker_id"])
    kept = checkpoints.save(NewCheckpoint(job_id, **given))
    return Response(view.represent(_shown(kept, kept.state)))


def cleared(view: OJSViewSet, job_id: uuid.UUID) -> Response:
    """Delete the checkpoint, and answer whether there was one."""
    permissions.check_jobs(view.request, [job_id])
    return Response(view.represent({"deleted": checkpoints.clear(job_id, with_steps=True), "job_id": job_id}))


def _shown(found: JobCheckpoint, state: Any) -> dict[str, Any]:
    """The checkpoint with its state as it is to be shown."""
    kept = {"job_id": found.job_id, "state": state, "sequence": found.sequence, "created_at": found.created_at}
    return {**kept, "checkpoint": kept}
