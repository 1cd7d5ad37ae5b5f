"""One exception per error code of the HTTP binding: code, status, whether a retry can help, details.

Operations raise these; every binding renders them with `OJSError.as_dict()`. A message says what is
wrong and what to do about it, and holds no secret. One that an operator may meet in the admin is `phrase`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django_ojs.messages import phrase

DOCS_URL = "https://openjobspec.org/errors/"


class OJSError(Exception):
    """Base of every error that a caller can meet.

    Attributes:
        code: the word in `error.code` (binding 4.2).
        status: the HTTP status.
        canonical: the upper-case name of the same error in the error catalogue.
        retryable: whether the same request may succeed later.
        kind: `error.type` on the wire; defaults to `code`.
        hint: what the caller can do.
        details: machine-readable facts.
        retry_after: seconds for the Retry-After header, where the binding asks for one.
        headers: further response headers.
    """

    code: ClassVar[str] = "backend_error"
    status: ClassVar[int] = 500
    canonical: str = "BACKEND_ERROR"
    retryable: bool = False
    kind: str = ""
    hint: str = "Look up the code in the error catalogue."
    retry_after: int | None = None

    def __init__(
        self,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        hint: str = "",
        canonical: str = "",
        code: str = "",
        extra: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = str(message)
        self.details = details or {}
        self.extra = extra or {}
        self.headers = headers or {}
        self.error_code = code or self.code
        if hint:
            self.hint = hint
        if canonical:
            self.canonical = canonical
        if retry_after is not None:
            self.retry_after = retry_after

    def as_dict(self, request_id: str = "") -> dict[str, Any]:
        """The `error` object of binding 4.1. `request_id` is added when there is one."""
        url = DOCS_URL + self.canonical
        body: dict[str, Any] = {
            "code": self.error_code,
            "type": self.kind or self.error_code,
            "canonical_code": self.canonical,
            "message": self.message,
            "retryable": self.retryable,
            "details": self.details,
            "hint": self.hint,
            "docs_url": url,
            "doc_url": url,
        }
        body.update(self.extra)
        if request_id:
            body["request_id"] = request_id
        return body


def sentence_of(error: Exception) -> str:
    """Why something was refused, for a log or a record of it: `code: message`, or the class where it has no code."""
    return f"{getattr(error, 'error_code', type(error).__name__)}: {error}"


class InvalidPayload(OJSError):
    """The body or the job envelope breaks a rule of core section 5 (400)."""

    code = "invalid_payload"
    status = 400
    canonical = "INVALID_PAYLOAD"
    kind = "validation_error"
    hint = "Correct the field named in details and send the request again."


class InvalidRetryPolicy(InvalidPayload):
    """A retry policy with an impossible value (422)."""

    status = 422
    canonical = "INVALID_RETRY_POLICY"


class InvalidRequest(OJSError):
    """Something outside an envelope is wrong: header, query, worker call (400)."""

    code = "invalid_request"
    status = 400
    canonical = "INVALID_PAYLOAD"
    kind = "validation_error"
    hint = "Correct the request as the message says and send it again."


class InvalidWorkflow(OJSError):
    """The structure of a workflow, or one of its jobs, is faulty (400)."""

    code = "invalid_workflow"
    status = 400
    canonical = "INVALID_WORKFLOW"
    kind = "validation_error"
    hint = "Correct what details.validation_errors names and send the whole workflow again: nothing was stored."


class MethodNotAllowed(InvalidRequest):
    status = 405
    canonical = "INVALID_PAYLOAD"
    kind = "invalid_request"
    hint = "Use one of the methods in the Allow header."


class Unauthenticated(OJSError):
    code = "unauthenticated"
    status = 401
    canonical = "UNAUTHENTICATED"
    hint = "Send a valid API key: `Authorization: Bearer <key>` (manage.py ojs_apikey create makes one)."


class PermissionDenied(OJSError):
    code = "permission_denied"
    status = 403
    canonical = "PERMISSION_DENIED"
    hint = "Use a key whose scopes, queues and job types cover this call."


class NotFound(OJSError):
    code = "not_found"
    status = 404
    canonical = "NOT_FOUND"
    hint = "Check the id or the path."

    @classmethod
    def resource(cls, resource_type: str, resource_id: str) -> NotFound:
        """`resource_type` is `job`, `dead_letter_job`, `worker`, `queue`, ..."""
        label = resource_type.replace("_", " ").capitalize()
        details = {"resource_type": resource_type, "resource_id": resource_id}
        message = phrase("%(kind)s '%(id)s' not found.", kind=phrase(label), id=resource_id)
        return cls(message, details=details, hint=f"Check the {label.lower()} id.")


class Duplicate(OJSError):
    """The id is taken, or a unique job exists already (409)."""

    code = "duplicate"
    status = 409
    canonical = "DUPLICATE_JOB"
    hint = "Use another id, or read the existing job."


class Conflict(OJSError):
    """The resource is in another state than the call needs (409)."""

    code = "conflict"
    status = 409
    canonical = "INVALID_STATE_TRANSITION"
    hint = "Read the job's current state and decide anew."


class InvalidStateTransition(Conflict):
    """A verb met a job in a state that the transition table does not allow (core 6.3, L0-LC-003).

    Raised alike for Python, HTTP, the admin and a queryset. `details` always has `job_id`,
    `current_state`, `attempted` (the verb) and `attempted_state`. Bindings that must say `conflict`
    instead (decision by path) set `error_code`.
    """

    code = "invalid_state_transition"
    kind = "invalid_state_transition"

    @classmethod
    def of(
        cls, job_id: str, current: str | None, verb: str, target: str, *, called: str = "", **facts: Any
    ) -> InvalidStateTransition:
        """`current` None means that the change was tried around the state machine (save, update).

        `called` is what the caller knows the verb as, where it is another word. A state or states in `expected_state`
        among the facts are those from which it could be done.
        """
        canonical = {"completed": "JOB_ALREADY_COMPLETED", "cancelled": "JOB_ALREADY_CANCELLED"}.get(current or "", "")
        details = {"job_id": job_id, "current_state": current, "attempted": verb, "attempted_state": target} | facts
        values = {"verb": called or verb, "job": job_id, "state": current, "target": target}
        message = phrase(
            "Cannot %(verb)s job '%(job)s': it is %(state)s, and %(verb)s leads to %(target)s from other states only.",
            **values,
        )
        if expected := facts.get("expected_state"):
            message = phrase(
                "Cannot %(verb)s job '%(job)s': it is %(state)s, and %(verb)s leads to %(target)s from %(expected)s "
                "only.",
                **values, expected=expected if isinstance(expected, str) else ", ".join(expected),
            )  # fmt: skip
        if facts.get("reason") == "not_claimant":
            return cls(_not_held(called or verb, job_id), details=details, canonical=canonical)
        return cls(message, details=details, canonical=canonical)


class ReservationLost(Conflict):
    """The worker that speaks for a job does not hold it any more, or not for this attempt (409)."""

    hint = "Stop working on the job: it was handed back, has ended, or another worker has it."

    @classmethod
    def of(cls, job_id: str, current: str, attempted: str, worker_id: str) -> ReservationLost:
        details = {"job_id": job_id, "current_state": current, "attempted": attempted, "reason": "not_claimant"}
        details |= {"worker_id": worker_id} if worker_id else {}
        return cls(_not_held(attempted, job_id), details=details)


def _not_held(verb: str, job_id: str) -> str:
    return f"Cannot {verb} job '{job_id}': this worker does not hold it, or not for this attempt."


class PayloadTooLarge(OJSError):
    code = "payload_too_large"
    status = 413
    canonical = "PAYLOAD_TOO_LARGE"
    hint = "Send less: store large data elsewhere and pass a reference."


class MetadataTooLarge(PayloadTooLarge):
    code = "metadata_too_large"
    canonical = "METADATA_TOO_LARGE"


class BatchSizeExceeded(PayloadTooLarge):
    code = "batch_size_exceeded"
    canonical = "BATCH_SIZE_EXCEEDED"
    hint = "Split the batch."


class ResultTooLarge(PayloadTooLarge):
    code = "RESULT_TOO_LARGE"
    canonical = "RESULT_TOO_LARGE"
    hint = "Store the result elsewhere and acknowledge with a reference to it. The job is still active."


class UnsupportedCompression(OJSError):
    code = "unsupported_compression"
    status = 415
    canonical = "UNSUPPORTED_COMPRESSION"
    hint = "Send the body uncompressed or in one of the encodings that details.supported names."


class Unsupported(OJSError):
    """A version, feature or extension that this server does not have (422)."""

    code = "unsupported"
    status = 422
    canonical = "UNSUPPORTED_FEATURE"
    hint = "Read /ojs/manifest for what this server supports."


class MiddlewareRejected(OJSError):
    """An enqueue middleware refused the job (422). Raise it, or a subclass, from a middleware."""

    code = "x_middleware_rejected"
    status = 422
    canonical = "UNSUPPORTED_FEATURE"
    hint = "The site's enqueue middleware refuses this job; the message says why."


class JobTypeNotAllowed(OJSError):
    """The queue's `allowed_job_types` leave this type out (422)."""

    code = "JOB_TYPE_NOT_ALLOWED"
    status = 422
    canonical = "JOB_TYPE_NOT_ALLOWED"
    hint = "Use a queue that takes this type, or change the queue's allowed_job_types."


