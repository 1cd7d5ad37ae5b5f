"""The site of the tests as a server process, with settings of its own where a test asks for them."""

import json
import os

from tests.settings import *  # noqa: F403

OJS = {"ALLOW_ANONYMOUS": True} | json.loads(os.environ.get("OJS_TEST_OJS", "{}"))
FORCE_SCRIPT_NAME = os.environ.get("OJS_TEST_SCRIPT_NAME") or None
