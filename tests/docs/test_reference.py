"""The reference is whole: everything that the code has is in it, described."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import ojsdocs
import pytest
from django.core.management import get_commands
from ojsdocs import checks, commands, errors, http, metrics, python, settings

from django_ojs.conf import FIELDS
from django_ojs.errors import OJSError
from django_ojs.events import catalogue, log
from django_ojs.events.catalogue import CATALOGUE, EXTENSIONS, ON_REQUEST, STATE_CHANGED
from django_ojs.jobs import bulk
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack_one
from django_ojs.jobs.priority import prioritise
from django_ojs.jobs.push import push
from django_ojs.models import Event
from django_ojs.retention import prune
from tests.docs.pages import PAGES, blocks, spans
from tests.sources import nodes, trees


@pytest.mark.django_db
@pytest.mark.sqlite
@pytest.mark.parametrize("part", ojsdocs.PARTS)
def test_the_page_is_committed_as_the_code_makes_it(part: str) -> None:
    """It is read on a forge, too, which makes nothing."""
    written = ojsdocs.file(part).read_text(encoding="utf-8")
    assert written == ojsdocs.page(part), f"write the reference anew: {ojsdocs.COMMAND}"
    assert len(written.partition("<!-- generated: ")[2]) > 500


def test_a_page_without_its_mark_and_a_part_without_a_page_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ojsdocs, "PAGES", tmp_path)
    (tmp_path / "errors.md").write_text("# Errors\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has no line <!-- generated: errors -->"):
        ojsdocs.page("errors")
    with pytest.raises(ValueError, match="nothing generates"):
        ojsdocs.render("nothing")


class TestSettings:
    def test_each_has_a_section_a_type_and_a_text(self) -> None:
        found = list(settings.settings())
        assert [one.name for one in found] == list(FIELDS)
        assert [one.name for one in found if not (one.section and one.type and one.text)] == []

    def test_types_units_and_defaults_are_those_of_the_code(self) -> None:
        found = {one.name: one for one in settings.settings()}
        assert found["RESULT_TTL"][2:5] == ("int | None", "seconds", 604_800)
        assert found["RETENTION"][2:4] == ("dict[str, float | None]", "seconds")
        assert found["MAX_META_BYTES"][2:5] == ("int", "bytes", 65_536)
        assert found["TRACING"][2:4] == ("'parent' | 'link' | 'off'", "")
        assert found["WEBHOOK_RETRY_DELAYS"].unit == "seconds"
        assert "### RETENTION\n" in settings.render()
        assert "Type `int | None`, seconds, default `604800` (7 days)." in settings.render()


class TestCommands:
    def test_every_option_is_there(self) -> None:
        text = commands.render()
        for name in commands.names():
            assert f"## {name}\n" in text
            parser = commands.parser(name)
            for one in (parser, *commands.subparsers(parser).values()):
                for option in set(one._option_string_actions) - commands.COMMON:
                    assert option in text, name

    def test_each_belongs_to_an_app_that_a_site_can_leave_out_or_not(self) -> None:
        found = commands.apps()
        assert set(found.values()) == set(commands.APPS)
        assert {name for name, app in found.items() if app != "django_ojs"} == {"ojs_bench", "ojs_conformance"}
        assert {name: app for name, app in get_commands().items() if name in found} == found
        assert commands.APPS["benchmarks"] in commands.render()

    def test_what_is_of_django_is_left_out(self) -> None:
        assert "--pythonpath" not in commands.render()


class TestHTTP:
    def test_every_method_has_a_summary_of_its_own_words(self) -> None:
        found = list(http.calls())
        assert len(found) > 100
        assert [call for call in found if call.path in call.summary or "verb" in call.summary] == []

    def test_scopes_and_statuses(self) -> None:
        found = {(call.method, call.path): call for call in http.calls()}
        push = found["POST", "/ojs/v1/jobs"]
        assert (push.summary, push.scope, push.answers) == ("Enqueue a job", "`push`", "200, 201")
        assert found["GET", "/ojs/v1/jobs/{job_id}/result"].errors == "404, 408, 410"
        assert found["POST", "/ojs/v1/cron/{name}/pause"].summary == "Pause a schedule"
        assert found["GET", "/ojs/v1/health"].scope == ""


def test_every_error_is_there() -> None:
    found = set(errors.classes())
    assert {one for one in OJSError.__subclasses__() if one.__module__ == "django_ojs.errors"} <= found
    text = errors.render()
    assert [one.__name__ for one in found if f"`{one.__name__}`" not in text] == []
    assert "| 429, retryable | `QUEUE_FULL`, `QUEUE_FULL` | `QueueFull` |" in text


def test_every_check_is_there_with_its_advice() -> None:
    found = checks.checks()
    listed = {number for module in checks.MODULES for number in re.findall(r"\b[EWI]\d{3}\b", module.__doc__ or "")}
    assert {one.number for one in found} == listed
    assert [one.number for one in found if not (one.title and one.message and one.hint.strip("…. "))] == []
    advice = {one.number: one for one in found}
    assert advice["W003"].message.startswith("Without channels")
    assert advice["W001"].when == "with `check --deploy`"
    assert advice["W110"].when == advice["W102"].when == "with `check --database` and `migrate`"


@pytest.mark.django_db
def test_every_metric_is_there_with_its_labels() -> None:
    found = {family.name: family for family in metrics.families()}
    assert all(family.samples for family in found.values())
    assert list(found["ojs_job_duration_seconds"].samples[0].labels) == ["queue", "type", "state"]
    assert list(found["ojs_webhook_dead_delivery_count"].samples[0].labels) == ["event_type"]
    assert not metrics.MetricSeries.objects.exists()


class TestPython:
    def test_every_public_name_is_there(self) -> None:
        text = python.render()
        for module, members in {**{one: python.names(one) for one in python.MODULES}, **python.CHOSEN}.items():
            section = text.partition(f"## {module}\n")[2].partition("\n## ")[0]
            assert [name for name in members if f"\n### {name}\n" not in section] == []

    def test_what_a_class_has_is_there_whatever_the_code_calls_the_module_of_the_class(self) -> None:
        text = python.render()
        handle = text.partition("\n### JobHandle\n")[2].partition("\n### ")[0]
        assert "| `state` | `State` |" in handle
        assert "def wait(self, timeout: float | None = None" in handle
        assert "async def acancel(self, reason: str = '') -> JobHandle: ..." in handle
        counts = text.partition("\n### Counts\n")[2].partition("\n### ")[0]
        assert "| `states` | `dict[str, int]` |" in counts
        context = text.partition("\n### JobContext\n")[2].partition("\n### ")[0]
        assert "| `is_cancelled` | `bool` |" in context
        assert python.INTERNAL not in text

    def test_the_pages_tell_sites_to_import_only_what_is_public(self) -> None:
        """Errors have a page of their own, and models are Django's way to rows."""
        offered = {f"{module}.{name}" for module in python.MODULES for name in python.names(module)}
        offered |= {f"{module}.{name}" for module, members in python.CHOSEN.items() for name in members}
        offered |= set(python.SHAPES) | set(python.MODULES) | set(python.CHOSEN) | {"django_ojs.__version__"}
        private = {
            f"{page.name}: {one}"
            for page in PAGES
            if page.name not in NOT_FOR_SITES and page.parent.name != "reference"
            for one in imported(page)
            if one not in offered and not one.startswith(OTHERWISE_TOLD)
        }
        assert private == set()


