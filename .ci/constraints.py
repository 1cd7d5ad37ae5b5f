"""Prints what .ci/constraints.txt holds: `constraints.py PYTHON…`, an interpreter of each environment.

What differs between them, such as Django, is held for each version of Python.
"""

from __future__ import annotations

import collections
import subprocess
import sys

HEAD = """\
# What the gate installs (PIP_CONSTRAINT), so that a release of a tool or of a dependency turns no change red overnight.
# `nox -s wide` runs without it and, where everything passed, writes it anew: commit it then.
"""


def said(python: str, *command: str) -> str:
    return subprocess.run([python, *command], check=True, capture_output=True, text=True).stdout


def main(pythons: list[str]) -> None:
    versions: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for python in pythons:
        version = said(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
        for line in said(python, "-m", "pip", "freeze", "--exclude-editable").splitlines():
            name, separator, number = line.partition("==")
            if separator:
                versions[name.lower().replace("_", "-")][version] = number
    print(HEAD, end="")
    for name, found in sorted(versions.items()):
        if len(set(found.values())) == 1:
            print(f"{name}=={next(iter(found.values()))}")
        else:
            for version, number in found.items():
                print(f'{name}=={number}; python_version == "{version}"')


if __name__ == "__main__":
    main(sys.argv[1:])
