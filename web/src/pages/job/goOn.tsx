import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, got } from "~/api/client";
import { isOver, jobQuery, keys } from "~/api/queries";
import type { JobDetail } from "~/api/types";
import { FormDialog } from "~/components/dialogs";
import { toast } from "~/components/toasts";

interface GoOnProps {
  job: string;
  path: string;
  isOpen: boolean;
  close: () => void;
}

type Who = "this" | "new";

/** Training goes on from a checkpoint: that of this job where it has not ended, or that of a new one. */
export function GoOn({ job, path, isOpen, close }: GoOnProps) {
  const { data: detail } = useQuery(jobQuery(job));
  const client = useQueryClient();
  const navigate = useNavigate();
  const [chosen, setChosen] = useState<Who>("this");
  if (detail === undefined) return null;
  const name = path.split("/").at(-1) ?? path;
  const isEnding = isOver(detail.state) || detail.state === "cancelling" || detail.wanted === "cancel";
  const who: Who = isEnding ? "new" : chosen;
  const fork = async () => {
    const params = { path: { job }, header: { "Idempotency-Key": crypto.randomUUID() } };
    const made = await got(api.POST("/api/v1/jobs/{job}/clone", { params, body: { checkpoint: path } }));
    await client.invalidateQueries({ queryKey: keys.jobs });
    await navigate({ to: "/jobs/$job", params: { job: made.id } });
    toast(`Submitted ${made.name}, which begins at ${name}.`);
  };
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
      verb={who === "new" ? "Submit a new job" : "Resume this job"}
      submit={who === "new" ? fork : resume}
    >
      {isEnding ? (
        <p className="dim">
          {detail.name} {isOver(detail.state) ? `has ended (${detail.state})` : "is being cancelled"}, and such a job does not
          start again. {FORKED}
        </p>
      ) : (
        <fieldset className="stack">
          <legend className="only-read">Which job goes on from there</legend>
          <Choice who="this" chosen={chosen} choose={setChosen} title="This job">
            {consequence(detail, name)}
          </Choice>
          <Choice who="new" chosen={chosen} choose={setChosen} title="A new job beside it">
            {FORKED} {detail.name} stays as it is.
          </Choice>
        </fieldset>
      )}
    </FormDialog>
  );
}

const FORKED = "A new job with the same spec and code begins there; it reads this job's output and writes to its own.";

function consequence(job: JobDetail, name: string): string {
  if (job.state === "paused") return `${job.name} is paused: it goes back into the queue and starts again from ${name}.`;
  if (job.state === "queued") return `${job.name} waits for its place; then it starts from ${name}.`;
  return `${job.name} is stopped, goes back into the queue and starts again from ${name}. What it trained since then is left behind.`;
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
      <input type="radio" name="who" className="check" value={who} checked={chosen === who} onChange={() => choose(who)} />
      <span>
        <span className="strong">{title}</span>
        <span className="dim">{children}</span>
      </span>
    </label>
  );
}
