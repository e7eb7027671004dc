import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { useCallback, useMemo } from "react";
import { isStudyOver, studyQuery, trialsQuery, waitingJobsQuery } from "~/api/studies";
import { type Goal, hasResult, NO_TRIALS, type TrialRow, withJobStates } from "./trialRows";
import { number } from "~/lib/format";

const route = getRouteApi("/shell/studies/$study");

/** The study of this page with its trials, for each of its tabs. */
export function useStudy() {
  const { study: id } = route.useParams();
  const client = useQueryClient();
  const { data: study } = useQuery(studyQuery(id));
  const told = useQuery(trialsQuery(id, isStudyOver(study?.state), client));
  const known = (told.data ?? NO_TRIALS).rows;
  const isUnderWay = useMemo(() => known.some((row) => row.state === "running" && row.job !== null), [known]);
  const { data: waiting } = useQuery(waitingJobsQuery(study, isUnderWay));
  const rows = useMemo(() => (isUnderWay ? withJobStates(known, waiting ?? []) : known), [known, waiting, isUnderWay]);
  const byNumber = useMemo(() => new Map(rows.map((row) => [row.number, row])), [rows]);
  const results = useMemo(() => rows.reduce((count, row) => count + (hasResult(row) ? 1 : 0), 0), [rows]);
  const navigate = useNavigate();
  const pick = useCallback(
    (trial: number) => void navigate({ to: "/studies/$study/trials", params: { study: id }, search: { trial } }),
    [navigate, id],
  );
  const tell = useCallback(
    (of: number) => {
      const row = byNumber.get(of);
      return row === undefined ? "" : words(row);
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
    isPending: told.isPending,
    error: told.error,
    refetch: told.refetch,
    pick,
    tell,
  };
}

const SHOWN = 8;

function words(row: TrialRow): string {
  const lines = [
    ...(row.state === "succeeded" ? [] : [row.state]),
    ...Object.entries(row.metrics).map(([name, value]) => `${name}: ${number(value)}`),
    ...Object.entries(row.parameters).map(([name, value]) => `${name} = ${number(value)}`),
  ];
  return [...lines.slice(0, SHOWN), ...(lines.length > SHOWN ? [`and ${lines.length - SHOWN} more`] : [])].join("\n");
}
