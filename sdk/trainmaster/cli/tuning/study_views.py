"""How studies and their trials are printed, at once and as trials end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from trainmaster.cli.terminal import output
from trainmaster.cli.terminal.exits import ExitCode

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.studies import StudySpec
    from trainmaster.wire.studies import StudyBest, StudyDetail, StudyView, StudyWinner, TrialView

_AWAITED: Final = ("running", "succeeded")  # states of a trial and its job while a last report is awaited
_LONG: Final = 48  # characters shown of a reason shared by several rows
WATCH_S: Final = 1.0
_PAGE: Final = 200  # trials of one request


def show_study(detail: StudyDetail) -> None:
    console = output.answers()
    pairs: list[tuple[str, Any]] = [
        ("Study", f"{detail.name} ({detail.id})"),
        ("State", output.state_text(detail.state, console)),
        ("Reason", detail.reason or None),
        ("Note", detail.note or None),
        ("Goal", goals_words(detail)),
        (
            "Algorithm",
            f"{detail.algorithm}: {detail.algorithm_reason}" if detail.algorithm_reason else detail.algorithm,
        ),
        ("Trials", progress_words(detail)),
        ("Waiting", wait_words(detail)),
        ("Cloned from", detail.cloned_from),
        ("GPU-hours", f"{detail.gpu_hours:.2f}" if detail.gpu_hours else None),
    ]
    if detail.best is not None and len(detail.metrics) > 1:
        pairs.append(("Best", f"{best_words(detail)}; `study best` shows them"))
    elif detail.best is not None:
        pairs.append(("Best", f"{result_words(detail.best, detail.metrics)} (trial {detail.best.number})"))
        pairs.append(("", point_words(detail.best)))
    if detail.winner is not None:
        pairs.append(("Winner", winner_words(detail.winner)))
    output.print_pairs(pairs)


def wait_words(detail: StudyDetail) -> str | None:
    """Why trials wait, unless the note says that they can never start."""
    from trainmaster.cli.jobs.listing import waiting_text

    reason = detail.wait_reason
    return None if reason is None or (reason.is_infeasible and detail.note) else waiting_text(reason)


def winner_words(winner: StudyWinner) -> str:
    """The registration of the best trial."""
    job = f"job {winner.job}, {winner.job_state}" if winner.job else "its job was deleted"
    if winner.model is None:
        return f"trial {winner.trial} ({job}); its version was deleted"
    why = f": {winner.reason}" if winner.reason else ""
    return f"trial {winner.trial} as {winner.model}@{winner.version}, {winner.version_state} ({job}){why}"


def goals_words(detail: StudyDetail) -> str:
    return ", ".join(f"{metric.goal.value} {metric.name}" for metric in detail.spec.metrics)


def no_best(detail: StudyDetail) -> str:
    from trainmaster.wire.studies import TERMINAL_STUDY_STATES

    if detail.state not in TERMINAL_STUDY_STATES:
        return "No trial has a result yet."
    if (
        detail.state == "succeeded" and detail.reason
    ):  # such as a space fully known by warm start; the reason names the best
        return detail.reason
    return f"No trial has a result. {detail.reason}".strip()


def best_pairs(best: StudyBest) -> list[tuple[str, Any]]:
    [trial] = best.trials
    return [
        ("Trial", f"{trial.number}" + (f" (job {trial.job})" if trial.job else "")),
        ("Result", result_words(trial, best.metrics)),
        *((name, value_text(value)) for name, value in trial.parameters.items()),
    ]


def print_trials(metrics: list[str], trials: list[TrialView], *, study_reason: str = "") -> None:
    console = output.answers()
    shortened, footnotes = _short_reasons([trial.reason for trial in trials], study_reason)
    output.print_table(
        ("TRIAL", "STATE", *(name.upper() for name in metrics), "JOB", "PARAMETERS", "REASON"),
        [
            (
                trial.number,
                output.state_text(_state(trial), console),
                *(None if trial.result is None else value_text(trial.result.get(name)) for name in metrics),
                trial.job,
                point_words(trial),
                ". ".join(
                    filter(None, (parent_words(trial), shortened.get(trial.reason, trial.reason) or _wait(trial)))
                )
                or None,
            )
            for trial in trials
        ],
        empty="No trials yet.",
        wraps=("PARAMETERS", "REASON"),
    )
    if footnotes:
        output.say()
    for line in footnotes:
        output.say(line)


def _state(trial: TrialView) -> str:
    """The job's state for a running trial, unless its job has ended and its metric is awaited."""
    from trainmaster.wire.jobs import TERMINAL_STATES

    is_open = trial.state == "running" and trial.job_state not in TERMINAL_STATES
    return trial.job_state or trial.state if is_open else trial.state


def _wait(trial: TrialView) -> str:
    return "job ended, waiting for its metric" if (trial.state, trial.job_state) == _AWAITED else ""


def parent_words(trial: TrialView) -> str:
    return "" if trial.parent is None else f"resumes from trial {trial.parent}"


def _short_reasons(reasons: list[str], study_reason: str) -> tuple[dict[str, str], list[str]]:
    """Short forms of reasons that are shared by several rows or by the study, and footnotes with the full reasons."""
    shortened: dict[str, str] = {}
    footnotes: list[str] = []
    for reason, count in Counter(reasons).items():
        if reason and reason == study_reason:
            shortened[reason] = "the study ended"
        elif count > 1 and len(reason) > _LONG:
            mark = f"({len(footnotes) + 1})"
            shortened[reason] = f"{reason[:_LONG].rstrip()}… {mark}"
            footnotes.append(f"{mark} {reason}")
    return shortened, footnotes


