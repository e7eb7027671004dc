import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Save } from "lucide-react";
import { type FormEvent, useState } from "react";
import { checkpointsQuery } from "~/api/queries";
import type { Checkpoint, JobDetail } from "~/api/types";
import { Skeleton, Card, Empty, Failure, Field } from "~/components/parts";
import { number } from "~/lib/format";
import { ComparedJobs } from "./pickJob";

/** Selects a checkpoint of the first job and one of another job, and opens their comparison. */
export function CheckpointPair({ jobs }: { jobs: readonly JobDetail[] }) {
  const [first, ...others] = jobs;
  const [chosen, setChosen] = useState(others[0]?.id ?? "");
  const other = others.find((job) => job.id === chosen) ?? others[0];
  const before = useQuery(checkpointsQuery(first?.id ?? ""));
  const after = useQuery(checkpointsQuery(other?.id ?? ""));
  const navigate = useNavigate();
  const failed = [before, after].find((query) => query.data === undefined && query.error !== null);
  const olds = complete(before.data?.items);
  const news = complete(after.data?.items);
  const go = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    void navigate({
      to: "/jobs/$job/checkpoint",
      params: { job: other?.id ?? "" },
      search: { path: String(form.get("after")), other: String(form.get("before")), other_job: first?.id ?? "" },
    });
  };
  return (
    <Card title="Checkpoints" aside={<ComparedJobs first={first} others={others} chosen={other} choose={setChosen} />}>
      {failed !== undefined ? (
        <Failure error={failed.error} retry={() => void failed.refetch()} />
      ) : before.isPending || after.isPending ? (
        <Skeleton rows={2} height={30} />
      ) : olds.length === 0 || news.length === 0 ? (
        <Empty icon={Save} title="No checkpoints to compare">
          <p>Tensors can be compared once both jobs have saved a complete checkpoint.</p>
        </Empty>
      ) : (
        <form className="checkpoint-pair" onSubmit={go}>
          <Field label={`From ${first?.name}`}>
            {(props) => <Options {...props} key={first?.id} name="before" items={olds} />}
          </Field>
          <Field label={`To ${other?.name}`}>
            {(props) => <Options {...props} key={other?.id} name="after" items={news} />}
          </Field>
          <button type="submit" className="button">
            Compare tensors
          </button>
        </form>
      )}
    </Card>
  );
}

const complete = (items: readonly Checkpoint[] | undefined) =>
  (items ?? []).filter((item) => item.is_complete !== false);

function Options({ items, ...props }: { items: readonly Checkpoint[]; id: string; name: string }) {
  return (
    <select {...props} className="input">
      {items.map((item) => (
        <option key={item.path} value={item.path}>
          {item.step === null || item.step === undefined ? item.path : `step ${number(item.step)}: ${item.path}`}
        </option>
      ))}
    </select>
  );
}
