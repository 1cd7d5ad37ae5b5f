"""The standard handlers of the conformance specification, as jobs."""

from __future__ import annotations

from django_ojs import job
from ojs_conformance.handlers import HANDLERS

for _type, _handler in HANDLERS.items():
    job(_type)(_handler)
