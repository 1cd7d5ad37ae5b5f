"""What is handed over: the checkout is tidy, and the wheel holds the package and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_ojs

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOP_LEVEL = {
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "django_ojs",
    "docs",
    "example_project",
    "manage.py",
    "pyproject.toml",
    "tests",
}
EXTRAS = {
    *("postgres", "mysql", "redis"),
    *("server", "schemas", "openapi", "webhooks", "otel", "prometheus", "admin", "tasks52", "fast"),
    *("demo", "test", "docs", "dev"),
}
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """What git has or would take, relative to the checkout."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("needs git and a checkout")
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in output.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def built(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the wheel and the source archive, built without network."""
    target = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", target], cwd=ROOT, check=True, capture_output=True
    )
    yield target
    shutil.rmtree(target)


def test_top_level_holds_only_what_a_newcomer_expects(files: list[Path]) -> None:
    visible = {file.parts[0] for file in files if not file.parts[0].startswith(".")}
    assert visible <= TOP_LEVEL, f"unexpected at the top level: {sorted(visible - TOP_LEVEL)}"
    assert visible >= TOP_LEVEL, f"missing at the top level: {sorted(TOP_LEVEL - visible)}"


def test_no_file_is_over_a_mebibyte(files: list[Path]) -> None:
    assert [str(file) for file in files if (ROOT / file).stat().st_size > MIB] == []


def test_nothing_is_left_to_do(files: list[Path]) -> None:
    marker = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    found = []
    for file in files:
        content = (ROOT / file).read_bytes()
        if b"\0" in content:  # a picture, in which any three letters may stand
            continue
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            if marker.search(line):
                found.append(f"{file}:{number}")
    assert found == []


def test_extras_are_the_documented_ones() -> None:
    assert set(PROJECT["optional-dependencies"]) == EXTRAS


def test_wheel_holds_every_file_of_the_package_and_nothing_else(built: Path, files: list[Path]) -> None:
    [wheel] = built.glob("*.whl")
    assert wheel.name == f"django_ojs-{django_ojs.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    info = f"django_ojs-{django_ojs.__version__}.dist-info/"
    packaged = {name for name in names if not name.startswith(info)}
    assert packaged == {file.as_posix() for file in files if file.parts[0] == "django_ojs"}
    assert "django_ojs/py.typed" in packaged
    assert info + "licenses/LICENSE" in names
    assert info + "entry_points.txt" in names


def test_source_archive_can_be_built_and_tested(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "manage.py", "tests/conftest.py", "PKG-INFO"} <= names
    assert {name.partition("/")[0] for name in names} <= TOP_LEVEL | {"PKG-INFO", ".gitignore"}
