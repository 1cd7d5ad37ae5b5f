"""The package itself: what it exports, and that importing it needs no Django."""

from __future__ import annotations

import subprocess
import sys

import pytest

import django_ojs


def test_every_exported_name_is_there() -> None:
    assert set(django_ojs.__all__) == set(django_ojs._MODULES)
    for name in django_ojs.__all__:
        assert getattr(django_ojs, name) is not None
    assert set(django_ojs.__all__) <= set(dir(django_ojs))
    with pytest.raises(AttributeError, match="no attribute 'jobb'"):
        django_ojs.jobb  # noqa: B018


def test_the_package_and_its_names_are_importable_before_the_apps_are_ready() -> None:
    """A jobs.py, or a models.py with handlers in it, may be imported while apps are being loaded."""
    code = (
        "import django_ojs, sys; assert 'django' not in sys.modules\n"
        "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'\n"
        "from django_ojs import Discard, JobContext, Retry, Snooze, enqueue, enqueue_many, get_job, job\n"
        "job('a.b')(lambda: None)\n"
        "from django.apps import apps; assert not apps.ready and 'django_ojs.models' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
