"""The API's types in a user's project under `mypy --strict`: right code passes, wrong code does not."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent / "project"
ROOT = PROJECT.parents[2]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="needs mypy: pip install -e '.[dev]'")


def mypy(name: str, tmp_path: Path) -> str:
    """What mypy says about a file that is not part of this checkout and knows us as an installed package."""
    (tmp_path / name).write_text((PROJECT / name).read_text())
    options = ["--strict", "--config-file=", "--no-error-summary", "--follow-imports=silent", "--no-pretty"]
    cache = ["--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *cache, name],
        cwd=tmp_path, env={"MYPYPATH": str(ROOT), "PATH": ""}, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_right_code_passes_and_has_the_types_it_should(tmp_path: Path) -> None:
    output = mypy("right.py", tmp_path)
    assert " error: " not in output, output
    revealed = {int(line): type_ for line, type_ in re.findall(r':(\d+): note: Revealed type is "(.*)"', output)}
    wanted = {
        number: line.rpartition("# ")[2]
        for number, line in enumerate((PROJECT / "right.py").read_text().splitlines(), 1)
        if "reveal_type(" in line
    }
    assert revealed == wanted


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_mistake_is_found_and_nothing_else(tmp_path: Path) -> None:
    output = mypy("wrong.py", tmp_path)
    found: dict[int, str] = {}
    for line, code in re.findall(r":(\d+): error: .*\[([a-z-]+)\]", output):
        found.setdefault(int(line), code)  # a wrong decorator also makes its function untyped
    wanted = {
        number: line.rpartition("# E: ")[2]
        for number, line in enumerate((PROJECT / "wrong.py").read_text().splitlines(), 1)
        if "# E: " in line
    }
    assert found == wanted, output
