"""A platform that runs from installed packages, without a checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core import worker_packages
from core.settings import BadSettings, Settings
from core.worker_packages import RUNTIME, SERVING, find_package, missing_pages, own_automl, own_server
from embedded.errors import CannotStart
from embedded.supervisor import Supervisor, UpOptions
from scheduler.executor_factory import make_executor

ROOT = Path(__file__).parents[2]
SENTENCE = r"need the package trainmaster_runtime, .*`pip install \./worker_images/runtime`.*`trainmaster up --executor"


@pytest.fixture
def _no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_packages, "CHECKOUT", tmp_path / "no checkout")


@pytest.fixture
def _nothing_installed(_no_checkout: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("trainmaster_runtime", "trainmaster_serving", "trainmaster_automl"):
        monkeypatch.setitem(sys.modules, name, None)


def test_a_checkout_has_all_packages() -> None:
    assert find_package(RUNTIME) == ROOT / "worker_images" / "runtime" / "trainmaster_runtime"
    serving = ROOT / "worker_images" / "serving"
    assert own_server() == ("python", str(serving / "trainmaster_serving" / "__main__.py"))
    assert own_automl() == ("python", str(serving / "trainmaster_automl" / "__main__.py"))


@pytest.mark.usefixtures("_no_checkout")
def test_an_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages" / "trainmaster_serving"
    installed.mkdir(parents=True)
    for name in ("__init__.py", "__main__.py"):
        (installed / name).touch()
    monkeypatch.syspath_prepend(installed.parent)
    monkeypatch.delitem(sys.modules, "trainmaster_serving", raising=False)
    assert find_package(SERVING) == installed
    assert own_server() == ("python", str(installed / "__main__.py"))


@pytest.mark.usefixtures("_nothing_installed")
def test_a_platform_of_plain_processes_without_a_runtime_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=SENTENCE):
        Supervisor(UpOptions(tmp_path, "127.0.0.1", 0)).run()
    with pytest.raises(BadSettings, match=SENTENCE):
        make_executor(Settings(home=tmp_path))


@pytest.mark.parametrize("is_built", [True, False])
def test_built_web_pages_are_packaged(tmp_path: Path, is_built: bool) -> None:
    shutil.copy(ROOT / "setup.py", tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "platform"\nversion = "1"\n[tool.setuptools]\npackages = []\n'
    )
    (tmp_path / "web/dist/assets").mkdir(parents=True)
    (tmp_path / "web/dist/assets/index-abc.js").touch()
    if is_built:
        (tmp_path / "web/dist/index.html").touch()
    build = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", "lib"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=60)
    pages = tmp_path / "lib/web/dist"
    assert (pages / "assets/index-abc.js").is_file() is is_built
    reason = missing_pages(pages)
    assert (reason is None) is is_built
    assert is_built or "not part of this installation" in str(reason)


def test_a_checkout_says_how_to_build_its_pages(tmp_path: Path) -> None:
    (tmp_path / "build.py").touch()
    assert "`python3 dev.py web` in the checkout, on" in str(missing_pages(tmp_path / "dist"))
