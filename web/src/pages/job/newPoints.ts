import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { keys } from "~/api/queries";
import { follow } from "~/api/stream";

const TOGETHER_MS = 700; // charts are asked for again at most this often

/** While this is shown, charts of the job follow its new points. Returns why they do not. */
export function useNewPoints(job: string): Error | null {
  const client = useQueryClient();
  const [problem, setProblem] = useState<Error | null>(null);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const soon = () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        void client.invalidateQueries({ queryKey: keys.metricsOf(job) });
        void client.invalidateQueries({ queryKey: keys.charts });
      }, TOGETHER_MS);
    };
    const stop = follow(`/api/v1/jobs/${encodeURIComponent(job)}/metrics/stream`, {
      points: soon,
      end: soon,
      failed: setProblem,
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [client, job]);
  return problem;
}
