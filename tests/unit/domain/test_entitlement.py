from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.domain.sharing.usage import ShareClaim, entitlements

CLAIMS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.builds(ShareClaim, st.floats(0.01, 100), st.floats(0, 1)),
    max_size=8,
)


def test_who_wants_everything_gets_by_weight() -> None:
    assert entitlements({"a": ShareClaim(2, 1), "b": ShareClaim(1, 1), "c": ShareClaim(1, 1)}) == pytest.approx(
        {"a": 0.5, "b": 0.25, "c": 0.25}
    )


def test_what_one_does_not_want_goes_to_the_others() -> None:
    assert entitlements({"a": ShareClaim(1, 0.1), "b": ShareClaim(1, 1)}) == pytest.approx({"a": 0.1, "b": 0.9})
    assert entitlements({"a": ShareClaim(1, 0), "b": ShareClaim(1, 0.3)}) == pytest.approx({"a": 0, "b": 0.3})
    assert entitlements({}) == {}


@given(CLAIMS)
def test_nobody_is_due_more_than_is_wanted_and_nothing_is_left_that_somebody_wants(
    claims: dict[str, ShareClaim],
) -> None:
    due = entitlements(claims)
    assert all(0 <= due[name] <= claim.wanted + 1e-9 for name, claim in claims.items())
    wanted = sum(claim.wanted for claim in claims.values())
    assert sum(due.values()) == pytest.approx(min(1.0, wanted), abs=1e-6)


@given(CLAIMS)
def test_nobody_who_lacks_something_has_less_for_the_weight_than_another(claims: dict[str, ShareClaim]) -> None:
    due = entitlements(claims)
    for name, claim in claims.items():
        if due[name] < claim.wanted - 1e-9:
            own = due[name] / claim.weight
            assert all(due[other] / claims[other].weight <= own + 1e-6 for other in claims)
