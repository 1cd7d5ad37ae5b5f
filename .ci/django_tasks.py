"""Django's own tests of its Tasks framework, run against `django_ojs.tasks.OJSBackend`.

    python .ci/django_tasks.py [--archive django-6.1.3.tar.gz] [-v]

A site that uses another backend switches by changing one setting. Whether that is so is asked of the tests that Django
has for its two backends: pip downloads the source archive of the installed version, and `tests/tasks` of it is run in
a site whose `TASKS` name ours instead. Four things are other than in Django:

- the names of Django's backends in those modules are those of two small classes here: `Stored` for DummyBackend,
  which keeps what is enqueued, and `Inline` for ImmediateBackend, which runs it at once, as sites' tests do;
- `SimpleTestCase` is `TestCase`, for our backend has a database;
- queues have hyphens in their names, since OJS has no underscores there (`django_ojs.E201` tells a site);
- `DIFFERENT` lists the tests that ask for what only Django's two have, each with the reason. One that is listed and
  passes is a failure too, or the list would grow old.

Ends with 0, with 1 after a failure, with 77 where the archive cannot be had.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.test.runner import DiscoverRunner

ROOT = Path(__file__).resolve().parents[1]

ASYNC = "it asks the database in a coroutine, without sync_to_async, which Django does not let a backend with one do"
STORED = "it writes into DummyBackend's list to change a result; our results are read from the database"
CAN = "it asks for the refusal of what ImmediateBackend cannot, and ours can"

#: Tests that ask for what is only in Django's own backends, and why ours is other.
DIFFERENT = {
    "test_dummy_backend.DummyBackendTestCase.test_enqueue_task_async": ASYNC,
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result": STORED,
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result_async": STORED,
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result": CAN,
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after": CAN,
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result": CAN,
    "test_immediate_backend.ImmediateBackendTestCase.test_throws_keyboard_interrupt": (
        "a worker goes on whatever a task raises: KeyboardInterrupt fails the task, as SystemExit does"
    ),
    "test_tasks.TaskTestCase.test_enqueue_task_async": ASYNC,
    "test_tasks.TaskTestCase.test_refresh_result": ASYNC,
}

SWAPPED = {
    '"django.tasks.backends.dummy.DummyBackend"': '"ojs_backends.Stored"',
    '"django.tasks.backends.immediate.ImmediateBackend"': '"ojs_backends.Inline"',
    "from django.tasks.backends.dummy import DummyBackend": "from ojs_backends import Stored as DummyBackend",
    "from django.tasks.backends.immediate import": "from ojs_backends import Inline as",
    "SimpleTestCase, TransactionTestCase,": "TestCase as SimpleTestCase, TransactionTestCase,",
    "SimpleTestCase, override_settings": "TestCase as SimpleTestCase, override_settings",
    "available_apps = []": "available_apps = None",  # ours has tables
    '"unknown_queue"': '"unknown-queue"',
    "'unknown_queue'": "'unknown-queue'",
    '"queue_1"': '"queue-1"',
}

BACKENDS = '''
from django_ojs.models import Job
from django_ojs.tasks import OJSBackend
from django_ojs.testing import inline


class Stored(OJSBackend):
    """Ours, with the two conveniences that DummyBackend has for tests."""

    @property
    def results(self):
        return [self.get_result(str(job.pk)) for job in Job.objects.order_by("pk")]

    def clear(self):
        Job.objects.all().delete()


class Inline(OJSBackend):
    """Ours as sites have it in tests: a task runs before `enqueue` returns."""

    def enqueue(self, task, args, kwargs):
        with inline(raise_errors=False):
            return super().enqueue(task, args, kwargs)
'''


class Missing(Exception):
    """The archive cannot be had."""


def fetch(folder: Path) -> Path:
    """The source archive of the installed Django, from where pip gets packages."""
    wanted = f"django=={django.__version__}"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "django", "-d", str(folder)]
    done = subprocess.run([*command, wanted], capture_output=True, text=True, timeout=600, check=False)
    found = sorted(folder.glob("*.tar.gz"))
    if done.returncode or not found:
        raise Missing(f"pip cannot get the source of {wanted}: {done.stderr.strip()[-300:]}")
    return found[0]


def unpack(archive: Path, folder: Path) -> None:
    """`tests/tasks` as the package `tasks`, with the backends swapped."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if found := re.fullmatch(r"[^/]+/tests/(tasks/\w+\.py)", member.name):
                content = tar.extractfile(member)
                assert content is not None
                text = content.read().decode()
                for old, new in SWAPPED.items():
                    text = text.replace(old, new)
                target = folder / found[1]
                target.parent.mkdir(exist_ok=True)
                target.write_text(text, encoding="utf-8")
    if not list(folder.glob("tasks/test_*.py")):
        raise Missing(f"{archive.name} has no tests/tasks")
    (folder / "ojs_backends.py").write_text(BACKENDS, encoding="utf-8")


def configure() -> None:
    settings.configure(
        SECRET_KEY="tests",
        USE_TZ=True,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[
            "django.contrib.contenttypes", "django.contrib.auth", "rest_framework", "channels", "django_ojs"
        ],
        MIDDLEWARE=[],
        LOGGING={
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {"nowhere": {"class": "logging.NullHandler"}},
            "root": {"handlers": ["nowhere"]},
        },
    )  # fmt: skip
    django.setup()


def names(outcome: list[tuple[Any, str]]) -> dict[str, str]:
    """The tests of failures, which may be subtests, with what they said."""
    return {_short(getattr(test, "test_case", test)): text for test, text in outcome}


def _short(test: unittest.TestCase) -> str:
    return test.id().removeprefix("tasks.")


def run(verbose: bool) -> tuple[set[str], dict[str, str]]:
    """The names of all tests, and of those that failed with why."""
    runner = DiscoverRunner(verbosity=0, interactive=False, timing=False)
    runner.setup_test_environment()
    suite = runner.build_suite(["tasks"])
    every = {_short(test) for test in suite}
    databases = runner.setup_databases()
    try:
        stream = sys.stderr if verbose else io.StringIO()  # what fails is told at the end
        result = unittest.TextTestRunner(stream=stream).run(suite)
    finally:
        runner.teardown_databases(databases)
        runner.teardown_test_environment()
    return every, names([*result.failures, *result.errors])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--archive", type=Path, help="Django's source archive (default: pip downloads it)")
    parser.add_argument("-v", "--verbose", action="store_true")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            unpack(arguments.archive or fetch(folder), folder)
        except Missing as error:
            print(f"SKIPPED: {error}")
            return 77
        sys.path[:0] = [name, str(ROOT)]
        configure()
        every, failed = run(arguments.verbose)
    listed = every & set(DIFFERENT)
    for test in sorted(failed.keys() - listed):
        print(f"FAILED {test}\n{failed[test]}")
    for test in sorted(DIFFERENT.keys() - every):
        print(f"FAILED {test} is listed, and is not there")
    for test in sorted(listed - failed.keys()):
        print(f"FAILED {test} passes, and is listed as different: {DIFFERENT[test]}")
    wrong = set(failed.keys() ^ listed) | DIFFERENT.keys() - every
    if not every - listed:
        print("FAILED: there is no test")
        wrong |= {""}
    passed = len(every - failed.keys() - wrong)
    told = f"{len(wrong)} failed, " if wrong else ""
    print(f"Django {django.__version__}: {len(listed)} tests are about other backends")
    print(f"{told}{passed} passed in {time.monotonic() - began:.2f}s")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
