"""DRF's parser for our bodies. Views call `OJSView.payload()`; `request.data` gives the same object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.parsers import BaseParser

from django_ojs.conf import ojs_settings
from django_ojs.http import body, media


def single_limit() -> int:
    """Bytes of a body that is no batch. Twice an envelope: white space and escapes do not count against a job."""
    return 2 * max(ojs_settings.MAX_ENVELOPE_BYTES, ojs_settings.MAX_RESULT_BYTES)


class OJSParser(BaseParser):
    """A JSON object of bounded size, whatever the Content-Type calls it."""

    media_type = media.OPENJOBSPEC

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        return body.parse(body.read(stream, single_limit()))
