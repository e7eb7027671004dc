from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from trainmaster.version import __version__, checked_out_commit


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_the_commit_is_that_of_the_checkout_however_git_stores_it(tmp_path: Path) -> None:
    repository, worktree = tmp_path / "repository", tmp_path / "worktree"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    git(repository, "commit", "-q", "--allow-empty", "-m", "first")
    commit = git(repository, "rev-parse", "HEAD")
    assert checked_out_commit(repository / ".git") == commit
    git(repository, "pack-refs", "--all")
    assert checked_out_commit(repository / ".git") == commit
    git(repository, "worktree", "add", "-q", str(worktree), "-b", "other")
    assert checked_out_commit(worktree / ".git") == commit
    git(repository, "checkout", "-q", "--detach")
    assert checked_out_commit(repository / ".git") == commit
    assert checked_out_commit(tmp_path / "nothing" / ".git") == ""


@pytest.mark.parametrize(("given", "printed"), [("a1b2c3d4" * 5, " (a1b2c3d4a1b2)"), ("unknown", "")])
def test_the_command_prints_the_commit_of_its_image(given: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainmaster.cli.main", "version"],
        env={**os.environ, "TRAINMASTER_REVISION": given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{__version__}{printed}"
