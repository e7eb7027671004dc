"""Follows a study: prints its trials as they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from trainmaster.cli.terminal import output
from trainmaster.cli.terminal.exits import ExitCode
from trainmaster.cli.tuning.study_views import parent_words, point_words, result_words, show_study, warn_of_same_names

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.wire.studies import StudyDetail, TrialView

_WATCH_S: Final = 1.0
_PAGE: Final = 200  # trials of one request


def follow_study(client: Client, study: str, *, as_json: bool) -> int:
    """Print trials as they end, until the study has ended; returns the exit code."""
    from trainmaster.wire.studies import TERMINAL_STUDY_STATES

    ended = EndedTrials(client)
    last_note = ""
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
        is_paused = detail.state == "paused"
        if is_paused != was_paused and detail.state not in TERMINAL_STUDY_STATES:
            was_paused = is_paused
            output.note(f"Paused. {detail.reason}".strip() if is_paused else "Resumed.", "yellow")
        if detail.state in TERMINAL_STUDY_STATES:
            break
        time.sleep(_WATCH_S)  # noqa: TID251 (the command line is a boundary)
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
