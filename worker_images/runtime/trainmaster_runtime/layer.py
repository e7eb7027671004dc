"""Builds a layer: a virtual environment with a job's requirements, on top of another Python's packages.

A program of its own: the runtime executes it in a view of the file system like the job's, because building a source
distribution runs that package's code. The layer sees the packages of its base, and holds only what the base lacks:
while the installer runs, metadata of the base's packages lie in the layer, so that they count as installed.
"""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Run by the base: what a layer on it depends on.
INSPECT = """
import json, os, site, sys, sysconfig
folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *getattr(site, "getsitepackages", list)()]
folders = [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]
names = sorted(name for folder in folders for name in os.listdir(folder) if name.endswith(".dist-info"))
print(json.dumps({"prefix": sys.prefix, "tag": sys.implementation.cache_tag, "version": list(sys.version_info[:2]),
                  "platform": sysconfig.get_platform(), "site": folders, "packages": names}))
"""
_MARK = "trainmaster"  # as INSTALLER of metadata that stand for a package of the base
# pip's settings, and uv's names for them; https://docs.astral.sh/uv/reference/environment/
_SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
}


def settings_of_uv(env: dict[str, str], pip_files: list[str]) -> dict[str, str]:
    """Variables by which uv finds the index that the machine's pip is set to. ``pip_files``: later ones win."""
    pip: dict[str, str] = {}
    for path in pip_files:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                pip.update(parser.items(section))
    pip.update({name[4:].lower().replace("_", "-"): env[name] for name in env if name.startswith("PIP_")})
    found = {}
    for name, variable in _SETTINGS.items():
        if not pip.get(name) or variable in env:
            continue
        # uv separates links and files by commas; both read addresses separated by blanks.
        between = "," if name == "find-links" else " "
        found[variable] = between.join(pip[name].split())
    if "UV_INDEX" in found:
        # pip takes the best version of all indexes, and so does who set several for it.
        found.setdefault("UV_INDEX_STRATEGY", env.get("UV_INDEX_STRATEGY", "unsafe-best-match"))
    return found


class Layer:
    """``folder``: of the layer; ``python``: its base's, ``base``: what ``INSPECT`` printed there; ``uv``: its path,
    or ``None``: the base's pip installs.
    """

    def __init__(self, folder: str, python: str, base: dict[str, Any], uv: str | None) -> None:
        self._folder = folder
        self._own_python = folder + "/bin/python"
        self._python = python
        self._base = base
        self._uv = uv
        self._site = ""

    def build(self, requirements: list[str]) -> int:
        """The installer's exit code."""
        shutil.rmtree(self._folder, ignore_errors=True)
        os.makedirs(os.path.dirname(self._folder), exist_ok=True)
        if self._uv is None:
            code = _call([self._python, "-I", "-m", "venv", "--without-pip", self._folder])
        else:
            code = _call([self._uv, "venv", "--quiet", "--no-project", "--python", self._python, self._folder])
        if code != 0:
            return code
        ask = [self._own_python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        self._site = subprocess.check_output(ask, universal_newlines=True).strip()
        path = self._folder + "/requirements.txt"
        with open(path, "w", encoding="utf-8") as stream:
            stream.write("\n".join(requirements) + "\n")
        code = self._install(path)
        if code == 0:
            self._show_base()
            self._put_scripts()
        return code

    def _install(self, path: str) -> int:
        if self._uv is None:
            self._show_base()  # pip looks along sys.path
            python = ["--python", self._own_python]
            return _call([self._python, "-m", "pip", "--disable-pip-version-check", *python, "install", "-r", path])
        for name, folder in self._base_packages():
            _put_metadata(folder, self._site + "/" + name)
        code = _call([self._uv, "pip", "install", "--python", self._own_python, "-r", path])
        for name in os.listdir(self._site):
            folder = self._site + "/" + name
            if name.endswith(".dist-info") and _read(folder + "/INSTALLER").strip() == _MARK:
                shutil.rmtree(folder)
        return code

    def _base_packages(self) -> Iterator[tuple[str, str]]:
        """Name and folder of the metadata of each package of the base; the first of a name counts."""
        names = set()
        for site in self._base["site"]:
            for name in sorted(os.listdir(site)):
                if name.endswith(".dist-info") and name not in names:
                    names.add(name)
                    yield name, site + "/" + name

    def _show_base(self) -> None:
        """Put the base's packages, and what its .pth files name, behind the layer's own."""
        with open(self._site + "/_trainmaster_base.pth", "w", encoding="utf-8") as stream:
            stream.writelines("import site; site.addsitedir(%r)\n" % folder for folder in self._base["site"])

    def _put_scripts(self) -> None:
        """Commands of the base's packages, such as torchrun, that run with the layer's Python."""
        for _, folder in self._base_packages():
            parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
            parser.optionxform = str  # type: ignore[assignment, method-assign]
            try:
                parser.read_string(_read(folder + "/entry_points.txt"))
            except configparser.Error:
                continue
            for name, target in parser.items("console_scripts") if parser.has_section("console_scripts") else ():
                module, _, function = target.partition("[")[0].strip().partition(":")
                path = self._folder + "/bin/" + os.path.basename(name)
                if not os.path.lexists(path) and module and function:
                    with open(path, "w", encoding="utf-8") as stream:
                        stream.write(_SCRIPT % (self._own_python, module, function.split(".")[0], function))
                    os.chmod(path, 0o755)  # noqa: S103 - a program


# sh executes Python with the file, which Python reads as a text: paths in `#!` lines are limited to 127 bytes.
_SCRIPT = """#!/bin/sh
'''exec' "%s" "$0" "$@"
' '''
import sys
from %s import %s
sys.exit(%s())
"""


def _put_metadata(source: str, target: str) -> None:
    if os.path.exists(target) or not os.path.isfile(source + "/METADATA"):
        return
    os.mkdir(target)
    shutil.copyfile(source + "/METADATA", target + "/METADATA")
    name = os.path.basename(target)
    files = ("METADATA", "INSTALLER", "RECORD")
    with open(target + "/INSTALLER", "w") as stream:
        stream.write(_MARK + "\n")
    with open(target + "/RECORD", "w") as stream:
        stream.write("".join("%s/%s,,\n" % (name, file) for file in files))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        return ""


def _call(command: list[str]) -> int:
    return subprocess.call(command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    _order = json.loads(sys.argv[1])
    sys.exit(Layer(_order["folder"], _order["python"], _order["base"], _order["uv"]).build(_order["requirements"]))
