import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { useCallback, useMemo } from "react";
import { isStudyOver, studyQuery, trialsQuery, waitingJobsQuery } from "~/api/studies";
import { type Goal, hasResult, NO_TRIALS, type TrialRow, withJobStates } from "~/api/trialRows";
import { number } from "~/lib/format";

const route = getRouteApi("/shell/studies/$study");

/** The study of the page with its trials, for all tabs. */
export function useStudy() {
  const { study: id } = route.useParams();
  const client = useQueryClient();
  const { data: study } = useQuery(studyQuery(id));
  const trials = useQuery(trialsQuery(id, isStudyOver(study?.state), client));
  const known = (trials.data ?? NO_TRIALS).rows;
  const isRunning = useMemo(() => known.some((row) => row.state === "running" && row.job !== null), [known]);
  const { data: waiting } = useQuery(waitingJobsQuery(study, isRunning));
  const rows = useMemo(() => (isRunning ? withJobStates(known, waiting ?? []) : known), [known, waiting, isRunning]);
  const byNumber = useMemo(() => new Map(rows.map((row) => [row.number, row])), [rows]);
  const results = useMemo(() => rows.reduce((count, row) => count + (hasResult(row) ? 1 : 0), 0), [rows]);
  const navigate = useNavigate();
  const pick = useCallback(
    (trial: number) => void navigate({ to: "/studies/$study/trials", params: { study: id }, search: { trial } }),
    [navigate, id],
  );
  const describe = useCallback(
    (of: number) => {
      const row = byNumber.get(of);
      return row === undefined ? "" : describeTrial(row);
    },
    [byNumber],
  );
  const metrics = (study?.spec.metrics ?? []).map((metric) => ({ name: metric.name, goal: metric.goal as Goal }));
  return {
    id,
    study,
    metrics,
    rows,
    byNumber,
    results,
    isPending: trials.isPending,
    error: trials.error,
    refetch: trials.refetch,
    pick,
    describe,
  };
}

const SHOWN = 8;

function describeTrial(row: TrialRow): string {
  const lines = [
    ...(row.state === "succeeded" ? [] : [row.state]),
    ...Object.entries(row.metrics).map(([name, value]) => `${name}: ${number(value)}`),
    ...Object.entries(row.parameters).map(([name, value]) => `${name} = ${number(value)}`),
  ];
  return [...lines.slice(0, SHOWN), ...(lines.length > SHOWN ? [`and ${lines.length - SHOWN} more`] : [])].join("\n");
}
