from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.domain.ids import AttemptId
from core.settings import Settings
from core.tokens import attempt_token, new_user_token, platform_key, token_digest, verify_attempt_token

KEY = b"k" * 32
ATTEMPT = AttemptId("attempt-06f9s2m3k1q7w8x9y0z1")


def test_an_attempts_token_can_be_made_again_and_names_its_attempt() -> None:
    token = attempt_token(KEY, ATTEMPT)
    assert token == attempt_token(KEY, ATTEMPT)
    assert token.startswith(f"tma_{ATTEMPT}.")
    assert verify_attempt_token(KEY, token) == ATTEMPT


@pytest.mark.parametrize(
    "token",
    [
        "",
        "tma_",
        "tma_x",
        "tm_abc",
        f"tma_{ATTEMPT}.",
        f"tma_{ATTEMPT}.AAAA",
        "tma_.x",
        f"tma_{ATTEMPT}.é",
        attempt_token(b"other" * 8, ATTEMPT),
        attempt_token(KEY, ATTEMPT).replace("z1", "z2", 1),
    ],
)
def test_what_we_did_not_sign_is_nobodys(token: str) -> None:
    assert verify_attempt_token(KEY, token) is None


def test_user_tokens_are_fresh_and_only_their_digest_is_reported() -> None:
    first, second = new_user_token(), new_user_token()
    assert first != second
    assert first.startswith("tm_")
    assert len(token_digest(first)) == 64


def test_everybody_gets_the_same_platform_key(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: platform_key(settings), range(16)))
    assert len(keys) == 1
    assert [path.name for path in settings.home.iterdir()] == ["secret.key"]
    assert (settings.home / "secret.key").stat().st_mode & 0o777 == 0o600


def test_a_broken_key_file_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_text("short\n")
    with pytest.raises(ValueError, match="holds no key"):
        platform_key(Settings(home=tmp_path))
