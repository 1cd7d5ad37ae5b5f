"""The HTTP API, from the OpenAPI document."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import django_ojs
from django_ojs.http import openapi
from ojsdocs.markdown import code, prose, table

#: Errors that every call may answer are not repeated.
EVERYWHERE = {"400", "401", "403", "409", "413", "415", "422", "429", "503"}


class Call(NamedTuple):
    tag: str
    method: str
    path: str
    summary: str
    scope: str
    answers: str
    errors: str


def calls() -> Iterator[Call]:
    for path, item in openapi.document(django_ojs.__version__, "/")["paths"].items():
        for method, operation in item.items():
            answers = operation["responses"]
            good = [status for status in answers if status < "300"]
            bad = [status for status in answers if "300" <= status < "600" and status not in EVERYWHERE]
            yield Call(
                operation["tags"][0], method.upper(), path, prose(operation["summary"]), _scope(operation),
                ", ".join(sorted(good)), ", ".join(sorted(bad)),
            )  # fmt: skip


def render() -> str:
    parts: list[str] = []
    found = list(calls())
    sizes = Counter(call.tag for call in found)
    found = [call if sizes[call.tag] > 1 else call._replace(tag="server") for call in found]
    for tag in sorted({call.tag for call in found}, key=lambda tag: (tag == "admin", tag != "server", tag)):
        rows = [
            (call.method, code(call.path), call.summary, call.scope, call.answers, call.errors)
            for call in found
            if call.tag == tag
        ]
        parts += [f"## {tag}\n", table(("method", "path", "what", "scope", "answers", "errors"), rows)]
    return "\n".join(parts)


def _scope(operation: dict[str, Any]) -> str:
    found = re.search(r"scope `([\w.]+)`", operation.get("description", ""))
    return code(found[1]) if found else ""
