"""What the pages name between backticks is there: modules, files, settings, event types, metrics, checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from django.apps import apps
from ojsdocs import checks, commands, errors, metrics

from django_ojs.conf import FIELDS
from django_ojs.events.catalogue import DESCRIBED
from django_ojs.events.history import CREATED, NAMES
from django_ojs.spellings import EVENT_TYPE
from tests.docs.pages import PAGES, ROOT, all_blocks, blocks, name, spans

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]

#: Told to a reader of events and never in the log, and the log names of what operators do.
NOTICES = {"system.gap", "system.events_dropped", "server.shutdown", "webhook.test", "queue.pause"}
LOGGERS = {"django_ojs.jobs", "django_ojs.jobs.lifecycle"}
_KINDS = "job|worker|queue|workflow|cron|backpressure|dead_letter|rate_limit|bulk|webhook|system|server"


def importable(path: str) -> bool:
    """Whether a dotted name of ours is a module or something in one."""
    parts = path.partition("(")[0].split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def is_setting(text: str) -> bool:
    return text in FIELDS or text in {error.code for error in errors.classes()}


def is_permission(text: str) -> bool:
    return text.removeprefix("django_ojs.") in {
        codename for model in apps.get_models() for codename, _ in model._meta.permissions
    }


def is_event(text: str) -> bool:
    return text in DESCRIBED or text in EVENT_TYPE.words or text in NOTICES or text in (CREATED, *NAMES.values())


@cache
def shown() -> set[str]:
    return {f"{one.name}_total" if one.kind == "counter" else one.name for one in metrics.families()}


@cache
def numbers() -> set[str]:
    return {one.number for one in checks.checks()}


def is_metric(text: str) -> bool:
    return text.partition("{")[0] in shown() | set(commands.names())


def is_check(text: str) -> bool:
    return text.removeprefix("django_ojs.") in numbers()


def is_file(text: str) -> bool:
    return (ROOT / text.partition("::")[0]).exists()


RULES: list[tuple[str, Callable[[str], bool]]] = [
    (
        r"django_ojs(?:\.\w+)+(?:\(.*\))?",
        lambda text: importable(text) or text in LOGGERS or is_check(text) or is_permission(text),
    ),
    (r"(?:django_ojs|tests|docs|example_project|\.ci)/[\w./:-]+", is_file),
    (r"(?:REALTIME|WEBHOOK|EVENT|METRICS|MAX|HEARTBEAT|SHUTDOWN|DEAD_LETTER|AUDIT|RESULT)_[A-Z_]+(?<!_)", is_setting),
    (rf"(?:{_KINDS})\.[a-z_.]+", is_event),
    (r"ojs_(?:jobs?|queue|dead_letter|workers|webhook)_\w+(?:\{.*\})?", is_metric),
]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_a_page_names_is_there(page: Path) -> None:
    found = spans(page)
    rules = [one for one in RULES if one[1] is not is_event or "coming-from" not in page.parts]  # others' jobs, too
    wrong = [span for span in found for rule, holds in rules if re.fullmatch(rule, span) and not holds(span)]
    assert wrong == []


@pytest.mark.parametrize("page", ["architecture", "internals"])
def test_modules_are_named_as_they_are_called(page: str) -> None:
    """These pages leave out `django_ojs`: `jobs/push.py`, `clock.stamps()`."""
    package = ROOT / "django_ojs"
    first = "|".join(path.stem for path in package.iterdir())
    found = [span.removesuffix("()") for span in spans(ROOT / f"docs/{page}.md")]
    files = [span for span in found if re.fullmatch(r"(?:\w+/)*\w+\.py", span)]
    names = [span for span in found if re.fullmatch(rf"(?:{first})(?:\.\w+)+", span) and span not in files]
    assert len(files + names) > 20
    assert [file for file in files if not any(package.rglob(file)) and not is_file(file)] == []
    assert [one for one in names if not importable(f"django_ojs.{one}") and not is_event(one)] == []


def test_checks_in_the_text_and_tables_in_sql() -> None:
    for page in PAGES:
        for number in re.findall(r"\bdjango_ojs\.([EWI]\d{3})\b", page.read_text(encoding="utf-8")):
            assert is_check(number), name(page)
    tables = {model._meta.db_table for model in apps.get_models(include_auto_created=True)}
    for block in all_blocks("sql"):
        assert set(re.findall(r"\bdjango_ojs_\w+", block.text)) <= tables, block


def test_imports_in_blocks_lead_somewhere() -> None:
    for page in PAGES:
        for block in blocks(page):
            for module, names in re.findall(r"^from (django_ojs[\w.]*) import ([\w, ]+)", block.text, re.MULTILINE):
                for one in names.split(","):
                    assert importable(f"{module}.{one.split(' as ')[0].strip()}"), (block, one)


def test_what_is_not_there_is_found() -> None:
    assert not importable("django_ojs.testing.fakes")
    assert not is_setting("REALTIME_BUFFER")
    assert not is_event("job.done")
    assert not is_metric("ojs_jobs_total")
    assert not is_check("django_ojs.E999")
    assert not is_file("django_ojs/config.py")
