"""How far a start of the embedded platform is."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.settings import read_settings
from embedded import supervisor
from embedded.errors import CannotStart
from embedded.supervisor import Supervisor, UpOptions


@pytest.mark.parametrize(("does_answer", "log"), [(False, "api.log"), (True, "scheduler.log")])
def test_a_start_that_is_given_up_says_what_it_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], does_answer: bool, log: str
) -> None:
    monkeypatch.setattr(supervisor, "_answers", lambda _url, **_: does_answer)
    monkeypatch.setattr(supervisor, "_ticks", lambda _settings: 7)
    monkeypatch.setattr(supervisor, "READY_WITHIN_S", 0.0)
    starting = Supervisor(UpOptions(tmp_path, "127.0.0.1", 0))
    with pytest.raises(CannotStart, match=rf"not ready 0 s after .* waiting for .*\(logs/{log}\) in {tmp_path}"):
        starting._await_ready([], "http://127.0.0.1:1", read_settings(), 7)
    assert capsys.readouterr().err.startswith("Starting: waiting for ")
