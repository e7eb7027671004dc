"""Shell texts of users of other systems, in which the platform's placeholders must not be expanded."""

from __future__ import annotations

from core.domain.contracts.tf_config import PLACEHOLDER


def past_placeholders(script: str, variable: str) -> tuple[str, dict[str, str]]:
    """An equivalent shell text without placeholders to expand, and the environment that it needs.

    A Python function may well contain ``f"{job_name}"``. Such a script travels as the value of ``variable``; all others
    stay
    readable where jobs are shown.
    """
    if not PLACEHOLDER.search(script):
        return script, {}
    return f'eval "${variable}"', {variable: script}
