from __future__ import annotations

import os
import tarfile
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainmaster.errors import UnfitFolder
from trainmaster.packing import list_folder, pack_folder
from trainmaster.sizes import format_size


def names_in(folder: Path) -> set[str]:
    with pack_folder(folder) as packed, tarfile.open(packed.path) as archive:
        return {member.name for member in archive.getmembers() if not member.isdir()}


def write_file(folder: Path, name: str, content: str | bytes = "x") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def digest(folder: Path) -> str:
    with pack_folder(folder) as packed:
        return packed.digest


file_names = st.text("abc.-_é ", min_size=1, max_size=6).filter(
    lambda name: name.strip(". ") and not name.startswith(".")
)
trees = st.dictionaries(st.tuples(file_names, file_names), st.binary(max_size=300), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(tree=trees, seed=st.randoms(use_true_random=False))
def test_the_same_content_gives_the_same_digest_whatever_its_history(
    tree: dict[tuple[str, str], bytes], seed: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first, second = tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")
    for (folder, name), content in tree.items():
        write_file(first, f"{folder}/f-{name}", content)
    for (folder, name), content in reversed(list(tree.items())):
        path = write_file(second, f"{folder}/f-{name}", content)
        path.chmod(0o600)
        os.utime(path, (1, 1))
    assert digest(first) == digest(second)


@settings(max_examples=40, deadline=None)
@given(tree=trees)
def test_what_is_packed_is_what_was_there(
    tree: dict[tuple[str, str], bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, target = tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")
    for (parent, name), content in tree.items():
        write_file(folder, f"{parent}/f-{name}", content)
    with pack_folder(folder) as packed, tarfile.open(packed.path) as archive:
        archive.extractall(target, filter="data")
    for (parent, name), content in tree.items():
        assert (target / parent / f"f-{name}").read_bytes() == content
    assert not packed.path.exists()


def test_another_content_or_name_or_executable_bit_is_another_digest(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.sh", "1")
    seen = {digest(tmp_path)}
    path.write_text("2")
    seen.add(digest(tmp_path))
    path.rename(tmp_path / "b.sh")
    seen.add(digest(tmp_path))
    (tmp_path / "b.sh").chmod(0o755)
    seen.add(digest(tmp_path))
    assert len(seen) == 4


def test_time_does_not_change_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path, "train.py")
    before = digest(tmp_path)
    monkeypatch.setattr(time, "time", lambda: 4_000_000_000.0)
    assert digest(tmp_path) == before


def test_names_in_the_archive_are_relative_and_sorted_and_nobodys(tmp_path: Path) -> None:
    for name in ("b/x.py", "b.py", "a.py", "b/a/y.py"):
        write_file(tmp_path, name)
    with pack_folder(tmp_path) as packed, tarfile.open(packed.path) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == ["a.py", "b", "b/a", "b/a/y.py", "b/x.py", "b.py"]
    assert {(member.uid, member.gid, member.uname, member.mtime) for member in members} == {(0, 0, "", 0)}


def test_what_nobody_trains_with_is_left_out(tmp_path: Path) -> None:
    for name in (".git/HEAD", ".venv/bin/python", "pkg/__pycache__/a.pyc", "node_modules/x/i.js", "a.pyc", ".DS_Store"):
        write_file(tmp_path, name)
    write_file(tmp_path, "pkg/a.py")
    assert names_in(tmp_path) == {"pkg/a.py"}


def test_ignore_files_hold_below_their_folder_and_the_nearest_wins(tmp_path: Path) -> None:
    write_file(tmp_path, ".gitignore", "*.log\n/data/\nsecret\n")
    write_file(tmp_path, "sub/.gitignore", "!keep.log\n/top\n")
    for name in ("a.log", "sub/b.log", "sub/keep.log", "sub/top", "sub/deep/top", "data/x", "sub/data/x", "sub/secret"):
        write_file(tmp_path, name)
    assert names_in(tmp_path) == {".gitignore", "sub/.gitignore", "sub/keep.log", "sub/deep/top", "sub/data/x"}


def test_our_ignore_file_takes_back_what_git_leaves_out(tmp_path: Path) -> None:
    write_file(tmp_path, ".gitignore", "/data/\n*.bin\n")
    write_file(tmp_path, ".trainmasterignore", "!/data/\n/notes/\n!__pycache__/\n")
    for name in ("data/x", "notes/y", "w.bin", "__pycache__/z"):
        write_file(tmp_path, name)
    assert names_in(tmp_path) == {".gitignore", ".trainmasterignore", "data/x", "__pycache__/z"}


def test_links_inside_stay_links(tmp_path: Path) -> None:
    write_file(tmp_path, "real/a.py")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "b.py").symlink_to(tmp_path / "real" / "a.py")
    with pack_folder(tmp_path) as packed, tarfile.open(packed.path) as archive:
        links = {member.name: member.linkname for member in archive.getmembers() if member.issym()}
    assert links == {"link": "real", "real/b.py": "a.py"}


@pytest.mark.parametrize("target", ["../outside", "/etc/passwd", "sub/../../outside", "hop/outside"])
def test_a_link_that_leaves_the_folder_is_refused(target: str, tmp_path: Path) -> None:
    folder = tmp_path / "code"
    write_file(folder, "train.py")
    (tmp_path / "outside").write_text("secret")
    (folder / "hop").symlink_to(".." if target.startswith("hop") else ".")
    (folder / "link").symlink_to(target)
    with pytest.raises(UnfitFolder, match=r"is a link to .*outside of the folder"):
        pack_folder(folder)


def test_an_ignored_link_may_lead_anywhere(tmp_path: Path) -> None:
    write_file(tmp_path, "train.py")
    write_file(tmp_path, ".trainmasterignore", "/data\n")
    (tmp_path / "data").symlink_to("/")
    assert names_in(tmp_path) == {"train.py", ".trainmasterignore"}


def test_a_pipe_is_left_out_and_reported(tmp_path: Path) -> None:
    write_file(tmp_path, "train.py")
    os.mkfifo(tmp_path / "pipe")
    with pack_folder(tmp_path) as packed:
        assert packed.skipped == ("pipe",)
        assert packed.file_count == 1


def test_what_is_too_large_is_reported_with_the_largest_files(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path_factory.mktemp("scratch")  # of its own: others pack at the same time
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    write_file(tmp_path, "train.py")
    write_file(tmp_path, "data/big.bin", os.urandom(50_000))
    with pytest.raises(UnfitFolder) as caught:
        pack_folder(tmp_path, limit_bytes=10_000)
    assert "more than 9.8 KiB" in str(caught.value)
    assert "data/big.bin (48.8 KiB); train.py (1 B)" in str(caught.value)
    assert list(scratch.iterdir()) == []


def test_what_no_packing_makes_smaller_is_refused_before_it_is_packed(tmp_path: Path) -> None:
    write_file(tmp_path, "data/big.bin", os.urandom(2_000_000))
    reported: list[tuple[int, int]] = []
    with pytest.raises(UnfitFolder, match=r"big\.bin"):
        pack_folder(tmp_path, limit_bytes=1_500_000, progress=lambda done, total: reported.append((done, total)))
    assert reported == []
    # What looks large and packs well is packed.
    write_file(tmp_path, "data/big.bin", bytes(20_000_000))
    with pack_folder(
        tmp_path, limit_bytes=1_500_000, progress=lambda done, total: reported.append((done, total))
    ) as packed:
        assert packed.size_bytes < 100_000
    assert reported[-1] == (20_000_000, 20_000_000)
    assert len({done for done, _ in reported}) > 10  # within a file, too


def test_a_folder_without_anything_to_pack_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnfitFolder, match="nothing to pack"):
        pack_folder(tmp_path)
    with pytest.raises(UnfitFolder, match="does not exist: name an existing"):
        pack_folder(tmp_path / "absent")
    with pytest.raises(UnfitFolder, match="is not a folder"):
        pack_folder(write_file(tmp_path, "file"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    write_file(tmp_path, "secret").chmod(0)
    with pytest.raises(UnfitFolder, match="secret cannot be packed"):
        pack_folder(tmp_path)


def test_an_ignore_file_that_is_no_text_is_reported(tmp_path: Path) -> None:
    write_file(tmp_path, "train.py")
    write_file(tmp_path, ".trainmasterignore", b"\xff\xfe\x00")
    with pytest.raises(UnfitFolder, match="must be UTF-8"):
        pack_folder(tmp_path)


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    write_file(tmp_path, "real/train.py")
    (tmp_path / "here").symlink_to("real")
    assert names_in(tmp_path / "here") == {"train.py"}


def test_the_root_is_listed_without_packing(tmp_path: Path) -> None:
    write_file(tmp_path, "a/train.py", "12345")
    entries, skipped = list_folder(tmp_path)
    assert [(entry.name, entry.size) for entry in entries] == [("a", 0), ("a/train.py", 5)]
    assert skipped == ()


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (512 * 2**20, "512 MiB")])
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert format_size(count) == text


def test_a_platforms_own_data_is_never_packed_whatever_its_folder_is_called(tmp_path: Path) -> None:
    home = tmp_path / "my-home"
    (home / "run").mkdir(parents=True)
    (home / "secret.key").write_text("key")
    (home / "token").write_text("tm_token")
    (tmp_path / ".env").write_text("PASSWORD=x")
    (tmp_path / "train.py").write_text("pass")
    entries, _ = list_folder(tmp_path)
    assert [entry.name for entry in entries] == ["train.py"]


def test_an_archive_that_a_killed_packing_left_goes_after_a_day(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("pass")
    old, young = (tmp_path / "temp" / f"trainmaster-code-{name}.tar.gz" for name in ("old", "young"))
    for path in (old, young):
        path.touch()
    day_ago = time.time() - 90_000
    os.utime(old, (day_ago, day_ago))
    packed = pack_folder(tmp_path / "code")
    assert (old.exists(), young.exists(), packed.path.exists()) == (False, True, True)
