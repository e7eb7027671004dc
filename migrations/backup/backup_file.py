"""The file of a backup: a ZIP archive whose last member, ``manifest.json``, has size and SHA-256 of all others.

The platform's key is in the manifest, wrapped by the passphrase (scrypt, AES-256-GCM). The rest of the manifest is
authenticated with it, so that neither the manifest nor a member can be exchanged without the passphrase.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from core.domain.errors import Conflict

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
PASSPHRASE_LENGTH: Final = 8  # at least
_SCRYPT: Final = {"n": 2**16, "r": 8, "p": 1}  # 64 MiB of memory
_CHUNK_BYTES: Final = 2**20
_COMPRESSION_LEVEL: Final = 1


class BackupRefused(Conflict):
    """A backup or restore that was refused before it changed anything; the sentence says why and what to do."""


class BackupWriter:
    """Writes one file next to its final name and renames it by ``close``; ``abandon`` removes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members: dict[str, dict[str, Any]] = {}
        self._draft = path.with_name(f"{path.name}.part")
        descriptor = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._stream = os.fdopen(descriptor, "wb")
        self._zip = zipfile.ZipFile(self._stream, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION_LEVEL)

    @contextmanager
    def member(self, name: str, *, is_compressed: bool = True, status: os.stat_result | None = None) -> Iterator[Any]:
        """A function that appends bytes to the member. ``status``: of the file that it comes from."""
        info = zipfile.ZipInfo(name)
        info.compress_type = zipfile.ZIP_DEFLATED if is_compressed else zipfile.ZIP_STORED
        info.external_attr = (status.st_mode if status else stat.S_IFREG | 0o600) << 16
        sha256, size = hashlib.sha256(), 0
        with self._zip.open(info, "w", force_zip64=True) as stream:

            def append(data: bytes) -> None:
                nonlocal size
                stream.write(data)
                sha256.update(data)
                size += len(data)

            yield append
        self.members[name] = {"size": size, "sha256": sha256.hexdigest()}
        if status is not None:
            self.members[name] |= {"mode": status.st_mode, "owner": [status.st_uid, status.st_gid]}

    def add_file(self, name: str, source: Path) -> bool:
        """Add a file, or a link as such. False: it vanished, or is no regular file."""
        try:
            status = source.lstat()
            if stat.S_ISLNK(status.st_mode):
                target = source.readlink()
                with self.member(name, status=status) as append:
                    append(os.fsencode(target))
                return True
            descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                return False
            is_compressed = not name.endswith((".gz", ".zip", ".safetensors", ".npz"))
            with self.member(name, is_compressed=is_compressed, status=status) as append:
                while chunk := stream.read(_CHUNK_BYTES):
                    append(chunk)
        return True

    def close(self, manifest: dict[str, Any], key: bytes, passphrase: str) -> None:
        """Write the manifest with the wrapped ``key``, and give the file its name."""
        manifest = {"format": FORMAT, **manifest, "members": self.members}
        manifest["key"] = _wrap(key, passphrase, manifest)
        self._zip.writestr(MANIFEST, json.dumps(manifest, sort_keys=True))
        self._zip.close()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        self._draft.replace(self.path)

    def abandon(self) -> None:
        self._stream.close()
        self._draft.unlink(missing_ok=True)


