"""The API's types in a user's project under `mypy --strict`: right code passes, wrong code does not."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import django_ojs
import django_ojs.tasks
import django_ojs.testing

PROJECT = Path(__file__).parent / "project"
ROOT = PROJECT.parents[2]

needs_mypy = pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="needs mypy: pip install --group dev")


def read(name: str) -> list[tuple[int, str]]:
    return list(enumerate((PROJECT / name).read_text().splitlines(), 1))


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What mypy says about files that are no part of this checkout and know us as an installed package."""
    place = tmp_path_factory.mktemp("project")
    names = sorted(path.name for path in PROJECT.glob("*.py"))
    for name in names:
        (place / name).write_text((PROJECT / name).read_text())
    options = ["--strict", "--config-file=", "--no-error-summary", "--follow-imports=silent", "--no-pretty"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", place / "cache", *names],
        cwd=place, env={"MYPYPATH": str(ROOT), "PATH": ""}, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return {name: "\n".join(re.findall(rf"^{re.escape(name)}:.*$", done.stdout, re.MULTILINE)) for name in names}


@needs_mypy
@pytest.mark.slow
@pytest.mark.parametrize("name", ["right.py", "tasks.py"])
def test_right_code_passes_and_has_the_types_it_should(said: dict[str, str], name: str) -> None:
    assert " error: " not in said[name], said[name]
    revealed = {int(line): type_ for line, type_ in re.findall(r':(\d+): note: Revealed type is "(.*)"', said[name])}
    wanted = {number: line.rpartition("# ")[2] for number, line in read(name) if "reveal_type(" in line}
    assert revealed == wanted


@needs_mypy
@pytest.mark.slow
def test_every_mistake_is_found_and_nothing_else(said: dict[str, str]) -> None:
    output = said["wrong.py"]
    found: dict[int, str] = {}
    for line, code in re.findall(r":(\d+): error: .*\[([a-z-]+)\]", output):
        found.setdefault(int(line), code)  # a wrong decorator also makes its function untyped
    wanted = {number: line.rpartition("# E: ")[2] for number, line in read("wrong.py") if "# E: " in line}
    assert found == wanted, output


@pytest.mark.parametrize(
    "name,package",
    [("right.py", django_ojs), ("right.py", django_ojs.testing), ("tasks.py", django_ojs.tasks)],
    ids=["django_ojs", "django_ojs.testing", "django_ojs.tasks"],
)
def test_the_right_code_uses_every_public_name(name: str, package: object) -> None:
    code = (PROJECT / name).read_text().partition("\n\n\n")[2]  # without the imports
    assert [public for public in package.__all__ if not re.search(rf"\b{public}\b", code)] == []  # type: ignore[attr-defined]
