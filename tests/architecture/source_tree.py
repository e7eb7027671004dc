"""The source files of this repository and their syntax trees, for the tests of the house rules."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Folders which hold a distribution of their own: the import name begins below them.
DISTRIBUTION_ROOTS = ("sdk", "worker_images/runtime", "worker_images/train", "worker_images/serving")
PACKAGES = (
    "api",
    "core",
    "scheduler",
    "executors",
    "embedded",
    "trainmaster",
    "trainmaster_runtime",
    "trainmaster_train",
    "trainmaster_serving",
    "trainmaster_automl",
)
# Written once, and never changed afterwards.
FROZEN = ("migrations/versions/",)
# Locks; the API's and the job spec's schemas; what `make_files.py` and `regenerate.py` of the tests write.
GENERATED = re.compile(
    r"\.gen\.ts$|package-lock\.json$|\.lock$|openapi\.json$|job-spec\.schema\.json$"
    r"|tests/unit/inspection/files/(?!README)|tests/unit/contracts/golden/"
)


def tracked_files(*suffixes: str) -> tuple[Path, ...]:
    """Files which git tracks or would track, relative to the root; frozen and generated files are left out."""
    return tuple(path for path in _written_files() if path.name.endswith(suffixes) and not str(path).startswith(FROZEN))


def text_files() -> tuple[Path, ...]:
    """Files of any kind but images that git tracks or would track, frozen ones too; generated files are left out."""
    return tuple(path for path in _written_files() if path.suffix != ".png")


@cache
def _written_files() -> tuple[Path, ...]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return tuple(Path(name) for name in sorted(set(listing)) if not GENERATED.search(name) and (ROOT / name).is_file())


def source_modules() -> tuple[Path, ...]:
    """Python modules of the product: no tests."""
    return tuple(path for path in tracked_files(".py") if path.parts[0] != "tests")


@cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


@cache
def text_lines(path: Path) -> tuple[str, ...]:
    return tuple((ROOT / path).read_text(encoding="utf-8").splitlines())
