from __future__ import annotations

import pytest

from api.http.routing import content_length


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("0", 0),
        ("17", 17),
        ("0017", 17),
        ("9" * 5_000, 10**18),  # longer than Python reads
        ("0" * 5_000, 0),
        ("", None),
        ("-1", None),
        ("+1", None),
        ("1_0", None),
        (" 1", None),
        ("1\n", None),
        ("\u00b2", None),  # these are digits, too
        ("\u0663", None),
    ],
)
def test_a_length_is_plain_digits(text: str, bytes_: int | None) -> None:
    assert content_length(text) == bytes_
