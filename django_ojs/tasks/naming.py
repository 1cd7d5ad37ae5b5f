"""The job type of a task: its path, as far as a job type can say it (core 5.1)."""

from __future__ import annotations

import re

from django_ojs.policies import names
from django_ojs.tasks.home import AnyTask, InvalidTask


def type_of(task: AnyTask) -> str:
    """`job_type=` of the task, else the path of its function. Raises InvalidTask for what no job type can be."""
    wanted = getattr(task, "job_type", "") or from_path(task.module_path)
    try:
        return names.check_type(wanted)
    except ValueError as error:
        raise InvalidTask(f"The job type {wanted[:80]!r} of {task.module_path} {error}.") from None


def from_path(path: str) -> str:
    """`shop.tasks.send` as it is; `Shop.tasks._send` becomes `shop.tasks.send`.

    Two paths may come out the same: whoever registers the second is told (`definition.register`).
    """
    return ".".join(_segment(part) for part in path.split("."))


def _segment(text: str) -> str:
    return re.sub(r"^[^a-z]+", "", re.sub(r"[^a-z0-9_]", "_", text.lower())) or "x"
