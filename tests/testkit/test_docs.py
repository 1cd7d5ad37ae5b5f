"""Every code block of docs/testing.md runs, in a project of its own that has nothing but the installed package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

#: Projects of their own, each with its own database: once is enough, on whatever it is.
pytestmark = [pytest.mark.wide, pytest.mark.sqlite]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "testing.md"
BLOCK = re.compile(r"^```python(?: title=(\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "rest_framework", "django_ojs", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
ROOT_URLCONF = "shop.urls"
"""
PYTEST = "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
URLS = """
from django.db import transaction
from django.http import HttpResponse
from django.urls import path

from shop.jobs import send_email


def order(request):
    email = request.POST["email"]
    with transaction.atomic():
        send_email.enqueue(email, "confirmation")
        send_email.options(delay="1d", meta={"kind": "survey"}).enqueue(email, "survey")
        transaction.set_rollback(not email)
    return HttpResponse("thanks")


urlpatterns = [path("order/", order)]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    files = {"settings.py": SETTINGS, "shop/__init__.py": "", "shop/urls.py": URLS}
    for number, (title, code) in enumerate(BLOCK.findall(PAGE.read_text(encoding="utf-8"))):
        files[title or f"test_block_{number}.py"] = code
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(project: Path, *arguments: str, settings: str = "settings") -> subprocess.CompletedProcess[str]:
    (project / "pytest.ini").write_text(PYTEST)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DJANGO"))}
    if settings:
        environment["DJANGO_SETTINGS_MODULE"] = settings
    return subprocess.run(
        [sys.executable, *arguments], cwd=project, capture_output=True, text=True, timeout=300, check=False,
        env=environment | {"PYTHONPATH": f"{project}{os.pathsep}{ROOT}"},
    )  # fmt: skip


def test_every_block_of_the_page_runs_under_pytest(project: Path) -> None:
    blocks = len(list(project.glob("test_block_*.py")))
    done = run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", ".")
    assert done.returncode == 0, done.stdout + done.stderr
    assert blocks >= 5
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 15


def test_the_blocks_for_unittest_run_under_django_s_own_runner(project: Path) -> None:
    block = next(path for path in project.glob("test_block_*.py") if "FakeJobsMixin" in path.read_text())
    done = run(project, "-m", "django", "test", block.stem)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 4 tests" in done.stderr
