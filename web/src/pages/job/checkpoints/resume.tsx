import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, got } from "~/api/client";
import { isOver, jobQuery, keys } from "~/api/queries";
import type { JobDetail } from "~/api/types";
import { FormDialog } from "~/components/forms/dialogs";
import { toast } from "~/components/shell/toasts";
import { number } from "~/lib/format";

interface GoOnProps {
  job: string;
  path: string;
  /** Of the checkpoint, where it is known. */
  step: number | null | undefined;
  isOpen: boolean;
  close: () => void;
}

type Who = "this" | "new";

/** Training goes on from a checkpoint: that of this job where it has not ended, or that of a new one. */
export function GoOn({ job, path, step, isOpen, close }: GoOnProps) {
  const { data: detail } = useQuery(jobQuery(job));
  const client = useQueryClient();
  const navigate = useNavigate();
  const [chosen, setChosen] = useState<Who>("this");
  if (detail === undefined) return null;
  const name = path.split("/").at(-1) ?? path;
  const isEnding = isOver(detail.state) || detail.state === "cancelling" || detail.wanted === "cancel";
  const who: Who = isEnding ? "new" : chosen;
  const fork = () => navigate({ to: "/submit", search: { from: job, checkpoint: path } });
  const resume = async () => {
    await got(api.POST("/api/v1/jobs/{job}/resume", { params: { path: { job } }, body: { checkpoint: path } }));
    await client.invalidateQueries({ queryKey: keys.job(job) });
    toast(`${detail.name} goes on from ${name}.`);
  };
  return (
    <FormDialog
      title={`Resume from ${name}`}
      isOpen={isOpen}
      close={close}
      verb={who === "new" ? "Edit the new job" : "Resume this job"}
      submit={who === "new" ? fork : resume}
    >
      {isEnding ? (
        <p className="dim">
          {detail.name} {isOver(detail.state) ? `has ended (${detail.state})` : "is being cancelled"}, and such a job
          does not start again. {FORKED}
        </p>
      ) : (
        <fieldset className="stack">
          <legend className="only-read">Which job goes on from there</legend>
          <Choice who="this" chosen={chosen} choose={setChosen} title="This job">
            {consequence(detail, name, step)}
          </Choice>
          <Choice who="new" chosen={chosen} choose={setChosen} title="A new job beside it">
            {FORKED} {detail.name} stays as it is.
          </Choice>
        </fieldset>
      )}
    </FormDialog>
  );
}

const FORKED =
  "A new job with the same spec and code begins there; it reads this job's output and writes to its own. You see and change it before it is submitted.";

function consequence(job: JobDetail, name: string, step: number | null | undefined): string {
  if (job.state === "paused")
    return `${job.name} is paused: it goes back into the queue and starts again from ${name}.`;
  if (job.state === "queued") return `${job.name} waits for its place; then it starts from ${name}.`;
  return `${job.name} is stopped, goes back into the queue and starts again from ${name}. ${back(job.progress?.["step"], step)}`;
}

function back(from: unknown, to: number | null | undefined): string {
  if (typeof from !== "number" || typeof to !== "number") return "What it trained since then is left behind.";
  return `It goes back from step ${number(from)} to step ${number(to)}; what it trained since then is left behind.`;
}

interface ChoiceProps {
  who: Who;
  chosen: Who;
  choose: (who: Who) => void;
  title: string;
  children: React.ReactNode;
}

function Choice({ who, chosen, choose, title, children }: ChoiceProps) {
  return (
    <label className="choice">
      <input
        type="radio"
        name="who"
        className="check"
        value={who}
        checked={chosen === who}
        onChange={() => choose(who)}
      />
      <span>
        <span className="strong">{title}</span>
        <span className="dim">{children}</span>
      </span>
    </label>
  );
}
