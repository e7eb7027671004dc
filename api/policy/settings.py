"""The planner's settings in the words in which people read and write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from trainmaster.spec.errors import FieldError
from trainmaster.spec.quantity import parse_duration_s
from trainmaster.spec.suggest import suggest
from trainmaster.wire.policy import SettingView

from core.domain.errors import InvalidRequest
from core.domain.sharing.policy import Defragment, Policy, QueueOrder, parse_policy

Kind = Literal["choice", "switch", "duration", "durations", "number"]
OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class Setting:
    """``field``: its name in :class:`Policy`; ``name``: for people, without the unit."""

    field: str
    kind: Kind
    meaning: str
    choices: tuple[str, ...] = ()
    can_be_off: bool = False

    @property
    def name(self) -> str:
        return self.field.removeprefix("is_").removesuffix("_s")


SETTINGS: Final = (
    Setting(
        "order", "choice",
        "Who comes first among jobs of equal priority and equal share: fifo, the oldest; shortest-first, the one with the "
        "least GPU time still to run; fair-finish, those with the least time still to run, and the longest ones in time for "
        "everything to be done early; attained-service, those that have had the least so far.",
        tuple(QueueOrder),
    ),
    Setting(
        "is_fair", "switch",
        "Projects, and users inside one, take turns by their shares and weights; off: all jobs stand in one line.",
    ),
    Setting("usage_weight", "number", "How much the past counts beside the present in a share, from 0 to 1."),
    Setting("usage_half_life_s", "duration", "After this time past usage counts half."),
    Setting(
        "levels_gpu_s", "durations",
        "Where the levels of attained service end, in time of one GPU: a job goes down one level when it has had so much.",
    ),
    Setting(
        "starvation_s", "duration", "Who has waited for so long without resources counts as of the first level again."
    ),
    Setting("preempts_priority", "switch", "A job of larger priority may take the place of jobs of smaller priority."),
    Setting(
        "reclaims", "switch",
        "Projects get back what is guaranteed to them, by preemption of jobs of those who borrow it.",
    ),
    Setting("preempts_shares", "switch", "Projects below their share may take from jobs of those above theirs."),
    Setting(
        "time_slice_s", "duration",
        "Jobs of one priority take turns: who has run for so long gives place to who comes first by order "
        "(attained-service: who is on a lower level of levels_gpu; fifo: who queued later than one that waits); off: who runs stays.",
        can_be_off=True,
    ),
    Setting(
        "rotation_s", "duration",
        "A turn of jobs of one priority that order treats as equal (attained-service: on one level of levels_gpu; fifo: all of "
        "them; else those of which nobody knows how long they run): who has run for so long gives place to who has had fewer "
        "such turns, or as many and is older, and to who comes first by order; off: equal jobs do not take turns.",
        can_be_off=True,
    ),
    Setting("min_run_time_s", "duration", "Nobody is preempted, by whatever right, before having run for so long."),
    Setting("grace_s", "duration", "What a preempted job gets for its last checkpoint."),
    Setting("shrinks", "switch", "Elastic jobs give back replicas before anybody is preempted."),
    Setting(
        "restart_cost_s", "duration",
        "What a preemption is taken to cost a job besides the work since its last checkpoint.",
    ),
    Setting(
        "defragment", "choice",
        "Moves of running jobs that make room for a large gang: off, propose (shown, not done) or apply.",
        tuple(Defragment),
    ),
    Setting(
        "quarantines", "switch",
        "A node on which jobs end for reasons of the machine takes no new work for a time (`trainmaster nodes` shows it).",
    ),
    Setting(
        "quarantine_failures", "number",
        "So many suspicious ends of different jobs on one node, without a success between them, quarantine it; a certain fault of "
        "the hardware does so alone.",
    ),
    Setting(
        "quarantine_window_s", "duration",
        "Suspicious ends count together if they are no further apart; at most 7 days.",
    ),
    Setting(
        "quarantine_release_s", "duration",
        "After this time a quarantined node takes work again by itself, twice as long each time in a row; off: only when an "
        "administrator releases it.",
        can_be_off=True,
    ),
    Setting(
        "quarantine_share", "number",
        "The part, from 0 to 1, of the nodes of one kind that may be quarantined at once; one always may, the last one that "
        "takes work never.",
    ),
    Setting(
        "keeps_for_gpus", "switch",
        "Jobs without GPUs leave of every node the CPUs and memory that its free GPUs will need, as jobs that run and wait ask "
        "for them, unless they could never run otherwise; off: they only prefer other places.",
    ),
)  # fmt: skip
BY_NAME: Final = {setting.name: setting for setting in SETTINGS} | {setting.field: setting for setting in SETTINGS}


def view_of(setting: Setting, policy: Policy) -> SettingView:
    value = getattr(policy, setting.field)
    return SettingView(
        name=setting.name,
        kind=setting.kind,
        value=list(value) if isinstance(value, tuple) else value,
        text=text_of(setting, value),
        default_text=text_of(setting, getattr(Policy(), setting.field)),
        choices=list(setting.choices),
        can_be_off=setting.can_be_off,
        meaning=setting.meaning,
    )


def text_of(setting: Setting, value: Any) -> str:
    """``value`` as :func:`read` takes it."""
    if value is None:
        return OFF
    match setting.kind:
        case "choice":
            return str(value)
        case "switch":
            return "on" if value else OFF
        case "duration":
            return duration_text(value)
        case "durations":
            return ",".join(duration_text(each) for each in value)
        case "number":
            return f"{value:g}"


def duration_text(seconds: float) -> str:
    """``10m``, ``1h30m``, ``7d``, ``0s``."""
    left = round(seconds * 1000) / 1000
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{int(count)}{unit}")
    if left or not parts:
        parts.append(f"{left:g}s")
    return "".join(parts)


def read_settings(given: Mapping[str, Any], *, at: str = "settings") -> dict[str, Any]:
    """``given`` by the names of :class:`Policy`, in its units. ``default`` becomes what the setting was at first.

    Args:
        at: where they stand in the request.

    Raises:
        InvalidRequest: settings that are none, and values that they cannot have: ``errors`` has all of them.
    """
    found: dict[str, Any] = {}
    wrong: list[InvalidRequest] = []
    for name, value in given.items():
        try:
            field, read_value = _read_one(name, value, at, found)
            found[field] = read_value
        except InvalidRequest as mistake:
            wrong.append(mistake)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise InvalidRequest(
            f"{len(wrong)} of the settings cannot be as given, so none of them is taken.",
            field=wrong[0].field,
            errors=[{"path": mistake.field, "message": mistake.sentence, "hint": None} for mistake in wrong],
        )
    return found


def _read_one(name: str, value: Any, at: str, before: Mapping[str, Any]) -> tuple[str, Any]:
    setting = BY_NAME.get(name)
    if setting is None:
        known = [each.name for each in SETTINGS]
        meant = suggest(name, known)
        hint = f" Did you mean {meant}?" if meant else ""
        raise InvalidRequest(
            f"There is no setting {name!r}; the settings are {', '.join(known)}.{hint}", field=f"{at}.{name}"
        )
    if setting.field in before:
        raise InvalidRequest(f"{setting.name} stands there twice.", field=f"{at}.{name}")
    try:
        found = read(setting, value)
        parse_policy({setting.field: found})
    except InvalidRequest as wrong:
        sentence = wrong.sentence.replace(setting.field, setting.name)
        raise InvalidRequest(sentence, field=f"{at}.{setting.name}") from wrong
    return setting.field, found


def read(setting: Setting, value: Any) -> Any:
    """``value`` as :class:`Policy` has it. Raises ``InvalidRequest``."""
    if value == "default":
        return getattr(Policy(), setting.field)
    if setting.can_be_off and (value is None or value is False or value == OFF):
        return None
    match setting.kind:
        case "choice":
            if value not in setting.choices:
                raise _wrong(setting, f"is one of {', '.join(setting.choices)}, not {_short(value)}")
            return value
        case "switch":
            return _switch(setting, value)
        case "duration":
            return _duration(setting, value)
        case "durations":
            each = value.split(",") if isinstance(value, str) else value
            if not isinstance(each, list) or not each:
                raise _wrong(setting, "is a list of times, such as 1h,8h,64h")
            return [_duration(setting, item) for item in each]
        case "number":
            return _number(setting, value)


_SWITCH: Final = {"on": True, "true": True, "yes": True, OFF: False, "false": False, "no": False}


def _switch(setting: Setting, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _SWITCH:
        return _SWITCH[value.strip().lower()]
    raise _wrong(setting, f"is on or off, not {_short(value)}")


def _duration(setting: Setting, value: Any) -> float:
    try:
        return parse_duration_s(value.strip() if isinstance(value, str) else value)
    except FieldError as wrong:
        raise _wrong(setting, str(wrong).removesuffix(".")) from wrong


def _number(setting: Setting, value: Any) -> float:
    is_bool = isinstance(value, bool)
    try:
        number = float(value) if isinstance(value, int | float | str) and not is_bool else None
    except (ValueError, OverflowError):
        number = None
    if number is None:
        raise _wrong(setting, f"is a number, not {_short(value)}")
    return number


def _wrong(setting: Setting, what: str) -> InvalidRequest:
    return InvalidRequest(f"{setting.name} {what}.", field=f"settings.{setting.name}")


def _short(value: Any) -> str:
    text = str(value)
    return repr(text if len(text) <= 40 else f"{text[:37]}…")
