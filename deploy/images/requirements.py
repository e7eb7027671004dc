"""Prints what the control plane's image installs: the dependencies of the server and of the client, but for our own."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def requirements(root: Path = ROOT) -> list[str]:
    """Each requirement as the two ``pyproject.toml`` write it, sorted."""
    found = set()
    for folder in (root, root / "sdk"):
        found.update(tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"])
    return sorted(line for line in found if not line.startswith("trainmaster"))


if __name__ == "__main__":
    print("\n".join(requirements()))
