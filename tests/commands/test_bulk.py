"""`--background` and `ojs_bulk`: handed to the scheduler, followed, stopped."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_ojs import audit, enqueue
from django_ojs.jobs import bulk
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.management import shell
from django_ojs.management.commands import ojs_bulk
from django_ojs.models import AuditEntry, BulkAction, Event, Job
from tests.commands.test_operating import Terminal, discarded

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> tuple[str, str]:
    out, beside = io.StringIO(), io.StringIO()
    call_command(*arguments, stdout=out, stderr=beside, no_color=True)
    return out.getvalue().strip(), beside.getvalue().strip()


def partly(*arguments: str) -> tuple[str, str]:
    out, beside = io.StringIO(), io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command(*arguments, stdout=out, stderr=beside, no_color=True)
    assert ended.value.code == shell.IN_PART
    return out.getvalue().strip(), beside.getvalue().strip()


def finish() -> None:
    while bulk.advance_action():
        pass


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)


def states() -> list[str]:
    return sorted(Job.objects.values_list("state", flat=True))


def test_a_cancel_in_the_background_is_done_by_the_scheduler_and_by_nobody_before() -> None:
    for _ in range(5):
        enqueue("mail.send")
    enqueue("other.type")
    out, beside = run("ojs_jobs", "cancel", "--type", "mail.*", "--background", "--yes")
    action = BulkAction.objects.get()
    assert out == str(action.pk)
    assert f"ojs_bulk show {action.pk} --watch" in beside
    assert "No scheduler is running" in beside
    assert states() == ["available"] * 6
    enqueue("mail.send")  # the clock has moved on: it came later
    Job.objects.filter(pk=Job.objects.latest("pk").pk).update(created_at=action.created_at.replace(year=2090))
    finish()
    assert states() == ["available"] * 2 + ["cancelled"] * 5
    assert run("ojs_bulk", "show", str(action.pk))[0] == "cancel jobs: completed, 5 of 5 jobs, 0 refused."
    assert {event.data["cancelled_by"] for event in Event.objects.filter(type="job.cancelled")} == {audit.by_command()}
    (event,) = Event.objects.filter(type="bulk.cancel.completed")
    assert event.data == {"total": 5, "cancelled": 5, "skipped": 0}
    entries = AuditEntry.objects.filter(action="job.bulk_cancel").order_by("pk")
    assert [entry.door for entry in entries] == ["command"] * 4
    assert entries[0].detail["expected"] == 5


def test_all_verbs_go_to_the_background() -> None:
    dead, letter, later = discarded(), discarded("report.make"), enqueue("c.d", delay="1h")
    run("ojs_jobs", "retry", "--type", "mail.send", "--background", "--yes")
    run("ojs_dead_letter", "retry", "--type", "report.*", "--set", 'queue="later"', "--background", "--yes")
    run("ojs_jobs", "run", "--all", "--background", "--yes")
    finish()
    assert [str(job.refresh().state) for job in (dead, letter, later)] == ["available"] * 3
    assert Job.objects.get(pk=letter.id).queue == "later"
    run("ojs_jobs", "cancel", "--all", "--background", "--yes")
    finish()
    run("ojs_jobs", "purge", "--state", "cancelled", "--background", "--yes")
    finish()
    assert not Job.objects.exists()
    kinds = [(row["action"], row["succeeded"]) for row in json.loads(run("ojs_bulk", "list", "--json")[0])]
    assert kinds == [("delete", 3), ("cancel", 3), ("run", 1), ("retry", 1), ("retry", 1)]


def test_running_jobs_are_spared_in_the_background_too_unless_they_are_named() -> None:
    enqueue("mail.send")
    run("ojs_jobs", "cancel", "--all", "--background", "--yes")
    fetch(Fetch(["default"]))  # claimed before the scheduler came
    finish()
    assert states() == ["active"]
    run("ojs_jobs", "cancel", "--state", "active", "--background", "--yes")
    finish()
    assert states() == ["cancelled"]


def test_a_text_is_looked_for_no_further_than_it_was_when_it_was_asked_for(settings: Any) -> None:
    settings.OJS = {"SEARCH_DEPTH": 3}
    handles = [enqueue("a.b", "needle", tags=["x"]) for _ in range(5)]
    out, beside = run("ojs_jobs", "cancel", "--search", "needle", "--tag", "x", "--background", "--yes")
    assert "Only what was looked at is meant." in beside
    settings.OJS = {}
    finish()
    assert [str(handle.refresh().state) for handle in handles] == ["available"] * 2 + ["cancelled"] * 3
    assert BulkAction.objects.get(pk=int(out)).matched == 3
    assert "needle" not in json.dumps(list(AuditEntry.objects.values_list("detail", flat=True)))


def test_nothing_is_handed_over_by_a_dry_run_for_nothing_or_for_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = enqueue("a.b")
    assert run("ojs_jobs", "cancel", "--all", "--background", "--dry-run")[0] == (
        "1 job would be cancelled in the background."
    )
    assert run("ojs_jobs", "cancel", "--queue", "empty", "--background")[0] == "0 jobs cancelled."
    with pytest.raises(CommandError, match="are done at once"):
        run("ojs_jobs", "cancel", str(handle.id), "--background", "--yes")
    monkeypatch.setattr("builtins.input", lambda question: "n")
    with pytest.raises(CommandError, match="Nothing was changed"):
        run("ojs_jobs", "cancel", "--all", "--background")
    assert not BulkAction.objects.exists()


def test_one_is_listed_shown_and_stopped() -> None:
    for _ in range(3):
        enqueue("a.b")
    assert run("ojs_bulk", "list")[0] == "There are no bulk actions."
    pk = run("ojs_jobs", "cancel", "--all", "--background", "--yes")[0]
    bulk.advance_action()
    heading, line = run("ojs_bulk", "list")[0].splitlines()
    assert heading.split()[:7] == ["ID", "ACT", "STATE", "DONE", "OF", "REFUSED", "WHO"]
    assert line.split()[:7] == [pk, "cancel", "jobs", "running", "2", "3", "0"]
    assert json.loads(run("ojs_bulk", "show", pk, "--json")[0])["matched"] == 2
    assert run("ojs_bulk", "cancel", pk)[0] == f"Bulk action {pk} is cancelled after 2 jobs."
    assert AuditEntry.objects.latest("pk").action == "bulkaction.cancel"
    assert not bulk.advance_action()
    assert partly("ojs_bulk", "show", pk)[0] == "cancel jobs: cancelled, 2 of 3 jobs, 0 refused."
    with pytest.raises(CommandError, match="is cancelled"):
        run("ojs_bulk", "cancel", pk)
    for verb in ("show", "cancel"):
        with pytest.raises(CommandError, match=r"(?i)bulk.action"):
            run("ojs_bulk", verb, "999999")
    with pytest.raises(CommandError, match="not a number above zero"):
        run("ojs_bulk", "show", "x")


def test_what_was_refused_is_told_and_exits_with_3() -> None:
    dead = discarded()
    pk = run("ojs_dead_letter", "retry", "--all", "--set", "args=5", "--background", "--yes")[0]
    finish()
    out, beside = partly("ojs_bulk", "show", pk)
    assert out == "retry dead letters: completed, 1 of 1 job, 1 refused."
    assert str(dead.id) in beside


def test_why_one_failed_is_told_and_exits_with_3() -> None:
    enqueue("a.b")
    pk = run("ojs_jobs", "cancel", "--all", "--background", "--yes")[0]
    BulkAction.objects.update(filter={})  # nothing that could be read
    finish()
    out, beside = partly("ojs_bulk", "show", pk)
    assert out == "cancel jobs: failed, 0 of 1 job, 0 refused."
    assert beside == "Its latest batch broke off: KeyError: 'states'"


def test_watching_shows_a_bar_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        enqueue("a.b")
    pk = run("ojs_jobs", "cancel", "--all", "--background", "--yes")[0]
    monkeypatch.setattr(ojs_bulk.time, "sleep", lambda seconds: bulk.advance_action())
    monkeypatch.setenv("COLUMNS", "24")
    terminal, out = Terminal(), io.StringIO()
    call_command("ojs_bulk", "show", pk, "--watch", stdout=out, stderr=terminal)
    _, *shown, cleared = terminal.getvalue().split("\r")
    assert shown == ["[..............] 0 of 4", "[#######.......] 2 of 4", "[##############] 4 of 4"]
    assert cleared == "\x1b[K"
    assert out.getvalue() == "cancel jobs: completed, 4 of 4 jobs, 0 refused.\n"
