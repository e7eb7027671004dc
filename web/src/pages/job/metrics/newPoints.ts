import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { keys } from "~/api/queries";
import { follow } from "~/api/stream";

const TOGETHER_MS = 700; // charts in view are refreshed at most this often
const OTHERS_MS = 5_000; // and the lists of metrics

/** While mounted, charts of the job in view follow its new points. Returns the stream's error. */
export function useNewPoints(job: string): Error | null {
  const client = useQueryClient();
  const [problem, setProblem] = useState<Error | null>(null);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let others: ReturnType<typeof setTimeout> | undefined;
    const soon = () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        void client.invalidateQueries({ queryKey: keys.charts });
      }, TOGETHER_MS);
      others ??= setTimeout(() => {
        others = undefined;
        void client.invalidateQueries({ queryKey: keys.jobMetrics(job) });
      }, OTHERS_MS);
    };
    /** A new metric is shown immediately. */
    const onPoints = (data: unknown) => {
      soon();
      const { name } = data as { name: string };
      const known = client.getQueryData<{ name: string }[]>(keys.metricNames(job, false));
      if (known !== undefined && !name.startsWith("system/") && !known.some((metric) => metric.name === name))
        void client.invalidateQueries({ queryKey: keys.metricNames(job, false) });
    };
    const stop = follow(`/api/v1/jobs/${encodeURIComponent(job)}/metrics/stream`, {
      points: onPoints,
      end: soon,
      failed: setProblem,
    });
    return () => {
      stop();
      clearTimeout(timer);
      clearTimeout(others);
    };
  }, [client, job]);
  return problem;
}
