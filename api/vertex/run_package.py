"""Runs a module out of Python packages, as Vertex AI's own images do: ``run_package.py MODULE PACKAGE… -- ARGUMENT…``.

Sent to the job as it stands, as ``python3 -c``: the standard library alone, Python >= 3.8. The packages are installed
into an environment of this replica's own over the image's: replicas may share one Python, and often may not write to it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> None:
    end = argv.index("--")
    module, packages, arguments = argv[0], argv[1:end], argv[end + 1 :]
    python = make_environment(tempfile.mkdtemp(prefix="packages-") + "/env")
    for package in packages:
        if not os.path.exists(package):
            sys.exit("%s: there is no such package; was it deleted since the job was submitted?" % package)
        install(python, "--upgrade", "--force-reinstall", "--no-deps", package)
        install(python, package)
    os.environ["PATH"] = os.path.dirname(python) + os.pathsep + os.environ.get("PATH", "")
    sys.stdout.flush()
    os.execv(python, [python, "-m", module, *arguments])


def make_environment(folder: str) -> str:
    """Its interpreter. What the running one can import, it can, too; pip is the running one's."""
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", folder], check=False
    )
    if made.returncode != 0:
        sys.exit("This image's Python cannot make an environment for the packages; its message stands above.")
    site = folder + "/lib/python%d.%d/site-packages" % sys.version_info[:2]
    # An environment over an environment sees the interpreter below both, and nothing of the one in between.
    with open(site + "/_below.pth", "w") as stream:
        for path in sys.path:
            if path.endswith("-packages"):
                stream.write("import site; site.addsitedir(%r)\n" % path)
    return folder + "/bin/python3"


def install(python: str, *words: str) -> None:
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-warn-script-location", *words]
    for _ in range(2):
        if subprocess.run(command, check=False).returncode == 0:
            return
    sys.exit("%s: it cannot be installed; pip's message stands above." % words[-1])


main(sys.argv[1:])
