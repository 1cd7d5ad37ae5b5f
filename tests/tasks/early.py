"""A task that is defined while Django loads its apps."""

from tests.tasks.api import task


@task
def early() -> None: ...
