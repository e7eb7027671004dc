"""A part of the platform that is given an argument which it does not know starts nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import api.__main__
import api.openapi
import scheduler.__main__


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (api.__main__.main, ["openapi", "--check"]),
        (api.openapi.main, ["--chekc"]),
        (scheduler.__main__.main, ["worker", "--chekc"]),
    ],
)
def test_unknown_arguments_are_refused_with_the_usage(
    main: Callable[[list[str]], Any],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it has begun")

    for module, name in [(api.__main__, "get_settings"), (api.openapi, "render"), (scheduler.__main__, "get_settings")]:
        monkeypatch.setattr(module, name, never)
    with pytest.raises(SystemExit) as ended:
        main(words)
    output = capsys.readouterr().err
    assert ended.value.code == 2
    assert output.startswith("usage: python -m ")
    assert words[-1] in output
