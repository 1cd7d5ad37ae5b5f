"""The tests of a user's project, run as he runs them: databases kept between runs, several processes, any kind of test.

A job of one test that another could see would be found by either: each begins by looking, and ends with jobs left
over in every state that can be reached.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.testkit.test_docs import run

SETTINGS = """
SECRET_KEY = "of a project"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "rest_framework", "channels"]
INSTALLED_APPS += ["django_ojs"]
DATABASES = {"default": {
    "ENGINE": "django.db.backends.sqlite3", "NAME": "data.sqlite3", "TEST": {"NAME": "test.sqlite3"},
    "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
}}
USE_TZ = True
"""

TESTS = '''
import pytest
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from django_ojs import enqueue, job
from django_ojs.models import Event, Job, Queue, QueueCount
from django_ojs.testing import FakeJobsMixin, InlineJobsMixin, WorkerJobs, WorkerJobsMixin


@job("report.make")
def make_report(fails=False):
    if fails:
        raise ValueError("no")


def use(jobs=None):
    """Begin with nothing, and leave as much as possible."""
    assert not any(model.objects.exists() for model in (Job, Event, Queue, QueueCount))
    if jobs is not None:
        jobs.assert_nothing_enqueued()
    make_report.enqueue()
    enqueue("somebody.else", 1, queue="slow", delay="1h")
    make_report.options(retry={"max_attempts": 3}).enqueue(True)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        make_report.enqueue()
        1 / 0
    if isinstance(jobs, WorkerJobs):
        assert jobs.drain().completed == 1
    assert Job.objects.count() == 3


class InTransaction(TestCase):
    def test_real(self):
        use()

    def test_real_again(self):
        use()


class Committed(TransactionTestCase):
    def test_real(self):
        use()


class Drained(WorkerJobsMixin, TestCase):
    def test_it(self):
        use(self.jobs)

    def test_again(self):
        use(self.jobs)


class DrainedAndCommitted(WorkerJobsMixin, TransactionTestCase):
    def test_it(self):
        use(self.jobs)


class AtOnce(InlineJobsMixin, TestCase):
    raise_job_errors = False

    def test_it(self):
        use(self.jobs)
        self.jobs.assert_performed("report.make", state="completed")


class Faked(FakeJobsMixin, TestCase):
    def test_it(self):
        make_report.enqueue()
        assert (len(self.jobs.enqueued), Job.objects.count()) == (1, 0)


@pytest.mark.django_db
@pytest.mark.parametrize("number", range(2))
def test_db(number):
    use()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", range(2))
def test_transactional_db(number):
    use()


@pytest.mark.parametrize("number", range(2))
def test_fixture(ojs_worker, number):
    use(ojs_worker)


def test_fixture_committed(transactional_db, ojs_worker):
    use(ojs_worker)


def test_drain(ojs_drain):
    make_report.enqueue()
    assert ojs_drain().completed == 1


@pytest.mark.parametrize("number", range(2))
def test_faked(ojs_fake, number):
    ojs_fake.assert_nothing_enqueued()
    make_report.enqueue()
    assert len(ojs_fake.enqueued) == 1
'''


@pytest.mark.sqlite
@pytest.mark.wide
def test_no_job_leaks_into_another_test_or_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "test_project.py").write_text(TESTS)
    for only, wanted in (("test", 18), ("InTransaction or test_db", 4)):  # the second finds what the first has left
        done = run(tmp_path, "-m", "pytest", "-q", "-n", "2", "--reuse-db", "-p", "no:cacheprovider", "-k", only)
        assert done.returncode == 0, done.stdout + done.stderr
        passed = re.search(r"(\d+) passed", done.stdout)
        assert passed is not None
        assert int(passed[1]) == wanted
    assert len([path for path in tmp_path.iterdir() if re.fullmatch(r"test.*gw\d", path.name)]) == 2  # they were kept
