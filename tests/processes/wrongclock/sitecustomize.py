"""On the PYTHONPATH of processes whose host has a wall clock that is wrong (tests/stepping.py)."""

from tests import stepping

stepping.install()
