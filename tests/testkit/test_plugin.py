"""The plugin, as pytest finds it by its entry point: it disturbs no project, whatever that has or has not."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.testkit.test_docs import SETTINGS, run


def test_it_is_known_by_its_entry_point() -> None:
    (found,) = entry_points(group="pytest11", name="django_ojs")
    assert found.value == "django_ojs.testing.plugin"


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_project_without_django_settings_runs_as_if_there_were_no_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\n"
        "def test_plain():\n"
        "    assert not [name for name in sys.modules if name.startswith('django_ojs.models')]\n"
        "    assert 'django_ojs.client' not in sys.modules\n"
    )
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:django", settings="")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_fixture_without_django_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text("def test_plain(ojs_fake): ...\n")
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", settings="")
    assert done.returncode == 1
    assert "DJANGO_SETTINGS_MODULE" in done.stdout


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_site_without_the_app_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text(SETTINGS.replace('"django_ojs", "shop"', ""))
    (tmp_path / "test_plain.py").write_text("def test_plain(ojs_fake): ...\n")
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 1
    assert "INSTALLED_APPS" in done.stdout


def test_loading_it_imports_neither_django_nor_our_models() -> None:
    code = (
        "import sys, django_ojs.testing.plugin\n"
        "assert 'pytest' in sys.modules\n"
        "assert not [name for name in sys.modules if name == 'django' or name.startswith('django.')], 'django'\n"
        "import django_ojs.testing\n"
        "assert 'django' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_the_plugin_imports_pytest() -> None:
    code = "import sys, django_ojs, django_ojs.testing\nassert 'pytest' not in sys.modules\n"
    code += (
        "from django.conf import settings\n"
        "installed = ['django.contrib.contenttypes', 'django.contrib.auth', 'django_ojs']\n"
        "settings.configure(INSTALLED_APPS=installed, USE_TZ=True,\n"
        "    DATABASES={'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}})\n"
        "import django; django.setup()\n"
        "from django_ojs.testing import *\n"
        "assert 'pytest' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
