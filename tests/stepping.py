"""A host whose wall clock is set while jobs run: in this process, and in processes that the test starts.

Only what `django_ojs.clock` reads of the wall clock is moved, which is all that the package reads of it. The clocks
that nothing can set are left alone, as they are on a real host.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import types
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

#: Names the file that says by how many seconds the wall clock of a process is wrong.
FILE = "OJS_TEST_WALL_CLOCK"
CLOCK = "django_ojs.clock"


def shifted(seconds: Callable[[], float]) -> Any:
    """The module `datetime`, whose `datetime.now()` is wrong by what `seconds` says when it is asked."""

    class Wrong(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return dt.datetime.now(tz) + dt.timedelta(seconds=seconds())

    return types.SimpleNamespace(**{**vars(dt), "datetime": Wrong})


class _Finder(MetaPathFinder, Loader):
    """Loads `django_ojs.clock`, and gives it the wall clock that the file says."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._real: Any = None

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != CLOCK:
            return None
        found = PathFinder.find_spec(name, path, target)
        assert found is not None
        self._real, found.loader = found.loader, self
        return found

    def exec_module(self, module: types.ModuleType) -> None:
        self._real.exec_module(module)
        module.dt = shifted(self._seconds)  # type: ignore[attr-defined]

    def _seconds(self) -> float:
        return float(self._file.read_text() or 0)


def install() -> None:
    """For `sitecustomize`: where the environment names a file, the wall clock of this process is wrong by that much."""
    if FILE in os.environ:
        sys.meta_path.insert(0, _Finder(Path(os.environ[FILE])))
