"""Data in one database and jobs in another, with real processes: nothing is lost and nothing runs twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

from django_ojs.database import url_of
from tests.waiting import eventually

pytestmark = [pytest.mark.slow]


class Site:
    """The site of `tests.outbox.settings`. On a server its data is there, and its jobs are in an SQLite file."""

    def __init__(self, folder: Path, data: str) -> None:
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.outbox.settings",
            "OUTBOX_TEST_DATA": data,
            "OUTBOX_TEST_JOBS": f"sqlite:///{folder}/jobs.sqlite3",
            "PYTHONPATH": str(settings.BASE_DIR),
        }

    def run(self, *arguments: str, expect: int = 0, **extra: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *arguments], env={**self.environment, **extra}, capture_output=True, text=True,
            cwd=settings.BASE_DIR, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == expect, done.stderr + done.stdout
        return done

    def manage(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return self.run("manage.py", *arguments, **extra)

    def play(self, *arguments: str) -> Any:
        return json.loads(self.run("-m", "tests.outbox.play", *arguments).stdout)


@pytest.fixture
def site(transactional_db: None, tmp_path: Path) -> Site:
    """On a server the data is in the test's own database, which has our other tables as well; they stay empty."""
    if connection.vendor == "sqlite":
        made = Site(tmp_path, f"sqlite:///{tmp_path}/data.sqlite3")
        made.manage("migrate", "-v0")
    else:
        made = Site(tmp_path, url_of(connection.settings_dict))
    made.manage("migrate", "-v0", "--database", "jobs")
    return made


@pytest.mark.wide
@pytest.mark.sqlite
def test_each_table_is_made_where_it_belongs_and_the_checks_say_so(site: Site) -> None:
    found = site.play("look")
    ours = [name for name in found["default"] if name.startswith("django_ojs")]
    assert ours == ["django_ojs_outboxentry"]
    theirs = [name for name in found["jobs_tables"] if not name.startswith(("django_ojs", "sqlite"))]
    assert theirs == ["django_migrations"]
    assert "django_ojs_job" in found["jobs_tables"]
    assert "django_ojs_outboxentry" not in found["jobs_tables"]
    assert site.manage("makemigrations", "--check", "--dry-run").returncode == 0
    quiet = site.manage("check", "--database", "default", "--database", "jobs")
    assert "django_ojs.W0" not in quiet.stderr + quiet.stdout
    loud = site.manage("check", OUTBOX_TEST_OFF="1")
    assert "django_ojs.W010" in loud.stderr
    assert "OJS['OUTBOX'] = 'default'" in loud.stderr


@pytest.mark.wide
def test_a_job_comes_through_the_outbox_to_a_worker(site: Site) -> None:
    ids = site.play("order", "a,b,c")
    before = site.play("look")
    assert (before["jobs"], before["outbox"]) == ([], ids)
    with Serving(site):
        eventually(lambda: len([name for name in site.play("look")["groups"] if name.startswith("shipped")]) == 3)
    found = site.play("look")
    assert ([job[0] for job in found["jobs"]], found["outbox"]) == (ids, [])
    assert {job[2] for job in found["jobs"]} == {"completed"}


def test_no_job_is_left_only_where_none_waits_in_the_outbox_either(site: Site) -> None:
    ids = site.play("order", "a,b,c")
    site.manage("ojs_worker", "--until-empty", "--no-scheduler", "-v0")
    found = site.play("look")
    assert ([[job[0], job[2]] for job in found["jobs"]], found["outbox"]) == ([[pk, "completed"] for pk in ids], [])


def test_what_a_transactional_handler_enqueues_is_stored_with_its_completion_or_not_at_all(site: Site) -> None:
    site.play("hand_on", "bad,good")
    site.manage("ojs_worker", "--until-empty", "--no-scheduler", "-v0")
    found = site.play("look")
    ends = sorted((name, state) for _, name, state in found["jobs"])
    shipped = [(name, "completed") for name in ("good", "good", "good again", "good at last")]
    assert (ends, found["outbox"]) == ([("bad", "discarded"), *shipped], [])


@pytest.mark.wide
def test_killed_between_push_and_delete_the_next_relay_makes_no_second_job(site: Site) -> None:
    ids = site.play("order", "a,b,c")
    site.run("-m", "tests.outbox.play", "die_between", expect=-signal.SIGKILL)
    stranded = site.play("look")
    assert ([job[0] for job in stranded["jobs"]], stranded["outbox"]) == (ids, ids)
    with Serving(site):
        eventually(lambda: site.play("look")["outbox"] == [])
        eventually(lambda: all(job[2] == "completed" for job in site.play("look")["jobs"]))
    found = site.play("look")
    assert [job[0] for job in found["jobs"]] == ids
    shipped = [name for name in found["groups"] if name.startswith("shipped")]
    assert sorted(name.split()[1] for name in shipped) == ["a", "b", "c"]


@pytest.mark.wide
def test_a_crowd_of_relays_makes_each_job_once(site: Site) -> None:
    names = ",".join(f"n{number}" for number in range(250))
    ids = site.play("order", names)
    threads = [threading.Thread(target=site.play, args=("relay",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = site.play("look")
    assert (sorted(job[0] for job in found["jobs"]), found["outbox"]) == (sorted(ids), [])


class Serving:
    """`ojs_worker` for the time of a block."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def __enter__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "manage.py", "ojs_worker", "--concurrency", "1"], env=self._site.environment,
            cwd=settings.BASE_DIR, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(60)
