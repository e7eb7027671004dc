import {
  Ban,
  CircleCheck,
  CircleDashed,
  CircleDot,
  CirclePause,
  CircleX,
  Clock,
  HourglassIcon,
  LoaderCircle,
  type LucideIcon,
  TriangleAlert,
  Unplug,
} from "lucide-react";

/* Icon, word and colour: no meaning by colour alone. The words are the API's states. */

const STYLES: Record<string, [LucideIcon, string]> = {
  queued: [Clock, "amber"],
  placed: [CircleDashed, "cyan"],
  pending: [CircleDashed, "amber"],
  starting: [LoaderCircle, "cyan"],
  running: [CircleDot, "blue"],
  paused: [CirclePause, "violet"],
  cancelling: [LoaderCircle, "grey"],
  stopping: [LoaderCircle, "grey"],
  succeeded: [CircleCheck, "green"],
  failed: [CircleX, "red"],
  cancelled: [Ban, "grey"],
  stopped: [Ban, "grey"],
  lost: [Unplug, "red"],
  expired: [HourglassIcon, "grey"],
  ended: [CircleCheck, "grey"],
  waiting: [Clock, "amber"],
  registering: [LoaderCircle, "cyan"],
  ready: [CircleCheck, "green"],
  deploying: [LoaderCircle, "cyan"],
  degraded: [TriangleAlert, "amber"],
  draining: [LoaderCircle, "grey"],
  undeploying: [LoaderCircle, "grey"],
  deleting: [LoaderCircle, "grey"],
};

export function State({ state, pill = false }: { state: string; pill?: boolean }) {
  const [Icon, tone] = STYLES[state] ?? [CircleDashed, "grey"];
  const moves = Icon === LoaderCircle;
  return (
    <span className={`state tone-${tone}${pill ? " pill" : ""}`}>
      <Icon size={14} className={moves ? "spin" : ""} aria-hidden="true" />
      {state}
    </span>
  );
}

export function toneOf(state: string): string {
  return STYLES[state]?.[1] ?? "grey";
}
