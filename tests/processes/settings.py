"""The site of the tests with the handlers of this directory, and impatient settings where a test asks for them."""

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "tests.processes.app"]
OJS = {"HEARTBEAT_INTERVAL": 0.2} | json.loads(os.environ.get("OJS_TEST_OJS", "{}"))
