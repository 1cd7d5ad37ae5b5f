"""The headers of one attempt: who sends what, and the signatures over the exact bytes (events 6.3)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Literal

SignatureFormat = Literal["body", "timestamp.body"]
FORMATS: tuple[SignatureFormat, ...] = ("body", "timestamp.body")
USER_AGENT = "OJS-Webhook/1.0"
SIGNATURE, OTHER_SIGNATURE = "X-OJS-Signature", "X-OJS-Signature-Timestamped"


def headers(
    body: bytes,
    keys: Sequence[str],
    signed: SignatureFormat,
    *,
    event_type: str,
    delivery_id: str,
    subscription_id: str,
    timestamp: int,
    extra: Mapping[str, str],
) -> dict[str, str]:
    """All headers but Host and Content-Length. `keys`: the secret, and before its end the one before it, new first.

    The seed's signature is over the body, the companion's over timestamp, dot and body; `signed` says which of
    the two `X-OJS-Signature` holds, and the other is in `X-OJS-Signature-Timestamped`.
    """
    whole = b"%d." % timestamp + body
    first, second = (body, whole) if signed == "body" else (whole, body)
    return {
        **extra,
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        "X-OJS-Event-Type": event_type,
        "X-OJS-Delivery-ID": delivery_id,
        "X-OJS-Subscription-ID": subscription_id,
        "X-OJS-Timestamp": str(timestamp),
        SIGNATURE: signature(first, keys),
        OTHER_SIGNATURE: signature(second, keys),
    }


def signature(content: bytes, keys: Sequence[str]) -> str:
    """`sha256=` and 64 hexadecimal digits for each key, joined by commas."""
    return ",".join(
        "sha256=" + hmac.digest(key.encode("utf-8", "surrogatepass"), content, hashlib.sha256).hex() for key in keys
    )
