"""Prints what the control plane's image installs: the dependencies of the server and of the client, but for our own, and
TensorBoard, which the API starts.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def requirements(root: Path = ROOT) -> list[str]:
    """Each requirement as the two ``pyproject.toml`` write it, sorted."""
    found = set()
    for folder in (root, root / "sdk"):
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        found.update(project["dependencies"], project.get("optional-dependencies", {}).get("tensorboard", ()))
    return sorted(line for line in found if not line.startswith("trainmaster"))


if __name__ == "__main__":
    print("\n".join(requirements()))
