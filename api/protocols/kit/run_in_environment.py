"""Runs a command with packages that its image lacks: ``run_in_environment.py PACKAGE… -- COMMAND…``.

The source of this module is sent to the job as ``python3 -c``: standard library only, Python >= 3.8. The packages are
installed into a virtual environment of this replica on top of the image's Python: replicas may share one Python, and
often may not write to it.

An argument that begins with ``/`` is a package file, as Vertex AI's clients stage them; it is installed even if the
image has the package. All other arguments are lines of one requirements file. ``python``, ``python3`` and the packages'
programs come from the environment.
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
    wanted, command = argv[:end], list(argv[end + 1 :])
    folder = tempfile.mkdtemp(prefix="packages-")
    python = make_environment(folder + "/env")
    for package in wanted:
        if not package.startswith("/"):
            continue
        if not os.path.exists(package):
            sys.exit("%s: there is no such package; was it deleted since the job was submitted?" % package)
        install(python, "--upgrade", "--force-reinstall", "--no-deps", package)
        install(python, package)
    lines = [line for line in wanted if not line.startswith("/")]
    if lines:
        with open(folder + "/requirements.txt", "w") as stream:
            stream.write("".join(line + "\n" for line in lines))
        install(python, "-r", folder + "/requirements.txt")
    os.environ["PATH"] = os.path.dirname(python) + os.pathsep + os.environ.get("PATH", "")
    sys.stdout.flush()
    os.execvp(command[0], command)


def make_environment(folder: str) -> str:
    """Make the environment; return its interpreter, which can import all that this interpreter can. Pip is not in
    it.
    """
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", folder], check=False
    )
    if made.returncode != 0:
        sys.exit("This image's Python cannot make an environment for the packages; see its message above.")
    site = folder + "/lib/python%d.%d/site-packages" % sys.version_info[:2]
    # A venv made by a venv's Python only sees the packages of the base interpreter, not those of the first venv.
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
    sys.exit("%s: it cannot be installed; see pip's message above." % words[-1])


main(sys.argv[1:])
