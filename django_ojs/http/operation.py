"""`@operation`: declares an HTTP operation on the method that does it, in one place for all who need to know.

    @operation(detail=True, methods=["post"], right="change_queue", body=ReasonSerializer, audit="queue.pause")
    def pause(self, request: Request, name: str) -> Response: ...

The permission class goes by its scope and right, the router by its doors, the view by its serializers, the audit log by
its name there, and the OpenAPI document by all of them. With `detail` it is DRF's `@action` underneath; without, it
declares one of the methods that a router knows: `list`, `create`, `retrieve`, `update`, `partial_update`, `destroy`,
`clear`, or `get` and `post` of a plain view.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.http import auditing

Door = Literal["both", "public", "operator"]
_Method = TypeVar("_Method", bound=Callable[..., Any])


class _Unset:
    """Where the view's own serializer, or what another member says, counts."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final[Any] = _Unset()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What `@operation` declares. A serializer is a class; a door is the public one or that of operators.

    Who may call it:
        scope: the scope that a key needs at the public door; None opens it to all.
        operator_scope: the same at the operator's door, where it is not `admin.read` for GET, `admin.purge` for DELETE
            and `admin.write` for the rest.
        right: the permission on a model that a user needs where the scope is one of operators, such as `change_job`.
            None: to view the view's model, for reading behind the operator's door.
        doors: which of the two has it.

    What it takes and answers:
        body, operator_body: the serializer that reads its body; the second at the operator's door. None: it has none.
        answer, operator_answer: the serializer of its answer, where that is not the view's. None: it has none, 204.
        public_answer: the serializer that describes the public door's answer, where `answer` is only a part of it.
        statuses: those of the answers that the serializer shows. Without any it is 200, 201 for `create`.
        answers: other answers by status; None for one without JSON, several serializers for one of these.
        query: names of the parameters of its query, with a space between, beside those of filters and pages.
        errors: statuses of errors beside those that its body, its query, its path and its door may lead to.
        operator_errors: further ones at the operator's door.
        missing_ok: whether it goes on where nothing is there of what its path names; else it answers 404.
        lists: the members of the answer that hold the items of a list, where they are not those of the view.
        beside: the serializer of what the answer has beside the items of a list, or beside the members of one entry.
        outside: the serializer of what only the answer has, not the entry where it stands once more.
        headers: names of headers that its answers may have, with a space between, beside those of all answers.
        text: the media type of the text that 200 may be, or always is where it has no schema.
        resumes: whether `Last-Event-ID` counts.
        optional: whether the site decides if credentials are needed.
        summary: what it does in a few words, where the docstring of the method does not say so.

    What else it is:
        name: what it is called in a refusal and for an `Idempotency-Key`, where that is not method and path.
        audit: the name of its entry in the audit log; '' for none. The entry is written in its transaction.
        audits_itself: whether the method writes the entry, and no transaction is around it.
        audit_doors: the doors where it has an entry.
        grouped: whether it goes to the database through a commit group (`groupcommit`), and not beside it.
    """

    scope: str | None = "admin"
    operator_scope: str = ""
    right: str | None = None
    doors: Door = "both"
    body: Any = None
    operator_body: Any = UNSET
    answer: Any = UNSET
    operator_answer: Any = UNSET
    public_answer: Any = UNSET
    statuses: tuple[int, ...] = ()
    answers: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    query: str = ""
    errors: tuple[int, ...] = ()
    operator_errors: tuple[int, ...] = ()
    missing_ok: bool = False
    lists: tuple[str, ...] = ()
    beside: Any = None
    outside: Any = None
    headers: str = ""
    text: str = ""
    resumes: bool = False
    optional: bool = False
    summary: str = ""
    name: str = ""
    audit: str = ""
    audits_itself: bool = False
    audit_doors: Door = "both"
    grouped: bool = False

    def is_behind(self, *, operator: bool) -> bool:
        """Whether this door has it."""
        return _is_one_of(self.doors, operator=operator)

    def is_audited(self, *, operator: bool) -> bool:
        """Whether a call at this door has an entry in the audit log."""
        return bool(self.audit) and _is_one_of(self.audit_doors, operator=operator)

    def body_of(self, *, operator: bool) -> Any:
        """The serializer that reads the body at this door; None where it has none."""
        return self.operator_body if operator and self.operator_body is not UNSET else self.body

    def answer_of(self, *, operator: bool) -> Any:
        """The serializer of the answer at this door; UNSET for that of the view, None where it has none."""
        return self.operator_answer if operator and self.operator_answer is not UNSET else self.answer


#: Of a method that declares nothing: `admin` may call it.
UNDECLARED = Operation()
_FACTS = frozenset(field.name for field in dataclasses.fields(Operation))


def operation(
    *, detail: bool | None = None, at: Callable[..., Any] | None = None, methods: Sequence[str] = (),
    url_path: str | None = None, url_name: str | None = None, **facts: Any,
) -> Callable[[_Method], _Method]:  # fmt: skip
    """Declare the operation that a method of a view is.

    Args:
        detail, methods, url_path, url_name: as those of DRF's `@action`; the first makes it an action.
        at: another action, at whose path this one is by `methods`.
        facts: the members of `Operation`. Others are attributes of the view at this path, as those of `@action`.
    """
    declared = Operation(**{name: fact for name, fact in facts.items() if name in _FACTS})
    attributes = {name: fact for name, fact in facts.items() if name not in _FACTS}
    if detail is None and (attributes or url_path or url_name or (methods and at is None)):
        raise TypeError(f"An operation that is no action has no path and no attributes of its own: {attributes}.")

    def decorate(method: Any) -> Any:
        made: Any = _with_entry(declared, method) if declared.audit else method
        made.operation = declared
        if at is not None:
            shared: Any = at
            for name in methods:
                shared.mapping[name] = made.__name__
        if detail is None:
            return made
        named: Any = [*methods]
        return action(detail=detail, methods=named, url_path=url_path, url_name=url_name, **attributes)(made)

    return decorate


def declared_by(view: Any, name: str) -> Operation:
    """The operation that the method `name` of a class of views is.

    A subclass that overrides a method without declaring it anew, or that names members in `operation_changes`, changes
    only that.
    """
    return _declared_by(view, name)


@lru_cache(maxsize=1024)
def _declared_by(view: Any, name: str) -> Operation:
    methods = [vars(owner)[name] for owner in view.__mro__ if name in vars(owner)]
    found = next((one.operation for one in methods if hasattr(one, "operation")), UNDECLARED)
    changes = getattr(view, "operation_changes", {}).get(name)
    return dataclasses.replace(found, **changes) if changes else found


def _with_entry(declared: Operation, method: Callable[..., Response]) -> Callable[..., Response]:
    """The method with its entry in the audit log. The target is the first value of the path."""

    @functools.wraps(method)
    def wrapper(view: Any, request: Request, **path: Any) -> Response:
        if not declared.is_audited(operator=getattr(view, "operator", False)):
            return method(view, request, **path)
        view.act = auditing.entry(request, view.request_id, declared.audit, next(iter(path.values()), ""))
        if declared.audits_itself:
            return method(view, request, **path)
        return auditing.performed(view, lambda: method(view, request, **path))

    return wrapper


def _is_one_of(doors: Door, *, operator: bool) -> bool:
    return doors in ("both", "operator" if operator else "public")
