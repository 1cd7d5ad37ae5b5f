"""`python -m docs.ojsdocs` writes the pages of the reference anew, from the code of this checkout."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(DOCS), str(DOCS.parent), str(DOCS.parent / "packages" / "ojs-conformance")]

import ojsdocs  # noqa: E402 - once it can be found
from ojsdocs import site  # noqa: E402

site.start()
for part in ojsdocs.PARTS:
    ojsdocs.file(part).write_text(ojsdocs.page(part), encoding="utf-8")
