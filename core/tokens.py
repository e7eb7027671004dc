"""Credentials of users and replicas: user tokens, attempt tokens, login codes, and the platform's key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from core.domain.ids import AttemptId
from core.settings import Settings

USER_PREFIX: Final = "tm_"
SESSION_PREFIX: Final = "tms_"
ATTEMPT_PREFIX: Final = "tma_"
KEY_FILE: Final = "secret.key"
KEY_LENGTH: Final = 32  # of a key in that file, at least


def new_user_token() -> str:
    """A new bearer token: ``tm_`` and 256 random bits. Shown once; only its digest is stored."""
    return USER_PREFIX + secrets.token_urlsafe(32)


def new_session_token() -> str:
    """The content of a browser's cookie: ``tms_`` and 256 random bits; no bearer token."""
    return SESSION_PREFIX + secrets.token_urlsafe(32)


def new_login_code() -> str:
    """A new one-time code for a login link: 192 random bits."""
    return secrets.token_urlsafe(24)


def token_digest(token: str) -> str:
    """SHA-256 in hex, as stored. The tokens are random, so that no salt or slow hash is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def attempt_token(secret: bytes, attempt_id: AttemptId) -> str:
    """The token of one attempt's replicas, derived and therefore never stored: ``tma_<attempt id>.<mac>``."""
    return f"{ATTEMPT_PREFIX}{attempt_id}.{_mac(secret, attempt_id)}"


def verify_attempt_token(secret: bytes, token: str) -> AttemptId | None:
    """The attempt that ``token`` belongs to, or ``None`` if it is not authentic."""
    if not token.startswith(ATTEMPT_PREFIX) or not token.isascii():
        return None
    attempt_id, _, mac = token.removeprefix(ATTEMPT_PREFIX).rpartition(".")
    if not attempt_id or not hmac.compare_digest(mac, _mac(secret, attempt_id)):
        return None
    return AttemptId(attempt_id)


def _mac(secret: bytes, attempt_id: str) -> str:
    digest = hmac.new(secret, f"attempt:{attempt_id}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def platform_key(settings: Settings) -> bytes:
    """The key that signs attempt tokens and encrypts secrets: from the settings, else a file under home, created once.

    Concurrent calls of a platform's processes all return the same key.
    """
    given = settings.secret_key.get_secret_value()
    if given:
        return given.encode()
    path = settings.home / KEY_FILE
    try:
        return _read_key(path)
    except FileNotFoundError:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{KEY_FILE}.{os.getpid()}.{secrets.token_hex(4)}")
    write_private(draft, secrets.token_hex(32))
    try:
        os.link(draft, path)  # fails if another process was first; a rename would replace its key
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return _read_key(path)


def write_private(path: Path, text: str) -> None:
    """Atomically write a file that only its owner may read."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _read_key(path: Path) -> bytes:
    key = path.read_text().strip().encode()
    if len(key) < KEY_LENGTH:
        raise ValueError(f"{path} holds no key; remove it to have a new one made (running jobs then cannot report)")
    return key
