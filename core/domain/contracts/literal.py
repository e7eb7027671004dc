"""Shell texts of other systems' users, who know nothing of the platform's placeholders."""

from __future__ import annotations

from core.domain.contracts.tf_config import PLACEHOLDER


def past_placeholders(script: str, variable: str) -> tuple[str, dict[str, str]]:
    """A shell text that does what ``script`` does and in which nothing is filled in, and the environment that it needs.

    A Python function may well say ``f"{job_name}"`` itself. Such a script travels as the value of ``variable``; all others
    stay as they are, to be read where jobs are shown.
    """
    if not PLACEHOLDER.search(script):
        return script, {}
    return f'eval "${variable}"', {variable: script}
