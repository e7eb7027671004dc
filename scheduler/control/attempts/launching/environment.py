"""What a user should know about the environment of an attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from core import telemetry
from core.domain.contracts import AttemptContext, TrialContext, render
from core.domain.jobs.layout import Layout
from core.telemetry import SpanPlace
from core.tokens import attempt_token
from scheduler.control.attempts.attempt_snapshot import AttemptFacts, JobFacts
from scheduler.control.context import ControlContext
from scheduler.planning.phrases import all_of

_LAYOUT: Final = "TRAINMASTER_LAYOUT"
# Replicas of one role differ by numbers alone. Of a large role, only some from both ends are rendered: each lists all
# others, and rendering every one would take longer than the lease.
_DRAWN_OF_ROLE: Final = 64


@dataclass(frozen=True, slots=True)
class EnvironmentNote:
    """``clashes``: the user's variables that override the platform's. ``omitted``: the platform's that Linux cannot
    take.
    """

    clashes: tuple[str, ...]
    omitted: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.clashes or self.omitted)

    @property
    def sentence(self) -> str:
        sentences = []
        if self.clashes:
            verb = "is" if len(self.clashes) == 1 else "are"
            sentences.append(f"The job's own {all_of(self.clashes)} {verb} used instead of the platform's.")
        if self.omitted:
            is_single = len(self.omitted) == 1
            advice = (
                f"read {_LAYOUT} instead" if _LAYOUT not in self.omitted else "ask for fewer replicas to have them all"
            )
            sentences.append(
                f"{all_of(self.omitted)} {'is' if is_single else 'are'} too large for Linux and "
                f"{'is' if is_single else 'are'} left out; {advice}."
            )
        return " ".join(sentences)

    def to_json(self) -> dict[str, Any]:
        return {"clashes": list(self.clashes), "omitted": list(self.omitted)}


def attempt_context(
    control: ControlContext, job: JobFacts, attempt: AttemptFacts, resume_from: str | None
) -> AttemptContext:
    """What the contracts need to know of the attempt."""
    return AttemptContext(
        job_id=job.id,
        job_name=job.name,
        attempt_id=attempt.id,
        attempt_number=attempt.number,
        project=job.project,
        api_url=control.api_url,
        resume_from=resume_from,
        region=control.region,
        trial=_trial(job),
        token=attempt_token(control.secret_key, attempt.id),
        traceparent=telemetry.traceparent(SpanPlace(job.id, attempt.id)),
    )


def _trial(job: JobFacts) -> TrialContext | None:
    if job.trial is None:
        return None
    about = job.trial
    return TrialContext(about["study_id"], about["study"], int(about["number"]), about["parameters"])


def environment_note(job: JobFacts, layout: Layout, context: AttemptContext) -> EnvironmentNote:
    """Clashes and omissions of all replicas together."""
    # A secret's name is enough: whatever its value is, it is not the platform's.
    secrets = dict.fromkeys(job.spec.secrets, "")
    clashes: set[str] = set()
    omitted: set[str] = set()
    for role in job.spec.roles:
        replicas = [replica for replica in layout.replicas if replica.role == role]
        half = _DRAWN_OF_ROLE // 2
        drawn = replicas if len(replicas) <= _DRAWN_OF_ROLE else [*replicas[:half], *replicas[-half:]]
        for replica in drawn:
            rendered = render(job.spec, layout, replica, context, secrets=secrets)
            clashes.update(rendered.clashes)
            omitted.update(rendered.omitted)
    return EnvironmentNote(tuple(sorted(clashes)), tuple(sorted(omitted)))
