"""Keep what a step returns as JSON, and give it back as it was.

JSON itself stays as it is. What JSON has no word for is written as an object with the key `$type`: dates and times,
`Decimal`, `UUID`, `bytes`, tuples, sets, instances of Django models by their primary key, handles of jobs by their ids,
and the types that the site registers with `step_type`. Subclasses of `str`, `int` and `float`, such as a `SafeString`
or a member of `TextChoices`, become plain values, as they do among the arguments of a job. Anything else is refused
where it is returned, so that no handler finds something else when it runs again.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, overload

from django.apps import apps
from django.db.models import Model

from django_ojs import jsontext
from django_ojs.client.handle import Handle, JobHandle
from django_ojs.client.options import brief, check_json
from django_ojs.messages import shown, with_article
from django_ojs.rules.approvals import ApprovalDecision
from django_ojs.rules.durableevents import Emitted

T = TypeVar("T")
C = TypeVar("C", bound=type)

TAG, VALUE = "$type", "value"
#: What makes a plain value of an instance of a subclass, whatever that says that it is.
_PLAIN: dict[type, Callable[[Any], Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}
#: What is kept as it is, whatever its value.
SCALARS = frozenset({str, int, bool, type(None)})


class _Codec(NamedTuple):
    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_by_type: dict[type, _Codec] = {}
_by_name: dict[str, _Codec] = {}


def _register(kind: type, name: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
    known = _by_name.get(name)
    if known is not None and _by_type.get(kind) is not known and not _is_reloaded(kind, name):
        raise ValueError(f"A step type with the name {name!r} is registered already: give this one another name.")
    _by_type[kind] = _by_name[name] = _Codec(name, encode, decode)


def _is_reloaded(kind: type, name: str) -> bool:
    """Whether a class of the same place has this name: its module was loaded again."""
    path = f"{kind.__module__}.{kind.__qualname__}"
    return any(codec.name == name and f"{one.__module__}.{one.__qualname__}" == path for one, codec in _by_type.items())


@overload
def step_type(kind: C, /) -> C: ...
@overload
def step_type(
    *, name: str = "", encode: Callable[[Any], Any] | None = None, decode: Callable[[Any], Any] | None = None
) -> Callable[[C], C]: ...
def step_type(
    kind: Any = None, /, *, name: str = "", encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> Any:  # fmt: skip
    """Let steps return instances of this class: `@step_type` above a dataclass, or with functions for any class::

        @step_type
        @dataclass
        class Charge:
            id: str
            amount: Decimal

    `encode` makes of an instance what a step can keep, and `decode` makes an instance of that again. A dataclass needs
    neither. `name` is what is stored; without it the name of the class with its module, so that a class that has moved
    is not found any more. Raises TypeError for a class that is no dataclass and has no functions, ValueError for a name
    that is taken.
    """

    def decorate(kind: C) -> C:
        if not isinstance(kind, type):
            raise TypeError(f"step_type takes a class, not {shown(kind)}.")
        if not isinstance(name, str):
            raise TypeError(f"The name of a step type is a text, not {shown(name)}.")
        to: Callable[[Any], Any]
        back: Callable[[Any], Any]
        if encode is None and decode is None and dataclasses.is_dataclass(kind):
            to, back = _fields_of, lambda values: kind(**values)
        elif encode is None or decode is None:
            raise TypeError(f"{kind.__qualname__} is no dataclass: give step_type(encode=..., decode=...).")
        else:
            to, back = encode, decode
        _register(kind, name or f"{kind.__module__}.{kind.__qualname__}", to, back)
        return kind

    return decorate if kind is None else decorate(kind)


def _fields_of(instance: Any) -> dict[str, Any]:
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}


_register(dt.datetime, "datetime", dt.datetime.isoformat, dt.datetime.fromisoformat)
_register(dt.date, "date", dt.date.isoformat, dt.date.fromisoformat)
_register(dt.time, "time", dt.time.isoformat, dt.time.fromisoformat)
_register(
    dt.timedelta, "timedelta", lambda value: [value.days, value.seconds, value.microseconds],
    lambda parts: dt.timedelta(*parts),
)  # fmt: skip
_register(decimal.Decimal, "decimal", str, decimal.Decimal)
_register(uuid.UUID, "uuid", str, uuid.UUID)
_register(bytes, "bytes", bytes.hex, bytes.fromhex)
_register(tuple, "tuple", list, tuple)
_register(set, "set", list, set)
_register(frozenset, "frozenset", list, frozenset)
#: The types that say nothing of the site.
_OF_ALL = frozenset({*_by_name, "dict"})


def _of_job(handle: JobHandle) -> list[Any] | None:
    if handle.dropped:
        return None
    return [handle.id, handle.type, "outbox" if handle.in_outbox else "created" if handle.created else "duplicate"]


def _job(kept: list[Any] | None) -> JobHandle:
    """A handle that a step returned. It reads the job's row when the handler asks: retention may have deleted it."""
    if kept is None:
        return JobHandle(None)
    job_id, job_type, status = kept
    return JobHandle({"id": job_id, "type": job_type}, status)


