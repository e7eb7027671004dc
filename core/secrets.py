"""Project secrets, encrypted with the platform's key.

Each secret is encrypted under a key of its own, derived from the platform's key, the project and the name (HKDF, RFC
5869): a ciphertext that is copied to another row cannot be decrypted there. Fernet (https://github.com/fernet/spec)
encrypts and authenticates.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Secret
from core.domain.errors import Conflict, InvalidSpec


class UnreadableSecret(Conflict):
    """Encrypted with another key than the platform's current one."""


def seal(key: bytes, project_id: str, name: str, value: str) -> bytes:
    """Encrypt ``value``, so that only ``unseal`` with the same key, project and name reads it."""
    return _box(key, project_id, name).encrypt(value.encode("utf-8", "surrogatepass"))


def unseal(key: bytes, project_id: str, name: str, sealed: bytes) -> str:
    """Raises ``UnreadableSecret``."""
    try:
        return _box(key, project_id, name).decrypt(sealed).decode("utf-8", "surrogatepass")
    except InvalidToken:
        raise UnreadableSecret(
            f"Secret {name} cannot be opened: the platform's secret key has changed since it was set; set it again."
        ) from None


def open_secrets(session: Session, key: bytes, project_id: str, names: Iterable[str]) -> dict[str, str]:
    """The decrypted secrets of the project, for a job's environment. Never log them.

    Raises:
        InvalidSpec: some do not exist (any more).
        UnreadableSecret: one was encrypted with another key.
    """
    wanted = list(names)
    rows = session.execute(
        select(Secret.name, Secret.ciphertext).where(Secret.project_id == project_id, Secret.name.in_(wanted))
    )
    sealed = {row.name: row.ciphertext for row in rows}
    missing = [name for name in wanted if name not in sealed]
    if missing:
        raise InvalidSpec(
            f"The project has no secret {', '.join(missing)}; set it, or take it out of `secrets`.", field="secrets"
        )
    return {name: unseal(key, project_id, name, sealed[name]) for name in wanted}


def _box(key: bytes, project_id: str, name: str) -> Fernet:
    info = json.dumps(["trainmaster.secret.v1", project_id, name]).encode()
    derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(key)
    return Fernet(base64.urlsafe_b64encode(derived))
