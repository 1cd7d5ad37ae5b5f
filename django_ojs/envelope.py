"""Check job documents in a site's own code: the documented path of `rules.problems.validate` (docs/validation.md)."""

from __future__ import annotations

from django_ojs.rules.problems import Problem, validate

__all__ = ["Problem", "validate"]
