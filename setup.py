"""Packages the web pages with the platform if they are built: ``web/dist`` is no Python package."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PAGES = Path("web", "dist")


class BuildWithPages(build_py):
    def run(self) -> None:
        super().run()
        if (PAGES / "index.html").is_file() and not self.editable_mode:
            shutil.copytree(PAGES, Path(self.build_lib) / PAGES, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithPages})
