"""The planner's settings in the form that users read and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from trainmaster.spec.errors import FieldError, suggest
from trainmaster.spec.quantity import parse_duration_s
from trainmaster.wire.scheduling import SettingView

from core.domain.errors import InvalidRequest
from core.domain.sharing.policy import Defragment, Policy, QueueOrder, parse_policy

Kind = Literal["choice", "switch", "duration", "durations", "number"]
OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """``field``: its name in :class:`Policy`; ``name``: for users, without the unit."""

    field: str
    kind: Kind
    meaning: str
    choices: tuple[str, ...] = ()
    can_be_off: bool = False

    @property
    def name(self) -> str:
        return self.field.removeprefix("is_").removesuffix("_s")


SETTINGS: Final = (
    PolicySetting(
        "order", "choice",
        "Queue order among jobs of equal priority and equal share: fifo, the oldest first; shortest-first, the least "
        "remaining GPU time first (where it is unknown, what is expected by the run times of ended jobs); fair-finish, "
        "the least remaining time first, with the longest jobs started in time for an early finish of all; "
        "attained-service, the least GPU time used so far first.",
        tuple(QueueOrder),
    ),
    PolicySetting(
        "is_fair", "switch",
        "Fair queueing among projects, and among users of a project, by their shares and weights; off: one queue for "
        "all.",
    ),
    PolicySetting("usage_weight", "number", "Weight of past usage relative to current usage in a share, from 0 to 1."),
    PolicySetting("usage_half_life_s", "duration", "Half-life of past usage."),
    PolicySetting(
        "levels_gpu_s", "durations",
        "Thresholds of the levels of attained service, in GPU time: a job drops one level when it exceeds a threshold.",
    ),
    PolicySetting(
        "starvation_s", "duration",
        "A job that has waited for so long without resources comes first (attained-service: with those of the first "
        "level; not in fifo).",
    ),
    PolicySetting("preempts_priority", "switch", "A job of higher priority may preempt jobs of lower priority."),
    PolicySetting(
        "reclaims", "switch",
        "Projects reclaim their guaranteed resources by preempting jobs of projects that borrow them.",
    ),
    PolicySetting("preempts_shares", "switch", "Projects below their share may preempt jobs of projects above theirs."),
    PolicySetting(
        "time_slice_s", "duration",
        "Time slicing among jobs of equal priority: a job with checkpoints that has run for so long may be preempted "
        "by the first job by order (shortest-first, fair-finish: one with much less to do; attained-service: one on "
        "an earlier level of levels_gpu; fifo: one that was queued earlier); off: running jobs stay.",
        can_be_off=True,
    ),
    PolicySetting(
        "rotation_s", "duration",
        "Round robin among jobs of equal priority that order treats as equal (attained-service: on one level of "
        "levels_gpu; fifo: all; else jobs of unknown duration): a job that has run for so long may be preempted by a "
        "job with fewer turns, by an older one with as many, or by the first one by order; off: equal jobs are not "
        "rotated.",
        can_be_off=True,
    ),
    PolicySetting("min_run_time_s", "duration", "No job is preempted, for any reason, before it has run for so long."),
    PolicySetting("grace_s", "duration", "Grace period of a preempted job, for its last checkpoint."),
    PolicySetting("shrinks", "switch", "Elastic jobs are shrunk before any job is preempted, and for faster ones."),
    PolicySetting(
        "restart_cost_s", "duration",
        "Assumed cost of a preemption, in addition to the work since the last checkpoint.",
    ),
    PolicySetting(
        "defragment", "choice",
        "Migration of running jobs to free nodes for a large gang: off, propose (shown, not done) or apply.",
        tuple(Defragment),
    ),
    PolicySetting(
        "quarantines", "switch",
        "A node on which jobs fail because of the machine takes no new jobs for a time (`trainmaster nodes` shows it).",
    ),
    PolicySetting(
        "quarantine_failures", "number",
        "Number of suspicious failures of different jobs on one node, without a success in between, that quarantine "
        "it; one definite hardware fault is enough.",
    ),
    PolicySetting(
        "quarantine_window_s", "duration",
        "Suspicious failures within this time count together; at most 7 days.",
    ),
    PolicySetting(
        "quarantine_release_s", "duration",
        "Duration of a quarantine, doubled each time in a row; off: until an administrator releases the node.",
        can_be_off=True,
    ),
    PolicySetting(
        "quarantine_share", "number",
        "The fraction, from 0 to 1, of nodes of one kind that may be quarantined at once; one node always may, but "
        "never the last one that takes jobs.",
    ),
    PolicySetting(
        "keeps_for_gpus", "switch",
        "Headroom for idle GPUs: jobs without GPUs leave the CPUs and memory on each node that its free GPUs will "
        "need, judged by running and queued jobs, unless they could never run otherwise; off: they only prefer other "
        "nodes.",
    ),
)  # fmt: skip
BY_NAME: Final = {setting.name: setting for setting in SETTINGS} | {setting.field: setting for setting in SETTINGS}


def view_of(setting: PolicySetting, policy: Policy) -> SettingView:
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


def text_of(setting: PolicySetting, value: Any) -> str:
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
    """``given`` by the names of :class:`Policy`, in its units. The value ``default`` is replaced by the default.

    ``at``: the path of the settings in the request, for errors.

    Raises:
        InvalidRequest: ``errors`` has all unknown settings and invalid values.
    """
    found: dict[str, Any] = {}
    wrong: list[InvalidRequest] = []
    for name, value in given.items():
        try:
            field, read_value = _read_setting(name, value, at, found)
            found[field] = read_value
        except InvalidRequest as mistake:
            wrong.append(mistake)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise InvalidRequest(
            f"{len(wrong)} of the settings are invalid, so none was changed.",
            field=wrong[0].field,
            errors=[{"path": mistake.field, "message": mistake.sentence, "hint": None} for mistake in wrong],
        )
    return found


def _read_setting(name: str, value: Any, at: str, before: Mapping[str, Any]) -> tuple[str, Any]:
    setting = BY_NAME.get(name)
    if setting is None:
        known = [each.name for each in SETTINGS]
        meant = suggest(name, known)
        hint = f" Did you mean {meant}?" if meant else ""
        raise InvalidRequest(
            f"There is no setting {name!r}; the settings are {', '.join(known)}.{hint}", field=f"{at}.{name}"
        )
    if setting.field in before:
        raise InvalidRequest(f"{setting.name} is given twice.", field=f"{at}.{name}")
    try:
        found = read(setting, value)
        parse_policy({setting.field: found})
    except InvalidRequest as wrong:
        sentence = wrong.sentence.replace(setting.field, setting.name)
        raise InvalidRequest(sentence, field=f"{at}.{setting.name}") from wrong
    return setting.field, found


def read(setting: PolicySetting, value: Any) -> Any:
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


def _switch(setting: PolicySetting, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _SWITCH:
        return _SWITCH[value.strip().lower()]
    raise _wrong(setting, f"is on or off, not {_short(value)}")


def _duration(setting: PolicySetting, value: Any) -> float:
    try:
        return parse_duration_s(value.strip() if isinstance(value, str) else value)
    except FieldError as wrong:
        raise _wrong(setting, str(wrong).removesuffix(".")) from wrong


def _number(setting: PolicySetting, value: Any) -> float:
    is_bool = isinstance(value, bool)
    try:
        number = float(value) if isinstance(value, int | float | str) and not is_bool else None
    except (ValueError, OverflowError):
        number = None
    if number is None:
        raise _wrong(setting, f"is a number, not {_short(value)}")
    return number


def _wrong(setting: PolicySetting, what: str) -> InvalidRequest:
    return InvalidRequest(f"{setting.name} {what}.", field=f"settings.{setting.name}")


def _short(value: Any) -> str:
    text = str(value)
    return repr(text if len(text) <= 40 else f"{text[:37]}…")
