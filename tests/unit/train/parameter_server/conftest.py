from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[4] / "examples" / "parameter_server"
# Plain names, as scripts beside each other have them: out of sys.modules again when this folder's tests are done.
MODULES = ("wire", "shard", "server")


@pytest.fixture(scope="package", autouse=True)
def example() -> Iterator[None]:
    saved = {name: sys.modules.pop(name, None) for name in MODULES}
    sys.path.insert(0, str(EXAMPLE))
    try:
        for name in MODULES:
            importlib.import_module(name)
        yield
    finally:
        sys.path.remove(str(EXAMPLE))
        for name, module in saved.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


@pytest.fixture
def wire() -> ModuleType:
    return sys.modules["wire"]


@pytest.fixture
def shard() -> ModuleType:
    return sys.modules["shard"]


@pytest.fixture
def server() -> ModuleType:
    return sys.modules["server"]
