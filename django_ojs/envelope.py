"""Check job documents in a site's own code: the documented path of `spellings.validate` (docs/validation.md)."""

from __future__ import annotations

from django_ojs.rules.problems import Problem
from django_ojs.spellings import validate

__all__ = ["Problem", "validate"]
