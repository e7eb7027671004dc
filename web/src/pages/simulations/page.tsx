import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { LoaderCircle } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { policyQuery, simulationQuery } from "~/api/planner";
import { meQuery } from "~/api/queries";
import type { Simulation } from "~/api/types";
import { Skeleton, Card, Failure, PageHead, Sentence } from "~/components/parts";
import { duration } from "~/lib/format";
import { useNow } from "~/lib/time/now";
import { SimulationForm, type SimulationRequest } from "./form";
import { Result } from "./result";

const route = getRouteApi("/shell/simulations");

/** Simulates other settings or nodes on recently finished jobs. */
export function SimulationsPage() {
  const { id = "", what = "" } = route.useSearch();
  const { data: me } = useQuery(meQuery);
  const policy = useQuery(policyQuery);
  const simulation = useQuery({ ...simulationQuery(id), enabled: id !== "" && me?.is_admin === true });
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const navigate = useNavigate();
  const begin = async ({ body, title }: SimulationRequest) => {
    setBusy(true);
    setError(null);
    try {
      const begun = await unwrap(api.POST("/api/v1/simulations", { body }));
      await navigate({ to: "/simulations", search: { id: begun.id, what: title } });
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  return (
    <div className="page-body">
      <PageHead
        title="Simulations"
        about={
          <>
            Replays recently finished jobs with other settings or nodes. Nothing is changed.{" "}
            <Link to="/queue">Back to the queue</Link>
          </>
        }
      />
      {me && !me.is_admin ? (
        <p className="note warn">Only platform admins can run simulations.</p>
      ) : (
        <>
          <Card title="Changes">
            {policy.error !== null && <Failure error={policy.error} retry={() => void policy.refetch()} />}
            {policy.data ? (
              <SimulationForm
                settings={policy.data.settings}
                begin={(request) => void begin(request)}
                isBusy={isBusy}
              />
            ) : (
              policy.isPending && <Skeleton rows={6} height={30} />
            )}
            {error !== null && <Failure error={error} />}
          </Card>
          {id !== "" && (
            <section aria-label="Result" aria-live="polite" className="stack">
              {simulation.error !== null ? (
                <Failure error={simulation.error} retry={() => void simulation.refetch()} />
              ) : simulation.data?.result ? (
                <Result found={simulation.data.result} what={what} />
              ) : (
                <Progress simulation={simulation.data} what={what} />
              )}
            </section>
          )}
        </>
      )}
    </div>
  );
}

function Progress({ simulation, what }: { simulation: Simulation | undefined; what: string }) {
  const now = useNow();
  const since = simulation?.began_at ? Math.max(0, (now - Date.parse(simulation.began_at)) / 1000) : null;
  return (
    <Card title={what || "Simulation"}>
      <p className="row" role="status">
        <LoaderCircle size={16} className="turning" aria-hidden="true" />
        <span className="grow">
          <Sentence text={simulation?.sentence || "Starting…"} />
        </span>
        {since !== null && <span className="dim num small">for {duration(Math.round(since))}</span>}
      </p>
      <p className="dim small">This takes seconds to minutes. The address shows the result for an hour.</p>
    </Card>
  );
}
