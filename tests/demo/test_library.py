"""The example project's view of the standard library."""

from __future__ import annotations

import pytest

from example_project import library


@pytest.mark.parametrize("name", ["/etc/passwd.py", "../secret.py", "json/../../secret.py", "json/decoder.txt", ""])
def test_a_name_cannot_lead_out_of_the_library(name: str) -> None:
    with pytest.raises(library.NotInLibrary):
        library.path_of(name)


def test_modules_are_files_and_not_tests() -> None:
    modules = library.modules()
    assert "json/decoder.py" in modules
    assert all(library.path_of(module).is_file() for module in modules)
    assert not [module for module in modules if {"test", "tests", "site-packages"} & set(module.split("/"))]


def test_packages_have_modules_of_their_own() -> None:
    assert {"json", "asyncio", "email"} <= set(library.packages())
    assert all(len(library.package(name)) >= 3 for name in library.packages())
    assert "json/decoder.py" in library.package("json")


def test_counting() -> None:
    source = b"# one\n\nimport this  # no\n  # two\n"
    assert library.words(source) == {"lines": 4, "words": 8}
    assert library.comments(source) == {"lines": 3, "comments": 2}
    assert library.names(b"if a:\n    a = b(a)\n") == {"a": 3, "b": 1}
