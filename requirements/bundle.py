"""Pack all that an installation without network needs into one archive: ``python3 dev.py bundle [options] FILE``.

Wheels of the platform and of what it needs, for this machine's Python and processor; images, as `docker save` writes
them; the chart, the compose file, and ``install.sh``, which makes a virtual environment of the wheels.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCKS: Final = ("platform", "tensorboard", "train")
FILES: Final = ("deploy/helm", "deploy/kubernetes", "deploy/compose", "docker-compose.yml", "LICENSE")
IMAGES: Final = ("trainmaster/control", "trainmaster/runtime")
INSTALL: Final = ROOT / "deploy" / "install-bundle.sh"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py bundle", description="Pack an installation without network.")
    parser.add_argument("file", type=Path, help="The archive to write, such as trainmaster-bundle.tar")
    parser.add_argument("--torch", default="", metavar="REQUIREMENT", help="Also this torch, such as torch==2.13.0.")
    parser.add_argument("--image", action="append", help="An image to add; default: control and runtime. Repeatable.")
    parser.add_argument("--without-images", action="store_true", help="For installations without containers.")
    parser.add_argument(
        "--package", action="append", default=[], help="A folder of this repository to build a wheel of."
    )
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="trainmaster-bundle-") as folder:
        content = Path(folder) / "trainmaster"
        content.mkdir()
        images = [] if chosen.without_images else chosen.image or list(IMAGES)
        steps = [*wheel_steps(content, chosen.package, chosen.torch), *image_steps(content, images)]
        for step in steps:
            if subprocess.run(step, cwd=ROOT, check=False).returncode != 0:
                print(f"The bundle is not written: `{' '.join(step[:4])} …` failed, as said above.", file=sys.stderr)
                return 1
        copy_files(content)
        write_digests(content)
        with tarfile.open(chosen.file, "w") as archive:
            archive.add(content, content.name)
    print(
        f"{chosen.file}: {chosen.file.stat().st_size / 2**20:,.0f} MB; unpack it there, and run trainmaster/install.sh."
    )
    return 0


def wheel_steps(content: Path, packages: list[str], torch: str) -> list[list[str]]:
    """Commands of pip. Locked wheels are checked against their digests."""
    wheels = str(content / "wheels")
    pip = [sys.executable, "-m", "pip"]
    download = [*pip, "download", "-q", "--only-binary", ":all:", "-d", wheels]
    locks = [argument for name in LOCKS for argument in ("-r", str(ROOT / "requirements" / f"{name}.lock"))]
    steps = [
        [*download, "--require-hashes", "--no-deps", *locks],
        [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", wheels, *(f"./{name}" for name in packages)],
    ]
    return [*steps, [*download, torch]] if torch else steps


def image_steps(content: Path, images: list[str]) -> list[list[str]]:
    return [["docker", "save", "-o", str(content / "images.tar"), *images]] if images else []


def copy_files(content: Path) -> None:
    for name in FILES:
        source, target = ROOT / name, content / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy2(source, target)
    for lock in LOCKS:
        shutil.copy2(ROOT / "requirements" / f"{lock}.lock", content / f"{lock}.lock")
    shutil.copy2(INSTALL, content / "install.sh")


def write_digests(content: Path) -> None:
    """``SHA256SUMS``, which ``install.sh`` checks: an archive travels on a medium that may be damaged."""
    lines = []
    for path in sorted(content.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.relative_to(content)}\n")
    (content / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
