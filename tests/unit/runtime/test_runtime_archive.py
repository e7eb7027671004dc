from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from trainmaster_runtime import code_archive
from trainmaster_runtime.code_archive import ArchiveRefused, unpack


def member(name, **fields):
    found = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(found, field, value)
    return found


def text_member(name, text="x", **fields):
    return member(name, size=len(text), **fields), text


@pytest.fixture
def pack(tmp_path):
    """Makes an archive of members (with their texts) and unpacks it; returns the folder."""

    def make(*members, reserved=(), digest=None):
        path = tmp_path / "code.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            for item in members:
                info, text = item if isinstance(item, tuple) else (item, "")
                tar.addfile(info, io.BytesIO(text.encode()))
        target = tmp_path / "work"
        target.mkdir()
        unpack(str(path), digest, str(target), reserved)
        return target

    return make


def link(name, target):
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def test_files_folders_and_links_are_there(pack):
    work = pack(
        member("pkg", type=tarfile.DIRTYPE),
        text_member("pkg/a.py", "print(1)", mode=0o755),
        link("latest", "pkg/a.py"),
        member("b.py", type=tarfile.LNKTYPE, linkname="pkg/a.py"),
    )
    assert (work / "pkg/a.py").read_text() == "print(1)"
    assert (work / "pkg/a.py").stat().st_mode & 0o777 == 0o755
    assert (work / "latest").read_text() == "print(1)"
    assert (work / "b.py").read_text() == "print(1)"


@pytest.mark.parametrize(
    "item",
    [
        text_member("/etc/x"),
        text_member("../x"),
        text_member("a/../../x"),
        link("x", "/etc/passwd"),
        link("x", "../outside"),
        link("a/b/x", "../../../outside"),
        member("x", type=tarfile.LNKTYPE, linkname="../../etc/passwd"),
        member("x", type=tarfile.FIFOTYPE),
        member("x", type=tarfile.CHRTYPE),
    ],
    # Names of their own: the default ones hold addresses, which differ between the processes of a parallel run.
    ids=["absolute", "up", "up-and-down", "link-absolute", "link-up", "link-far-up", "hard-link", "fifo", "device"],
)
def test_what_leads_outside_or_is_no_file_is_refused(pack, tmp_path, item):
    with pytest.raises(ArchiveRefused):
        pack(item)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code.tar.gz", "work"]


def test_a_chain_of_links_that_climbs_out_is_refused(pack, tmp_path):
    with pytest.raises(ArchiveRefused):
        # By its text `deep/up/../x` stays inside; through `up` it does not.
        pack(text_member("deep/keep"), link("deep/up", ".."), link("out", "deep/up/../secret"))
    assert not (tmp_path / "work/out").is_symlink()


def test_nothing_is_written_through_a_link(pack, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    with pytest.raises((ArchiveRefused, OSError)):
        pack(link("door", "../outside"), text_member("door/x"))
    assert list(outside.iterdir()) == []


def test_a_link_is_not_made_behind_a_link_that_leads_out(pack, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    with pytest.raises(ArchiveRefused):
        pack(link("door", "../outside"), link("door/x", "a"))
    assert list(outside.iterdir()) == []


def test_a_wrong_digest_is_refused_before_anything_is_written(pack, tmp_path):
    with pytest.raises(ArchiveRefused, match="upload it again"):
        pack(text_member("a"), digest="sha256:" + "0" * 64)
    assert list((tmp_path / "work").iterdir()) == []


def test_the_right_digest_is_accepted(tmp_path):
    path = tmp_path / "code.tar.gz"
    with tarfile.open(path, "w:gz"):
        pass
    assert unpack(str(path), "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest(), str(tmp_path)) == 0


def test_more_than_the_limit_is_refused(pack, monkeypatch):
    monkeypatch.setattr(code_archive, "MAX_BYTES", 10)
    with pytest.raises(ArchiveRefused, match="unpacks to more than"):
        pack(text_member("a", "x" * 6), text_member("b", "x" * 6))


def unpacked_bytes(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("form", ["zeros", "hard links"])
def test_a_small_archive_fills_no_disk(pack, tmp_path, monkeypatch, form):
    monkeypatch.setattr(code_archive, "ANY_BYTES", 2**20)
    many = [text_member(f"file-{number}", "x" * 2**18) for number in range(40)]
    links = [member(f"link-{number}", type=tarfile.LNKTYPE, linkname="file-0") for number in range(40)]
    with pytest.raises(ArchiveRefused, match="more than 500000 files or 1 MiB, which is not code"):
        pack(*(many if form == "zeros" else [many[0], *links]))
    assert 0 < unpacked_bytes(tmp_path / "work") <= 2**20


def test_a_large_archive_of_code_is_unpacked(pack, monkeypatch):
    monkeypatch.setattr(code_archive, "ANY_BYTES", 10)
    folder = pack(text_member("a", "".join(f"weight_{number} = {number}\n" for number in range(5_000))))
    assert unpacked_bytes(folder) > 80_000


def test_too_many_files_are_refused(pack, monkeypatch):
    monkeypatch.setattr(code_archive, "MAX_FILES", 2)
    with pytest.raises(ArchiveRefused, match="unpacks to more than"):
        pack(text_member("a"), text_member("b"), text_member("c"))


def test_a_file_where_a_folder_is_mounted_is_refused(pack):
    with pytest.raises(ArchiveRefused, match="'output' where the platform mounts a folder"):
        pack(text_member("output"), reserved=("data", "output"))


def test_a_folder_where_a_folder_is_mounted_is_fine(pack):
    assert (pack(text_member("data/x"), reserved=("data",)) / "data/x").exists()


def test_what_is_no_archive_is_refused_with_a_sentence(tmp_path: Path):
    path = tmp_path / "code.tar.gz"
    path.write_bytes(b"not an archive")
    with pytest.raises(ArchiveRefused, match="cannot be read"):
        unpack(str(path), None, str(tmp_path))


def test_a_truncated_archive_is_refused_with_a_sentence(tmp_path: Path):
    path = tmp_path / "code.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        info, text = text_member("a", "x" * 100_000)
        tar.addfile(info, io.BytesIO(text.encode()))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ArchiveRefused, match="cannot be read"):
        unpack(str(path), None, str(tmp_path / "work"))