_register(JobHandle, "ojs.job", _of_job, _job)
_register(Emitted, "ojs.emitted", _fields_of, lambda values: Emitted(**values))
_register(ApprovalDecision, "ojs.decision", _fields_of, lambda values: ApprovalDecision(**values))


def encode(value: Any, step: str, path: str = "") -> str:
    """What the step returned as JSON text. Raises TypeError, which names the place, for what cannot be kept: in its
    result, or in what `path` says."""
    if type(value) in SCALARS:
        return jsontext.dumps(value)
    plain = _encoded(value, path or f"The result of step {step!r}", 0)
    check_json(plain, path or "result")
    return jsontext.dumps(plain)


def decode(text: str) -> Any:
    """What `encode` was given. Raises LookupError where a type is not registered any more, and `DoesNotExist` for a row
    that is gone."""
    return _decoded(jsontext.loads(text))


def of_client(text: str) -> str:
    """What a client of another language says that a step returned, as `decode` is to read it. Rows of models and types
    of the site are not for it to name: what looks like one stays an object."""
    return jsontext.dumps(_plain(jsontext.loads(text)))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    items = {key: _plain(item) for key, item in value.items()}
    named = items.get(TAG)
    if TAG not in items or (isinstance(named, str) and named in _OF_ALL):
        return items
    return {TAG: "dict", VALUE: [*map(list, items.items())]}


def _encoded(value: Any, path: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (str, int, float, bool, jsontext.ExactNumber):
        return value
    if depth > jsontext.MAX_DEPTH:
        raise TypeError(f"{brief(path)} nests deeper than {jsontext.MAX_DEPTH} levels, or contains itself.")
    if kind is list:
        return [_encoded(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if kind is dict:
        return _encoded_dict(value, path, depth)
    if isinstance(value, Model):
        return _encoded_model(value, path)
    if (codec := _by_type.get(kind)) is not None:
        return {TAG: codec.name, VALUE: _encoded(codec.encode(value), path, depth + 1)}
    for base, plain in _PLAIN.items():
        if isinstance(value, base):
            return plain(value)
    name = with_article(f"{kind.__module__}.{kind.__qualname__}")
    if isinstance(value, Handle):
        raise TypeError(
            f"{brief(path)} is {name}, which cannot be kept with the job: return its id, and read it again with "
            "django_ojs.get_workflow(id)."
        )
    raise TypeError(
        f"{brief(path)} is {name}, which cannot be kept with the job: take strings, numbers, booleans, None, lists, "
        "dicts, dates, decimals, UUIDs, rows of models or handles of jobs, or register the class with "
        "django_ojs.step_type."
    )


def _encoded_dict(value: Mapping[Any, Any], path: str, depth: int) -> Any:
    items = {key: _encoded(item, f"{path}[{shown(key)}]", depth + 1) for key, item in value.items()}
    if all(type(key) is str for key in items) and TAG not in items:
        return items
    # Keys that are no strings, and an object of the caller's that looks like one of ours.
    pairs = [[_encoded(key, f"{path}: the key", depth + 1), item] for key, item in items.items()]
    return {TAG: "dict", VALUE: pairs}


def _encoded_model(value: Model, path: str) -> Any:
    if value.pk is None or value._state.adding:
        raise TypeError(f"{path} is {with_article(type(value).__qualname__)} that is not stored: save it first.")
    label = value._meta.label_lower
    return {TAG: "model", VALUE: [label, _encoded(value.pk, path, 0), value._state.db]}


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: _decoded(item) for key, item in value.items()}
    name: Any = value[TAG]
    inner: Any = value.get(VALUE)
    if name == "dict":
        return {_decoded(key): _decoded(item) for key, item in inner}
    if name == "model":
        label, pk, using = inner
        return apps.get_model(label)._base_manager.using(using).get(pk=_decoded(pk))
    codec = _by_name.get(name)
    if codec is None:
        raise LookupError(
            f"A step has kept a value of the type {name!r}, which is not registered: import the module that calls "
            "django_ojs.step_type for it, or give the class its former name with step_type(name=...)."
        )
    return codec.decode(_decoded(inner))
