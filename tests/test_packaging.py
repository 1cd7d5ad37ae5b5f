"""What is handed over: the checkout is tidy, and the wheel holds the package and nothing else."""

from __future__ import annotations

import email
import os
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
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
TOP_LEVEL = {
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "benchmarks",
    "django_ojs",
    "docs",
    "example_project",
    "manage.py",
    "noxfile.py",
    "packages",
    "pyproject.toml",
    "tests",
}
EXTRAS = {
    *("postgres", "mysql", "redis"),
    *("server", "grpc", "schemas", "openapi", "webhooks", "otel", "prometheus", "admin", "tasks52", "fast", "zstd"),
    *("demo", "test", "conformance"),
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


def test_the_tools_of_developers_are_groups_and_no_extras() -> None:
    """What a site can install is in the extras; pip 25.1 and newer know groups (PEP 735)."""
    assert set(PYPROJECT["dependency-groups"]) == {"dev", "docs"}


def test_the_package_says_where_the_project_lives() -> None:
    assert set(PROJECT["urls"]) >= {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    home = PROJECT["urls"]["Homepage"]
    for url in PROJECT["urls"].values():
        path = url.removeprefix(f"{home}/blob/main/")
        assert path == url or (ROOT / path).is_file(), url


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


def test_wheel_has_what_a_site_loads_from_it(built: Path) -> None:
    """Named here, for what git has lost is in no list of git's files."""
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(
            archive.read(f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info/METADATA")
        )
    for wanted in (
        "http/claim.json", "locale/fr/LC_MESSAGES/django.mo", "migrations/0001_initial.py", "py.typed",
        "schemas/envelope.json", "static/django_ojs/admin.css", "static/django_ojs/live.js",
        "templates/admin/django_ojs/change_list.html", "templates/django_ojs/admin/overview.html",
    ):  # fmt: skip
        assert f"django_ojs/{wanted}" in names
    assert not [name for name in names if re.search(r"(^|/)(tests?|docs|example_project|benchmarks?)/", name)]
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert set(metadata.get_all("Provides-Extra")) == EXTRAS
    assert metadata.get_payload().startswith("# django-ojs")


@pytest.fixture(scope="module")
def unpacked(built: Path) -> Path:
    """The source archive, where nothing of this checkout can be seen."""
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11 has it since 3.11.4
        archive.extractall(built)
    return built / sdist.name.removesuffix(".tar.gz")


def test_source_archive_holds_the_project_and_nothing_else(unpacked: Path, files: list[Path]) -> None:
    found = {path.relative_to(unpacked) for path in unpacked.rglob("*") if path.is_file()}
    hidden = {file for file in files if file.parts[0].startswith(".")}
    assert found - {Path("PKG-INFO"), Path(".gitignore")} == set(files) - hidden


def test_source_archive_makes_the_same_wheel(unpacked: Path, built: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=unpacked, check=True, capture_output=True,
    )  # fmt: skip
    [ours], [theirs] = built.glob("*.whl"), tmp_path.glob("*.whl")
    with zipfile.ZipFile(ours) as first, zipfile.ZipFile(theirs) as second:
        assert {item.filename: item.CRC for item in first.infolist()} == {
            item.filename: item.CRC for item in second.infolist()
        }


@pytest.mark.wide
def test_tests_of_the_source_archive_can_be_collected(unpacked: Path, tmp_path: Path) -> None:
    """With their settings and fixtures; a few of them, for all of them are there (above)."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OJS_", "PYTEST"))}
    environment |= {  # nothing may be written where other tests count the files
        "PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path),
    }  # fmt: skip
    options = ["--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider", "--assert", "plain"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/unit", "tests/tasks", "tests/sites"],
        cwd=unpacked, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert int(re.findall(r"(\d+) tests collected", done.stdout)[0]) > 100