def warn_of_same_names(detail: StudyDetail) -> None:
    """Print a hint if other active studies have the same name, which refers to the newest."""
    if detail.namesakes:
        shown = ", ".join(detail.namesakes)
        namesakes = "another study" if len(detail.namesakes) == 1 else "other studies"
        output.note(
            f"Also active: {namesakes} named {detail.name} ({shown}). The name refers to the newest; use an ID for "
            f"another.",
            "yellow",
        )


def tell_winner(made: StudyDetail) -> None:
    """Print a hint that a clone will register its best trial, too."""
    winner = made.spec.winner
    if winner is None:
        return
    aliases = ", ".join(winner.aliases)
    alias = f", with the alias {aliases} unless it points to a better version" if aliases else ""
    output.note(
        f"Its best trial will be registered as a version of the model {winner.model}{alias}; `--set winner=null` "
        "clones without it."
    )


def print_spec(spec: StudySpec, *, as_json: bool) -> None:
    """Print the canonical spec."""
    from trainmaster.cli.jobs.spec_files import study_yaml

    output.print_result(spec, study_yaml(spec).rstrip(), as_json=as_json)


def progress_words(view: StudyView) -> str:
    ended = sum(view.trials.values()) - view.trials.get("running", 0)
    of = f" of {view.budget_trials}" if view.budget_trials is not None else ""
    counts = {**view.trials, "running": view.trials.get("running", 0) - view.waiting, "waiting": view.waiting}
    more = [
        f"{counts[state]} {state}"
        for state in ("running", "waiting", "stopped", "failed", "cancelled")
        if counts.get(state, 0) > 0
    ]
    return f"{ended}{of} ended" + (f" ({', '.join(more)})" if more else "")


def best_words(view: StudyView) -> str | None:
    """The best trial; with several metrics, the size of the Pareto front."""
    if view.best is None:
        return None
    if len(view.metrics) > 1 and view.front_size is not None:
        return f"{view.front_size} trial{'s' if view.front_size > 1 else ''} on the Pareto front"
    return f"{result_words(view.best, view.metrics[:1])} (trial {view.best.number})"


def result_words(trial: TrialView, metrics: list[str]) -> str:
    return ", ".join(f"{name} {value_text((trial.result or {}).get(name))}" for name in metrics)


def point_words(trial: TrialView) -> str:
    return " ".join(f"{name}={value_text(value)}" for name, value in trial.parameters.items())


def value_text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- as they end ----------------------------------------------------------------------------------------------------


def follow_study(client: Client, study: str, *, as_json: bool) -> int:
    """Print trials as they end, until the study has ended; returns the exit code."""
    from trainmaster.wire.studies import TERMINAL_STUDY_STATES

    ended = EndedTrials(client)
    last_note = last_wait = ""
    was_paused = False
    detail = client.get_study(study)
    warn_of_same_names(detail)
    while True:
        count = sum(detail.trials.values()) - detail.trials.get("running", 0)
        if count > len(ended.reported):
            for trial in ended.new(detail.id):
                tell_trial(trial, detail, as_json=as_json)
        if detail.note and detail.note != last_note:
            last_note = detail.note
            output.note(detail.note, "yellow")
        wait = wait_words(detail)
        if wait and wait != last_wait and detail.wait_reason and detail.wait_reason.code != "just_queued":
            last_wait = wait
            output.note(f"{output.count(detail.waiting, 'trial')} waiting: {wait}", "dim")
        is_paused = detail.state == "paused"
        if is_paused != was_paused and detail.state not in TERMINAL_STUDY_STATES:
            was_paused = is_paused
            output.note(f"Paused. {detail.reason}".strip() if is_paused else "Resumed.", "yellow")
        if detail.state in TERMINAL_STUDY_STATES:
            break
        time.sleep(WATCH_S)  # noqa: TID251 (the command line is a boundary)
        detail = client.get_study(detail.id)  # the name may soon refer to a newer study
    if as_json:
        output.print_json_line(detail)
    else:
        show_study(detail)
    return ExitCode.OK if detail.state == "succeeded" else ExitCode.FAILED


class EndedTrials:
    """Reports each ended trial once. Leading pages of only ended trials are not read again: there may be thousands."""

    def __init__(self, client: Client) -> None:
        self.reported: set[int] = set()
        self._client = client
        self._cursor: str | None = None

    def new(self, study_id: str) -> Iterator[TrialView]:
        """Ended trials that were not reported yet, by number."""
        cursor, is_over = self._cursor, True
        while True:
            page = self._client.list_trials_page(study_id, limit=_PAGE, cursor=cursor)
            for trial in page.items:
                if trial.state == "running":
                    is_over = False
                elif trial.number not in self.reported:
                    self.reported.add(trial.number)
                    yield trial
            cursor = page.next_cursor
            if cursor is None:
                return
            if is_over:
                self._cursor = cursor


def tell_trial(trial: TrialView, detail: StudyDetail, *, as_json: bool) -> None:
    if as_json:
        output.print_json_line(trial)
        return
    # With several metrics, "best" is only by the first.
    is_best = len(detail.metrics) == 1 and detail.best is not None and detail.best.number == trial.number
    why = ". ".join(filter(None, (parent_words(trial), trial.reason)))
    why = f": {why}" if why else ""
    result = f" {result_words(trial, detail.metrics)}" if trial.result is not None else ""
    output.say(
        f"trial {trial.number} {trial.state}{result}{' (best so far)' if is_best else ''}  {point_words(trial)}{why}"
    )
