"""Jobs whose arguments a client's codecs have encoded, such as encrypted (orchestration 7). No server decodes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: What codecs have done to the arguments, in the order in which they did it.
ENCODINGS = "ojs.codec.encodings"


def is_encoded(meta: Mapping[str, Any]) -> bool:
    """Whether the job says that its arguments are not what its handler gets: they fit no schema, and equal ones differ.

    `ojs_encoded` is true, or `ojs.codec.encodings` names a codec.
    """
    encodings = meta.get(ENCODINGS)
    return meta.get("ojs_encoded") is True or (isinstance(encodings, list | str) and bool(encodings))
