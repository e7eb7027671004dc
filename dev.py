#!/usr/bin/env python3
"""Everything a developer runs, with nothing but Python >= 3.11: ``python3 dev.py demo|test|lint|up|bench|images|install``.

The first call makes ``.venv`` in this folder and installs what is needed; later calls only look whether the
requirements changed. The Makefile has the same words.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PACKAGES = ("sdk", "worker_images/runtime", "worker_images/train", ".")
# The examples train with torch; this version is pinned because its CPU build needs no other package.
TORCH = "torch==2.13.0"
WHEELS = "trainmaster/wheels"
# Name to tag, context and options; in the order in which they stand on each other.
IMAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "runtime": ("trainmaster/runtime", "worker_images/runtime", ()),
    "base": ("trainmaster/base", "worker_images", ()),
    "torch": ("trainmaster/torch:cpu", "worker_images", ()),
    "torch-cuda": ("trainmaster/torch:cuda", "worker_images", ("--build-arg", "DEVICE=cuda")),
    "tensorflow": ("trainmaster/tensorflow:cpu", "worker_images", ()),
}
LINTED = (
    "api",
    "core",
    "scheduler",
    "executors",
    "embedded",
    "migrations",
    "sdk",
    "worker_images",
    "benchmarks",
    "deploy",
    "examples",
    "tests",
    "dev.py",
)
TYPED = (
    "api",
    "core",
    "scheduler",
    "executors",
    "embedded",
    "sdk/trainmaster",
    "worker_images/runtime/trainmaster_runtime",
    "worker_images/train/trainmaster_train",
)


def main(argv: list[str]) -> int:
    verbs = {
        "install": install,
        "demo": demo,
        "test": test,
        "lint": lint,
        "up": up,
        "bench": bench,
        "openapi": openapi,
        "images": images,
    }
    if sys.version_info < (3, 11):  # noqa: UP036 (the sentence is for whoever starts it with an older one)
        return say(f"Trainmaster needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
    if not argv or argv[0] not in verbs:
        return say(f"usage: python3 dev.py {'|'.join(verbs)} [arguments]")
    if sys.platform != "linux":
        return say("Trainmaster's platform runs on Linux; the client (sdk/) runs anywhere.")
    return verbs[argv[0]](argv[1:])


def say(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2


def install(arguments: list[str]) -> int:
    """Make or refresh ``.venv``. Does nothing when the requirements are the ones of the last time."""
    stamp = VENV / "installed"
    wanted = hashlib.sha256(b"".join((ROOT / p / "pyproject.toml").read_bytes() for p in PACKAGES)).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted and "--force" not in arguments:
        return 0
    if not PYTHON.exists():
        print("Making .venv …", flush=True)
        made = subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=False)
        if made.returncode != 0:
            shutil.rmtree(VENV, ignore_errors=True)
            return say("Python's venv module is missing; install it (Debian and Ubuntu: apt-get install python3-venv).")
    print("Installing into .venv (the first time takes a minute or two) …", flush=True)
    pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    editable = [
        argument
        for package in PACKAGES
        for argument in ("-e", f"./{package}" + ("[train,test,lint]" if package == "." else ""))
    ]
    # torch first and by itself: with the pinned version in place nothing else can pull another build of it.
    for command in ([*pip, TORCH, "numpy>=2"], [*pip, *editable]):
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            return say("Installing failed; pip's message above says why. Nothing outside .venv was touched.")
    stamp.write_text(wanted)
    return 0


def run(*command: str | Path) -> int:
    """The exit code of ``command``, run in the checkout with the environment's programs first on the path."""
    env = {**os.environ, "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=env, check=False).returncode


def demo(arguments: list[str]) -> int:
    """The main job: a platform on this machine, two real distributed training jobs, watched to their end."""
    return install([]) or run(PYTHON, "examples/demo.py", *arguments)


def test(arguments: list[str]) -> int:
    """All tests. What needs PostgreSQL or Redis says so and is skipped where there is none."""
    return install([]) or run(PYTHON, "-m", "pytest", *(arguments or ["-q", "-n", "2", "--dist", "loadgroup"]))


def up(arguments: list[str]) -> int:
    return install([]) or run(VENV / "bin" / "trainmaster", "up", *arguments)


def lint(_arguments: list[str]) -> int:
    """Format, lint, types, walls, and the committed OpenAPI document."""
    if install([]):
        return 1
    checks: tuple[tuple[str | Path, ...], ...] = (
        (PYTHON, "-m", "ruff", "format", "--check", *LINTED),
        (PYTHON, "-m", "ruff", "check", *LINTED),
        (PYTHON, "-m", "mypy", *TYPED),
        (VENV / "bin" / "pyright",),
        (VENV / "bin" / "lint-imports", "--no-cache"),
        (PYTHON, "-m", "api.openapi", "--check"),
    )
    failed = [str(check[-1] if check[0] == PYTHON else check[0]) for check in checks if run(*check) != 0]
    return say(f"Not clean: {', '.join(failed)}") if failed else 0


def openapi(_arguments: list[str]) -> int:
    """Write the committed OpenAPI document anew."""
    return install([]) or run(PYTHON, "-m", "api.openapi")


def images(arguments: list[str]) -> int:
    """Build worker images: ``images [runtime|base|torch|torch-cuda|tensorflow …] [--wheels FOLDER]``; alone: the small
    and the CPU ones. Wheels in FOLDER are taken before those of an index.
    """
    words = list(arguments)
    wheels = None
    if "--wheels" in words:
        at = words.index("--wheels")
        wheels = words[at + 1] if at + 1 < len(words) else None
        del words[at : at + 2]
        if wheels is None or not Path(wheels).is_dir():
            return say("--wheels needs a folder with wheels.")
    unknown = [word for word in words if word not in IMAGES]
    if unknown:
        return say(f"usage: python3 dev.py images [{'|'.join(IMAGES)} …] [--wheels FOLDER]")
    build = ("docker", "build", "--network", "host")
    more: list[str] = []
    if wheels is not None:
        recipe = "FROM scratch\nCOPY *.whl /\n"
        made = subprocess.run([*build, "-q", "-t", WHEELS, "-f", "-", wheels], input=recipe, text=True, check=False)
        if made.returncode != 0:
            return made.returncode
        more = ["--build-arg", f"WHEELS={WHEELS}"]
    code = 0
    for name in [name for name in IMAGES if name in words or (not words and name != "torch-cuda")]:
        tag, context, options = IMAGES[name]
        folder, _, _ = name.partition("-")
        file = ROOT / "worker_images" / folder / "Dockerfile"
        code = code or run(
            *build, *options, *(more if "WHEELS" in file.read_text() else ()), "-t", tag, "-f", file, context
        )
    if wheels is not None:
        subprocess.run(["docker", "rmi", "-f", WHEELS], stdout=subprocess.DEVNULL, check=False)
    return code


def bench(arguments: list[str]) -> int:
    """One benchmark by name, or their list."""
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if not path.stem.startswith("_"))
    if not arguments or arguments[0] not in names:
        return say(f"usage: python3 dev.py bench {'|'.join(names)} [arguments]")
    return install([]) or run(PYTHON, f"benchmarks/{arguments[0]}.py", *arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
