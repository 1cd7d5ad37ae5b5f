"""Answer whatever a view raises with an error of the specification (binding 4): no page, no traceback, no internals."""

from __future__ import annotations

import time
from typing import Any

from django.core import exceptions as django_exceptions
from django.db import Error, connections, router
from django.http import Http404, UnreadablePostError
from rest_framework import exceptions as drf
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import errors
from django_ojs.backoff import SharedBackoff
from django_ojs.database import leave
from django_ojs.errors import OJSError
from django_ojs.faults import (
    HeldByAnother,
    StoodStill,
    fault_of,
    is_contention,
    is_disk_full,
    is_unusable,
    passes,
    status_of,
    unmigrated,
)
from django_ojs.guard import SafeLogger, get_logger, lacks_threads
from django_ojs.http import auditing
from django_ojs.http.serializers import ErrorSerializer, shared
from django_ojs.models import Job
from django_ojs.rules.faults import shorten

logger = get_logger("django_ojs.http")

_AWAY = "The job store is not available at the moment."
_BUSY = "Another transaction holds what this call needs, and has not let it go in time. Nothing was changed."
_STOOD_STILL = "The server stood still in the middle of this call, so the database ended it. Nothing was changed."
_UNEXPECTED = "The server met an unexpected condition and could not complete the request."
_NO_THREADS = "The server can do no more at the same time."
_LATER = "Try again after Retry-After seconds."


#: For how many seconds a disk that a request found full counts as full: the probes cannot ask it themselves.
FULL_SECONDS = 15.0
_full_at = float("-inf")


def disk_was_full() -> bool:
    """Whether a request of this process has found the disk of its database full a moment ago."""
    return time.monotonic() - _full_at < FULL_SECONDS


#: Requests that the database refuses for now. An outage would fill the log with them.
refusals = SharedBackoff("The database", logger=logger)


def note_refusal(call: str, error: Exception, request_id: str) -> None:
    """Note a call that the database has ended with this error."""
    refusals.failed(f"refuses requests, as {call} (request {request_id})", error)


def forget() -> None:
    """As if no request had been refused, as tests begin."""
    global _full_at
    _full_at = float("-inf")


def handler(exc: Exception, context: dict[str, Any]) -> Response:
    """The answer to whatever a view raised: DRF's exception handler of our views. `context` holds the view."""
    view, request = context["view"], context["request"]
    error = to_error(exc)
    if is_unusable(exc):
        leave(connections[router.db_for_write(Job)], exc)
    if (operation := view.operation).is_audited(operator=view.operator):
        auditing.note_denial(request, view.request_id, error, operation.audit, next(map(str, view.kwargs.values()), ""))
    log(exc, error, request, view.request_id)
    if isinstance(error, errors.InvalidStateTransition):
        error.error_code = view.conflict_code
    headers = headers_of(error, view.get_authenticate_header(request) or "Bearer")
    body = shared(ErrorSerializer).to_representation({"error": error.as_dict(view.request_id)})
    answer = Response(body, status=error.status, headers=headers)
    return logged(answer) if is_refusal(exc, error) else answer


def is_refusal(exc: Exception, error: OJSError) -> bool:
    """Whether a call failed because the database can do nothing for it now."""
    cause = exc.__cause__ if isinstance(exc, OJSError) and not isinstance(exc, HeldByAnother) else exc
    of_database = cause is not None and fault_of(cause) is not None
    return error.status == 503 and of_database and passes(exc)


def logged(answer: Response) -> Response:
    """The answer, of which Django is not to log a line of its own: `refusals` does, and not for each."""
    answer._has_been_logged = True  # type: ignore[attr-defined]
    return answer


def headers_of(error: OJSError, challenge: str = "Bearer") -> dict[str, str]:
    """The headers of the answer that an error becomes."""
    headers = dict(error.headers)
    if error.status == 401:
        headers.setdefault("WWW-Authenticate", challenge)
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return headers


def to_error(exc: Exception) -> OJSError:
    """The spec's error for `exc`."""
    if sentence := unmigrated(exc):
        return errors.BackendUnavailable(_AWAY, hint=sentence)
    match exc:
        case OJSError():
            return exc
        case drf.APIException():
            return _from_drf(exc)
        case Http404():
            return errors.NotFound("There is nothing at this path.")
        case django_exceptions.PermissionDenied():
            return errors.PermissionDenied("This call is not allowed.")
        case UnreadablePostError():
            return errors.InvalidPayload("The request body ended early.")
        case django_exceptions.SuspiciousOperation() | django_exceptions.BadRequest():
            return errors.InvalidRequest("The request is not acceptable: too many or malformed parameters.")
        case StoodStill():
            return errors.BackendUnavailable(_STOOD_STILL, hint=_LATER)
        case Error():
            return _of_database(exc)
        case _ if fault_of(exc) is not None:  # as a driver has raised it
            return _of_database(exc)
        case _ if lacks_threads(exc):
            return errors.BackendUnavailable(_NO_THREADS, hint=_LATER)
        case _:
            return errors.BackendError(_UNEXPECTED)


def _of_database(error: Exception) -> OJSError:
    global _full_at
    if is_disk_full(error):
        _full_at = time.monotonic()
    match status_of(error):
        case 413:
            return errors.PayloadTooLarge("The database does not take so much at once.")
        case 503 if is_contention(error):
            return errors.BackendUnavailable(_BUSY, hint=_LATER)
        case 503:
            return errors.BackendUnavailable(_AWAY)
    return errors.BackendError(_UNEXPECTED)


def _from_drf(exc: drf.APIException) -> OJSError:
    """DRF's own exceptions: raised by itself, or by an authentication class of the site."""
    text = _text(exc.detail)
    match exc:
        case drf.NotAuthenticated() | drf.AuthenticationFailed():
            return errors.Unauthenticated(text)
        case drf.PermissionDenied():
            return errors.PermissionDenied(text)
        case drf.NotFound():
            return errors.NotFound(text)
        case drf.Throttled():
            return errors.RateLimited(text, retry_after=int(getattr(exc, "wait", None) or 1))
    if exc.status_code < 500:
        return errors.InvalidRequest(text)
    return errors.BackendUnavailable(text) if exc.status_code == 503 else errors.BackendError("The request failed.")


def _text(detail: Any) -> str:
    return str(detail) if isinstance(detail, str) else "The request was refused."


def log(exc: Exception, error: OJSError, request: Request, request_id: str) -> None:
    """A fault of ours goes to the log with its traceback, under the id that the caller was told."""
    log_call(f"{request.method} {shorten(request.path)!r}", exc, error, request_id, logger)


def log_call(call: str, exc: Exception, error: OJSError, request_id: str, to: SafeLogger) -> None:
    """Log what has ended a call, if it is a fault of ours or of the database."""
    if is_refusal(exc, error):
        note_refusal(call, exc, request_id)
    elif error.status >= 500:
        to.error(
            "%s failed: %s (request %s)", call, type(exc).__name__, request_id,
            exc_info=exc, extra={"request_id": request_id},
        )  # fmt: skip