class QueuePaused(OJSError):
    """The queue takes no new jobs: it is draining (422)."""

    code = "queue_paused"
    status = 422
    canonical = "QUEUE_PAUSED"
    retryable = True
    hint = "Use another queue, or wait until this one takes jobs again."


class RateLimited(OJSError):
    code = "rate_limited"
    status = 429
    canonical = "RATE_LIMITED"
    retryable = True
    retry_after = 1
    hint = "Wait as Retry-After says."


class QueueFull(OJSError):
    """A bounded queue has no room for the job (429, jobs 6)."""

    code = "QUEUE_FULL"
    status = 429
    canonical = "QUEUE_FULL"
    retryable = True
    retry_after = 1
    hint = "Wait as Retry-After says, or raise the bound of the queue."
    #: Whether the refusal is in the event log already.
    recorded = False

    @classmethod
    def of(cls, queue: str, depth: int, bound: int, strategy: str) -> QueueFull:
        facts = {"queue": queue, "depth": depth, "bound": bound, "strategy": strategy}
        headers = {"X-OJS-Queue-Depth": str(depth), "X-OJS-Queue-Bound": str(bound)}
        message = phrase(
            "The queue '%(queue)s' is full: %(depth)s of %(bound)s.", queue=queue, depth=depth, bound=bound
        )
        return cls(message, details=dict(facts), extra=facts, headers=headers)


