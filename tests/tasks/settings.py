"""The site of the tests with an app that has tasks, for the workers that tests start as processes."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "tests.tasks.app"]