class BackupReader:
    """An open backup. Nothing in it is trusted before ``unlock`` and ``verify``."""

    def __init__(self, path: Path) -> None:
        """Raises ``BackupRefused``: no backup, damaged, or of a newer format. ``OSError``: it cannot be read."""
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise BackupRefused(
                f"{path} is damaged or no backup: its table of contents is missing ({error}). Use another backup."
            ) from error
        self.manifest: dict[str, Any] = {}
        if MANIFEST not in self._zip.namelist():
            raise BackupRefused(f"{path} is no backup of Trainmaster: it has no {MANIFEST}.")
        try:
            self.manifest = json.loads(self._zip.read(MANIFEST))
        except (zipfile.BadZipFile, zlib.error, ValueError, EOFError) as error:
            raise _damaged(path, MANIFEST) from error
        if self.manifest.get("format") != FORMAT:
            raise BackupRefused(
                f"{path} was written by Trainmaster {self.manifest.get('version')} in format "
                f"{self.manifest.get('format')}, and this version reads format {FORMAT}: restore it with that version."
            )

    def close(self) -> None:
        self._zip.close()

    @property
    def size_bytes(self) -> int:
        """Of all members, unpacked."""
        return sum(int(member["size"]) for member in self.manifest["members"].values())

    def unlock(self, passphrase: str) -> bytes:
        """The platform's key. Raises ``BackupRefused``: a wrong passphrase, or a changed manifest."""
        manifest = {name: value for name, value in self.manifest.items() if name != "key"}
        try:
            return _unwrap(self.manifest["key"], passphrase, manifest)
        except InvalidTag:
            raise BackupRefused(
                f"The passphrase does not open {self.path}: it is wrong, or the manifest was changed after the backup."
            ) from None

    def names(self, folder: str) -> list[str]:
        """The members below ``folder``; the names are safe to join to a folder. Raises ``BackupRefused``."""
        found = [name for name in self.manifest["members"] if name.startswith(f"{folder}/")]
        for name in found:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise BackupRefused(f"{self.path} has a member of a forbidden name: {name!r}.")
        return found

    def verify(self) -> None:
        """Read all members. Raises ``BackupRefused``, which names the first damaged one."""
        for name, meant in self.manifest["members"].items():
            sha256, size = hashlib.sha256(), 0
            try:
                for chunk in self.chunks(name):
                    sha256.update(chunk)
                    size += len(chunk)
            except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, OSError, NotImplementedError) as error:
                raise _damaged(self.path, name) from error
            if (size, sha256.hexdigest()) != (meant["size"], meant["sha256"]):
                raise _damaged(self.path, name)

    def chunks(self, name: str) -> Iterator[bytes]:
        with self.open(name) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk

    def open(self, name: str) -> IO[bytes]:
        return self._zip.open(name)

    def extract(self, name: str, target: Path) -> None:
        """Write the member to ``target``, which is replaced, with the mode and, as root, the owner it had."""
        member = self.manifest["members"][name]
        mode, owner = member.get("mode", stat.S_IFREG | 0o600), member.get("owner")
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name[:200]}.restoring")
        draft.unlink(missing_ok=True)
        if stat.S_ISLNK(mode):
            draft.symlink_to(os.fsdecode(b"".join(self.chunks(name))))
        else:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                for chunk in self.chunks(name):
                    stream.write(chunk)
                os.fchmod(stream.fileno(), stat.S_IMODE(mode) & 0o777)
        if owner and os.geteuid() == 0:
            os.chown(draft, *owner, follow_symlinks=False)
        draft.replace(target)


def demand_passphrase(passphrase: str) -> None:
    """Raises ``BackupRefused``."""
    if len(passphrase) < PASSPHRASE_LENGTH:
        raise BackupRefused(
            f"The passphrase needs {PASSPHRASE_LENGTH} or more characters: it protects the key of the projects' "
            "secrets. Give it by --passphrase-file or TRAINMASTER_BACKUP_PASSPHRASE."
        )


def _damaged(path: Path, name: str) -> BackupRefused:
    return BackupRefused(
        f"{path} is damaged: its member {name} is not what was written. Nothing was changed; use another backup."
    )


def _wrap(key: bytes, passphrase: str, manifest: dict[str, Any]) -> dict[str, Any]:
    salt, nonce = os.urandom(16), os.urandom(12)
    sealed = AESGCM(_derived(passphrase, salt, _SCRYPT)).encrypt(nonce, key, _canonical(manifest))
    parts = {"salt": salt, "nonce": nonce, "sealed": sealed}
    return {"scrypt": _SCRYPT, **{name: base64.b64encode(value).decode() for name, value in parts.items()}}


def _unwrap(wrapped: dict[str, Any], passphrase: str, manifest: dict[str, Any]) -> bytes:
    salt, nonce, sealed = (base64.b64decode(wrapped[name]) for name in ("salt", "nonce", "sealed"))
    return AESGCM(_derived(passphrase, salt, _SCRYPT)).decrypt(nonce, sealed, _canonical(manifest))


def _derived(passphrase: str, salt: bytes, costs: dict[str, int]) -> bytes:
    return Scrypt(salt=salt, length=32, **costs).derive(passphrase.encode("utf-8", "surrogateescape"))


def _canonical(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True).encode()