#: Pages for who works on django-ojs, and what releases bring.
NOT_FOR_SITES = {"architecture.md", "internals.md", "why.md", "changes.md", "contributing.md", "CHANGELOG.md"}
#: `errors` has a page of its own; models are Django's way to rows; how-to/own-viewset.md says what to do with `http`.
OTHERWISE_TOLD = ("django_ojs.errors.", "django_ojs.models.", "django_ojs.http.")


def imported(page: Path) -> set[str]:
    """What the Python of a page imports from us, and the calls that its text names with their modules."""
    found = {
        f"{module}.{one.split(' as ')[0].strip()}"
        for block in blocks(page)
        for module, listed in re.findall(r"^ *from (django_ojs[\w.]*) import ([\w, ]+)", block.text, re.MULTILINE)
        for one in listed.split(",")
    }
    return found | {span.partition("(")[0] for span in spans(page) if re.fullmatch(r"django_ojs(?:\.\w+)+\(.*\)", span)}


class TestEvents:
    def test_every_type_is_described_and_no_other(self) -> None:
        assert set(catalogue.DESCRIBED) == {*CATALOGUE, *EXTENSIONS, *ON_REQUEST, STATE_CHANGED}
        assert set(catalogue.DESCRIBED) >= catalogue.ABOUT_JOBS | catalogue.ABOUT_QUEUES

    def test_every_type_that_is_written_is_described(self) -> None:
        """For what no test writes; of what one writes, `tests/conftest.py` compares the members, too."""
        makers = {name for name in vars(catalogue) if name.startswith("of_")} | {"Record", "from_row"}
        whole = re.compile(r"[a-z_]+(\.[a-z_]+)+")
        written = {
            kind.value
            for path in trees()
            for call in nodes(path)
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in makers and call.args
            for kind in ast.walk(call.args[0])
            if isinstance(kind, ast.Constant) and isinstance(kind.value, str) and whole.fullmatch(kind.value)
        }
        assert len(written) > 20, "else this looks in the wrong place"
        assert sorted(written - catalogue.DESCRIBED.keys()) == [], "name it in EXTENSIONS or ON_REQUEST, and DESCRIBED"

    def test_deviations_are_found(self) -> None:
        assert catalogue.deviations("job.started", {"wait_ms": 1}) == []
        assert catalogue.deviations("job.started", {}) == ["job.started lacks wait_ms"]
        assert catalogue.deviations("job.completed", {"duration_ms": 1, "x": 1}) == ["job.completed has x"]
        assert catalogue.deviations("job.unheard", {}) == ["job.unheard is not described"]

    @pytest.mark.django_db
    def test_the_one_that_is_made_when_it_is_read(self) -> None:
        push([{"type": "a.b", "args": []}])
        (changed,) = log.read(types=[STATE_CHANGED]).events
        own = {k: v for k, v in changed["data"].items() if k not in catalogue.SHARED["job"] and k != "timestamp"}
        assert catalogue.deviations(STATE_CHANGED, own) == []

    @pytest.mark.django_db
    def test_those_that_are_written_by_a_statement_of_their_own(self, frozen_clock: Any) -> None:
        """What no other test sees on its way into the log; the members that are shared are in the log's columns."""
        first, second, third = (
            made.row["id"] for made in push([{"type": "a.b", "args": [], "meta": {"n": n}} for n in range(3)])
        )
        prioritise(first, 5, by="anna")
        fetch(Fetch(["default"], count=3, worker_id="w"))
        ack_one(Ack(first, '"done"', "w"))
        bulk.enqueue([{"type": "a.b", "args": []}], partial=True)
        bulk.run(bulk.JOBS["cancel"], [second], partial=True)
        bulk.run(bulk.JOBS["retry"], [third], partial=True)
        bulk.run(bulk.JOBS["delete"], [first], partial=True)
        cancel_one(third)
        push([{"type": "a.b", "args": [], "result_ttl": 1, "queue": "short"}])
        (row,) = fetch(Fetch(["short"], worker_id="w"))
        ack_one(Ack(row["id"], "1", "w"))
        frozen_clock.advance(days=1)
        prune()
        found = [(event.type, event.data or {}) for event in Event.objects.all()]
        assert {
            "job.enqueued", "job.started", "job.completed", "job.cancelled", "priority.changed", "result.pruned",
            "bulk.enqueue.completed", "bulk.cancel.completed", "bulk.retry.completed", "bulk.delete.completed",
        } <= {name for name, _ in found}  # fmt: skip
        assert [problem for name, data in found for problem in catalogue.deviations(name, data)] == []