class BatchAborted(OJSError):
    """This job of an atomic request was fine; another one was not, so nothing was done (422)."""

    code = "x_batch_aborted"
    status = 422
    canonical = "BATCH_ABORTED"
    hint = "Correct the items that failed for a reason of their own and send the request again."


class SchemaValidation(OJSError):
    """The arguments do not fit the registered schema (422)."""

    code = "schema_validation"
    status = 422
    canonical = "SCHEMA_VALIDATION_FAILED"
    kind = "validation_error"
    hint = "Correct the arguments at the paths named in details."


class ResultPruned(OJSError):
    """The job's result was kept for its time and is gone (410)."""

    code = "RESULT_PRUNED"
    status = 410
    canonical = "RESULT_PRUNED"
    hint = "Ask earlier, or give the job a longer result_ttl."


class WaitTimeout(OJSError):
    """The job did not end while the caller waited for its result (408)."""

    code = "timeout"
    status = 408
    canonical = "WAIT_TIMEOUT"
    retryable = True
    retry_after = 1
    hint = "Ask again."


class StreamingUnavailable(OJSError):
    """An answer that does not end, asked of a server that cannot give one (406)."""

    code = "unsupported"
    status = 406
    canonical = "UNSUPPORTED"
    hint = "Serve the site's ASGI application, with uvicorn for one, or poll GET /ojs/v1/events."


class SearchUnavailable(OJSError):
    """A search for words, which this server does not have (501)."""

    code = "unsupported"
    status = 501
    canonical = "UNSUPPORTED"
    hint = "Leave the parameter `query` out, and filter by event_types, queues, job_types, start and end."


class BackendUnavailable(OJSError):
    """The database cannot be reached or gave up (503)."""

    code = "backend_error"
    status = 503
    canonical = "BACKEND_UNAVAILABLE"
    retryable = True
    retry_after = 1
    hint = "The job store is unavailable; try again after Retry-After seconds."


class BackendError(OJSError):
    """A fault of ours (500). The message names no internals; the log has them under the request id."""

    retryable = True
    hint = "Report the request id to the operator of this server."
