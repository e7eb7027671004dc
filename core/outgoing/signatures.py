"""Messages as Standard Webhooks asks: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Final

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 (what a secret begins with)
_SECRET_BYTES: Final = 32


def new_webhook_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signed_headers(message_id: str, timestamp_s: int, body: bytes, signing_secrets: Iterable[str]) -> dict[str, str]:
    """The headers of a message, with a signature by each secret: a receiver that has one of them accepts it."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    signatures = []
    for secret in signing_secrets:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
        digest = hmac.new(key, signed, hashlib.sha256).digest()
        signatures.append("v1," + base64.b64encode(digest).decode())
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(signatures),
    }
