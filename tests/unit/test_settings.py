"""Settings that only look possible are refused by name."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from core.settings import BadSettings, Settings, read_settings


def test_the_fake_executor_cannot_be_chosen_by_accident(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="TRAINMASTER_EXECUTOR=fake runs no job"):
        Settings(executor="fake")
    monkeypatch.setenv("TRAINMASTER_EXECUTOR", "fake")
    monkeypatch.setenv("TRAINMASTER_SECRET_KEY", "do-not-show-this")
    with pytest.raises(BadSettings, match="TRAINMASTER_EXECUTOR=fake runs no job") as refused:
        read_settings()
    assert "do-not-show-this" not in str(refused.value)
    monkeypatch.setenv("TRAINMASTER_TEST_FAKE_EXECUTOR", "1")
    assert read_settings().executor == "fake"
