"""Every text of the package that is meant to be translated, and which of them each catalogue lacks.

    python -m tests.dashboard.texts        # prints what is missing in each catalogue, ready to be filled in

Read from the sources themselves, so that it needs no gettext tools.
"""

from __future__ import annotations

import ast
import functools
import gettext
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import django
from django.utils.translation.template import templatize

from tests.sources import PACKAGE, nodes, trees

LOCALES = PACKAGE / "locale"
#: What of Django speaks beside us.
APPS = ("conf", "contrib/admin", "contrib/auth")


class Text(NamedTuple):
    text: str
    context: str = ""
    plural: str = ""

    @property
    def key(self) -> str:
        """As catalogues have it."""
        return f"{self.context}\x04{self.text}" if self.context else self.text


#: Which arguments of a call are the text, its plural and its context.
_CALLS = {
    "_": (0, None, None), "gettext": (0, None, None), "gettext_lazy": (0, None, None), "gettext_noop": (0, None, None),
    "ngettext": (0, 1, None), "ngettext_lazy": (0, 1, None), "pgettext": (1, None, 0), "pgettext_lazy": (1, None, 0),
    "npgettext": (1, 2, 0), "npgettext_lazy": (1, 2, 0), "phrase": (0, None, None),
}  # fmt: skip


@functools.cache  # the whole package is parsed for it
def texts() -> frozenset[Text]:
    """All of them: in calls of gettext, in what `AdminVerb` and `column` translate, in templates."""
    found: set[Text] = set()
    for path in trees():
        found.update(_in_code(nodes(path)))
    for file in (PACKAGE / "templates").rglob("*.html"):
        found.update(_in_code(ast.walk(ast.parse(_as_code(templatize(file.read_text(), origin=str(file)))))))
    return frozenset(found)


def _as_code(templatized: str) -> str:
    """The calls that Django makes of a template's tags; the rest of its text is masked there."""
    calls = re.findall(r"(?<![A-Za-z_])(?:n?p?gettext|_)\(.*?\)(?= |$|\n)", templatized, re.DOTALL)
    return "\n".join(call for call in calls if _is_code(call))


def _is_code(call: str) -> bool:
    try:
        ast.parse(call)
    except SyntaxError:
        return False
    return True


def _in_code(code: Iterable[ast.AST]) -> Iterator[Text]:
    for node in code:
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        words = [_word(each) for each in node.args]
        if name in _CALLS:
            text, plural, context = _CALLS[name]
            if len(words) > text and words[text]:
                yield Text(words[text], words[context] if context is not None else "",
                           words[plural] if plural is not None else "")  # fmt: skip
        elif name == "AdminVerb" and len(words) > 2:
            yield from [Text(words[1])] if words[1] else []
            yield from [Text(words[2], "done")] if words[2] else []
            yield from (Text(_word(each.value)) for each in node.keywords if each.arg == "question")
        elif name == "column" and words and words[-1]:
            yield Text(words[-1])


