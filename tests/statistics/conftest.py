"""The doors of the HTTP tests and of the admin's, on a store that nobody remembers."""

from tests.dashboard.conftest import _nothing_shared  # noqa: F401
from tests.http.conftest import _open_site, api  # noqa: F401
from tests.telemetry.conftest import _fresh_stamps  # noqa: F401
