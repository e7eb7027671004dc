from __future__ import annotations

import errno
import gzip
import hashlib
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core.domain.errors import InsufficientStorage, InvalidRequest, PayloadTooLarge
from core.storage.archives import ArchiveStore, NotAnnounced, WrongOffset

DATA = gzip.compress(os.urandom(5000), mtime=0)
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> ArchiveStore:
    return ArchiveStore(tmp_path / "archives", limit_bytes=10_000)


def send(store: ArchiveStore, user: str = "u", *, data: bytes = DATA, digest: str = DIGEST, step: int = 2000) -> None:
    upload = store.start(digest, user, size_bytes=len(data))
    while not upload.is_complete:
        chunk = data[upload.received_bytes : upload.received_bytes + step]
        upload = store.append(digest, user, offset=upload.received_bytes, chunk=chunk)


def test_an_archive_sent_in_chunks_lies_whole_in_its_place(store: ArchiveStore) -> None:
    assert not store.has(DIGEST)
    send(store)
    assert store.path_of(DIGEST).read_bytes() == DATA
    assert store.start(DIGEST, "another", size_bytes=len(DATA)).is_complete


def test_an_upload_goes_on_after_a_restart_of_both_sides(store: ArchiveStore, tmp_path: Path) -> None:
    store.start(DIGEST, "u", size_bytes=len(DATA))
    store.append(DIGEST, "u", offset=0, chunk=DATA[:3000])
    again = ArchiveStore(tmp_path / "archives", limit_bytes=10_000)
    assert again.start(DIGEST, "u", size_bytes=len(DATA)).received_bytes == 3000
    send(again)
    assert again.has(DIGEST)


def test_a_chunk_for_another_place_is_informed_where_to_go_on(store: ArchiveStore) -> None:
    store.start(DIGEST, "u", size_bytes=len(DATA))
    store.append(DIGEST, "u", offset=0, chunk=DATA[:100])
    with pytest.raises(WrongOffset) as caught:
        store.append(DIGEST, "u", offset=0, chunk=DATA[:100])
    assert caught.value.received_bytes == 100


def test_bytes_that_are_not_what_the_digest_says_are_dropped(store: ArchiveStore) -> None:
    wrong = bytearray(DATA)
    wrong[-1] ^= 1
    with pytest.raises(InvalidRequest, match="do not have this digest"):
        send(store, data=bytes(wrong))
    assert not store.has(DIGEST)
    with pytest.raises(NotAnnounced):
        store.upload_progress(DIGEST, "u")
    send(store)
    assert store.has(DIGEST)


def test_one_user_cannot_spoil_the_upload_of_another(store: ArchiveStore) -> None:
    store.start(DIGEST, "villain", size_bytes=len(DATA))
    store.append(DIGEST, "villain", offset=0, chunk=b"rubbish")
    send(store, "u")
    assert store.path_of(DIGEST).read_bytes() == DATA


def test_something_else_than_gzip_is_refused(store: ArchiveStore) -> None:
    data = b"plain text"
    with pytest.raises(InvalidRequest, match=r"not a \.tar\.gz"):
        send(store, data=data, digest="sha256:" + hashlib.sha256(data).hexdigest())


def test_limits_are_reported_before_a_byte_is_sent(store: ArchiveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PayloadTooLarge, match="10,000"):
        store.start(DIGEST, "u", size_bytes=10_001)
    with pytest.raises(InvalidRequest):
        store.start("sha256:../../etc/passwd", "u", size_bytes=1)
    monkeypatch.setattr("core.storage.archives.shutil.disk_usage", lambda _: _Usage(0))
    with pytest.raises(InsufficientStorage, match=r"no room for .* bytes of code"):
        store.start(DIGEST, "u", size_bytes=10)


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_more_bytes_than_announced_are_refused(store: ArchiveStore) -> None:
    store.start(DIGEST, "u", size_bytes=10)
    with pytest.raises(InvalidRequest, match="announced"):
        store.append(DIGEST, "u", offset=0, chunk=DATA[:11])


def test_a_full_disk_keeps_what_was_sent_before_and_takes_nothing_by_halves(
    store: ArchiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.start(DIGEST, "u", size_bytes=len(DATA))
    store.append(DIGEST, "u", offset=0, chunk=DATA[:1000])
    real = os.pwrite

    def half(fd: int, data: bytes, offset: int) -> int:
        if offset > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:500], offset)

    with monkeypatch.context() as patched:
        patched.setattr("core.storage.archives.os.pwrite", half)
        with pytest.raises(InsufficientStorage, match="disk is full"):
            store.append(DIGEST, "u", offset=1000, chunk=DATA[1000:3000])
    assert store.upload_progress(DIGEST, "u").received_bytes == 1000
    send(store)
    assert store.has(DIGEST)


@pytest.mark.parametrize("same_user", [True, False])
def test_many_may_send_the_same_archive_at_once(store: ArchiveStore, same_user: bool) -> None:
    errors: list[BaseException] = []

    def one(number: int) -> None:
        user = "u" if same_user else f"u{number}"
        try:
            upload = store.start(DIGEST, user, size_bytes=len(DATA))
            while not upload.is_complete:
                chunk = DATA[upload.received_bytes : upload.received_bytes + 300]
                try:
                    upload = store.append(DIGEST, user, offset=upload.received_bytes, chunk=chunk)
                except WrongOffset:
                    upload = store.upload_progress(DIGEST, user)
        except BaseException as error:  # noqa: BLE001 (a thread's error is judged at the end)
            errors.append(error)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert store.path_of(DIGEST).read_bytes() == DATA
    assert list((store.path_of(DIGEST).parent.parent / "partial").iterdir()) == []


def test_uploads_without_progress_are_dropped_and_younger_ones_retained(store: ArchiveStore) -> None:
    store.start(DIGEST, "u", size_bytes=len(DATA))
    store.append(DIGEST, "u", offset=0, chunk=DATA[:10])
    now = datetime.now(UTC)
    assert store.drop_unfinished(now=now, older_than=timedelta(hours=1)) == 0
    assert store.drop_unfinished(now=now + timedelta(hours=2), older_than=timedelta(hours=1)) == 1
    with pytest.raises(NotAnnounced):
        store.append(DIGEST, "u", offset=10, chunk=b"x")


def test_uploads_under_way_keep_the_room_that_they_were_promised(
    store: ArchiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 64 * 2**20 + 1500  # what is always left free, and a little
    monkeypatch.setattr("core.storage.archives.shutil.disk_usage", lambda _: _Usage(room))
    one, two = (f"sha256:{digit * 64}" for digit in "ab")
    store.start(one, "ann", size_bytes=1000)
    with pytest.raises(InsufficientStorage):
        store.start(two, "bob", size_bytes=1000)
    store.append(one, "ann", offset=0, chunk=b"x" * 600)  # now on the disk, and so no longer only promised
    room -= 600
    store.start(two, "bob", size_bytes=500)