def _word(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


#: What raises refusals, and the argument that is their message.
_REFUSALS = {
    "fault": 1, "job_fault": 1, "_fault": 1, "retry_fault": 1, "workflow_fault": 1,
    "ValueError": 0, "NameTooLong": 0, "InvalidExpression": 0,
    "Malformed": 0, "AddressRefused": 0, "UrlRefused": 0, "Conflict": 0, "Duplicate": 0, "InvalidRequest": 0,
    "InvalidPayload": 0, "QueuePaused": 0, "JobTypeNotAllowed": 0, "QueueFull": 0, "Unsupported": 0, "RateLimited": 0,
    "MetadataTooLarge": 0, "PayloadTooLarge": 0, "SchemaValidation": 0,
}  # fmt: skip
#: Where operators in the admin get their refusals from.
_REFUSING = (
    "admin/apikey.py",
    "admin/job.py",
    "admin/webhook.py",
    "cron/runs.py",
    "cron/schedules.py",
    "errors.py",
    "jobs/bulk.py",
    "jobs/candidates.py",
    "jobs/copy.py",
    "jobs/priority.py",
    "jobs/push.py",
    "jobs/uniqueness.py",
    "lifecycle/transitions.py",
    "outbox.py",
    "queues/configuration.py",
    "rules/attributes.py",
    "rules/cron.py",
    "rules/durations.py",
    "rules/envelope.py",
    "rules/faults.py",
    "rules/names.py",
    "rules/queueconfig.py",
    "rules/ratelimit.py",
    "rules/retrypolicy.py",
    "rules/unique.py",
    "webhooks/addresses.py",
    "webhooks/deliveries.py",
    "webhooks/subscriptions.py",
    "workerregistry/registration.py",
    "workflows/workflow.py",
)
#: What begins so is for programmers and other doors: nobody gets there from the admin.
_ELSEWHERE = (
    "A duration cannot be negative", "A datetime without a time zone", "There is no bulk action", "`override` may hold",
    "Not stored, because another job", "A bulk action has to name", "The query parameter ", "NaN and Infinity",
    "has the {field.name} ",  # what is wrong with a field of a cron expression
    "filter.meta was looked for in ",  # only requests filter by meta
    "leads to an address that webhooks may not reach",  # stored with a delivery, as its error
)  # fmt: skip


def untold() -> list[str]:
    """Refusals whose text is not `phrase`: the admin could say them in English only."""
    found = []
    for name in _REFUSING:
        named = {
            ast.unparse(node.targets[0])
            for node in nodes(name)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.JoinedStr)
        }
        for node in (node for node in nodes(name) if isinstance(node, ast.Call)):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            place = _REFUSALS.get(called, len(node.args))
            if place < len(node.args):
                text = ast.unparse(node.args[place])
                plain = isinstance(node.args[place], ast.Constant | ast.JoinedStr)
                if (plain or text in named or text.startswith("str(")) and not text.removeprefix("f").lstrip(
                    "'\""
                ).startswith(_ELSEWHERE):
                    found.append(f"{name}:{node.lineno} {text}")
            if called == "phrase" and not isinstance(node.args[0], ast.Constant) and name != "errors.py":  # `KINDS`
                found.append(f"{name}:{node.lineno} has no text of its own: {ast.unparse(node)}")
    return found


def languages() -> list[str]:
    """The languages of our catalogues, as gettext calls them."""
    return sorted(folder.name for folder in LOCALES.iterdir() if folder.is_dir())


def folder(language: str) -> Path:
    """Where our catalogue of a language is."""
    return LOCALES / language / "LC_MESSAGES"


def theirs(app: str, language: str) -> Path:
    """Django's catalogue of a language for one of its apps."""
    return Path(django.__file__).parent / app / f"locale/{language}/LC_MESSAGES/django.mo"


def missing(language: str) -> list[Text]:
    """What neither our catalogue of a language nor Django's has."""
    ours = catalogue(folder(language) / "django.mo")
    django_files = (theirs(app, language) for app in APPS)
    known = {name(key) for found in (ours, *map(catalogue, django_files)) for key in found}
    return sorted(text for text in texts() if text.key not in known)


def unused(language: str) -> list[str]:
    """What our catalogue has and nothing shows."""
    wanted = {text.key for text in texts()}
    return sorted(name(key) for key in catalogue(folder(language) / "django.mo") if name(key) not in wanted)


def catalogue(file: Path) -> dict[Any, str]:
    with file.open("rb") as stream:
        found: dict[Any, str] = gettext.GNUTranslations(stream)._catalog  # type: ignore[attr-defined]
    return {key: text for key, text in found.items() if key}


def name(key: Any) -> str:
    """A key of a catalogue without the number of its plural."""
    return str(key[0] if isinstance(key, tuple) else key)


if __name__ == "__main__":
    for line in untold():
        print(f"Not told: {line}")
    for code in languages():
        for one in missing(code):
            print(f"# {code}")
            print(f'msgctxt "{one.context}"' if one.context else "", end="\n" if one.context else "")
            print('msgid "' + one.text.replace('"', '\\"').replace("\n", "\\n") + '"')
            if one.plural:
                print('msgid_plural "' + one.plural.replace('"', '\\"').replace("\n", "\\n") + '"')
            print('msgstr ""\n')
