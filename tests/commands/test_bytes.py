"""Arguments whose bytes are no UTF-8: Python gives a command half of a surrogate pair for each, which no database
holds."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

from django_ojs.models import AuditEntry
from django_ojs.queues.configuration import configure

pytestmark = pytest.mark.django_db
ODD = "a\udcff"


def test_a_user_of_the_system_may_be_called_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", ODD)
    configure("default", {"max_size": 9})
    call_command("ojs_queues", "pause", "default", stdout=io.StringIO())
    assert AuditEntry.objects.get().actor == "command:a"


@pytest.mark.parametrize(
    "line",
    [
        f"ojs_queues pause {ODD}", f"ojs_queues config {ODD}", f"ojs_cron trigger {ODD}", f"ojs_cron disable {ODD}",
        f"ojs_apikey revoke {ODD} --yes", f"ojs_rate_limits list --after={ODD}", f"ojs_events --types={ODD}",
        f"ojs_events --queues={ODD}", f"ojs_events --job-types={ODD}", f"ojs_jobs list --queue={ODD}",
        f"ojs_jobs list --type={ODD}", f"ojs_jobs list --worker={ODD}", f"ojs_jobs list --error={ODD}",
        f"ojs_dead_letter list --tag={ODD}",
    ],
    ids=ascii,
)  # fmt: skip
def test_a_name_that_no_database_holds_is_a_mistake_of_the_caller(line: str) -> None:
    with pytest.raises(CommandError, match="Error: argument"):
        call_command(*line.split(), stdout=io.StringIO())


@pytest.mark.parametrize("option", ["types", "queues", "job-types", "job", "workflow", "since", "after"])
def test_a_filter_of_events_that_is_empty_does_not_show_all(option: str) -> None:
    for text in ("", " , "):
        with pytest.raises(CommandError, match="it is empty: leave it out for all"):
            call_command("ojs_events", f"--{option}={text}")


@pytest.mark.parametrize(
    "line",
    [
        "ojs_jobs cancel --type=a.b --queue=--", "ojs_dead_letter retry --set=--", "ojs_apikey create NAME --queue=--",
        "ojs_events --queues=--", "ojs_worker --queues=--", "ojs_status --watch=--", "ojs_grpc --bind=--",
        "ojs_dead_letter set-rule NAME --type=a.b --queue=--",
    ],
)  # fmt: skip
def test_two_hyphens_are_no_value(line: str) -> None:
    """Python before 3.13 reads them as no value at all, so that a filter would select more."""
    option = line.rpartition(" ")[2].partition("=")[0]
    with pytest.raises(CommandError, match=f"Error: argument {option}: '--' is no value"):
        call_command(*line.split())


def test_two_hyphens_inside_of_a_value_are_a_part_of_it() -> None:
    for line in (["ojs_jobs", "list", "--queue=a--"], ["ojs_jobs", "list", "--error=x=--"], ["ojs_jobs", "list", "--"]):
        call_command(*line, stdout=io.StringIO())


@pytest.mark.parametrize("command", ["ojs_worker", "ojs_scheduler"])
def test_an_empty_path_is_not_the_current_folder(command: str) -> None:
    with pytest.raises(CommandError, match="Error: argument --health-file: it is empty: leave it out for none"):
        call_command(command, "--health-file=")


@pytest.mark.parametrize("port", ["70000", "-1", "٨٠", "9" * 5000, "http"])
@pytest.mark.parametrize("option", ["port", "grpc-port"])
def test_a_port_that_there_is_not(option: str, port: str) -> None:
    with pytest.raises(CommandError, match=f"Error: argument --{option}: .* is no port, a number from 0 to 65535"):
        call_command("ojs_testserver", f"--{option}={port}")


@pytest.mark.parametrize("number", ["9" * 5000, str(2**31), "10000000000000000000000"])
def test_a_number_that_is_too_large_is_a_mistake_of_the_caller(number: str) -> None:
    for line in (["ojs_events", "--limit"], ["ojs_jobs", "list", "--limit"], ["ojs_bulk", "show"]):
        with pytest.raises(CommandError, match=r"is not a number above zero and below 2,147,483,648$"):
            call_command(*line, number)
