import type { JobDetail } from "~/api/types";

interface PickJobProps {
  first: JobDetail | undefined;
  others: readonly JobDetail[];
  chosen: JobDetail | undefined;
  choose: (job: string) => void;
}

/** The job that is compared with the first; a choice only if there are more than two. */
export function ComparedJobs({ first, others, chosen, choose }: PickJobProps) {
  return (
    <span className="row small dim compare-pair">
      <span className="cut">{first?.name}</span> →{" "}
      {others.length > 1 ? (
        <select
          className="input auto"
          aria-label="Job to compare"
          value={chosen?.id}
          onChange={(event) => choose(event.target.value)}
        >
          {others.map((job) => (
            <option key={job.id} value={job.id}>
              {job.name}
            </option>
          ))}
        </select>
      ) : (
        <span className="cut">{chosen?.name}</span>
      )}
    </span>
  );
}
