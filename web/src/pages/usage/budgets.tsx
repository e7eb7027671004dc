import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Wallet } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { meQuery } from "~/api/queries";
import type { Budget } from "~/api/types";
import { budgetsQuery, usageKeys } from "~/api/usage";
import { DataTable } from "~/components/dataTable";
import { FormDialog } from "~/components/forms/dialogs";
import { TextInput } from "~/components/forms/textInput";
import { Field } from "~/components/parts";
import { toast } from "~/components/shell/toasts";
import { amount } from "./measures";

/** What each project has spent this month, and may spend. */
export function Budgets() {
  const query = useQuery(budgetsQuery);
  const { data: me } = useQuery(meQuery);
  const [changed, setChanged] = useState<Budget | null>(null);
  return (
    <>
      <h2 className="section-title">Budgets of this month</h2>
      <DataTable
        label="Budgets"
        query={query}
        rowKey={(budget) => budget.project}
        empty={{ icon: Wallet, title: "No projects", description: "Budgets belong to projects." }}
        columns={[
          { head: "Project", cell: (budget) => <span className="strong">{budget.project}</span> },
          { head: "Spent", isRight: true, cell: (budget) => amount(budget.spent, budget.currency) },
          {
            head: "Per month",
            isRight: true,
            cell: (budget) => (budget.per_month == null ? "–" : amount(budget.per_month, budget.currency)),
          },
          { head: "Used", cell: (budget) => <Used budget={budget} /> },
          { head: "Once it is spent", cell: (budget) => (budget.action ? ACTIONS[budget.action] : "–") },
          {
            head: <span className="only-read">Actions</span>,
            isRight: true,
            cell: (budget) =>
              me?.is_admin && (
                <button type="button" className="button small" onClick={() => setChanged(budget)}>
                  Set<span className="only-read"> the budget of {budget.project}</span>
                </button>
              ),
          },
        ]}
      />
      {changed && <BudgetForm budget={changed} close={() => setChanged(null)} />}
    </>
  );
}

const ACTIONS = {
  warn: "new jobs are warned",
  refuse: "new jobs are refused",
  lower_priority: "jobs wait behind all others",
} as const;

function Used({ budget }: { budget: Budget }) {
  if (budget.per_month == null) return <span className="dimmer">no budget</span>;
  const whole = Number(budget.per_month);
  const share = whole > 0 ? Number(budget.spent) / whole : 1;
  const percent = Math.round(100 * share);
  return (
    <div className="row">
      <div
        className="meter grow"
        role="meter"
        aria-label={`Spent of the budget of ${budget.project}`}
        aria-valuenow={Math.min(100, percent)}
        aria-valuemin={0}
        aria-valuemax={100}
      >
        <span
          className={share >= 1 ? "bad" : share >= 0.8 ? "warn" : ""}
          style={{ width: `${100 * Math.min(1, share)}%` }}
        />
      </div>
      <span className="num small nowrap">{percent.toLocaleString()} %</span>
    </div>
  );
}

function BudgetForm({ budget, close }: { budget: Budget; close: () => void }) {
  const client = useQueryClient();
  const submit = async (data: FormData) => {
    const params = { path: { project: budget.project } };
    const text = String(data.get("per_month") ?? "").trim();
    if (text === "" && budget.per_month != null) {
      await unwrap(api.DELETE("/api/v1/projects/{project}/budget", { params }));
    } else if (text !== "") {
      const body = { per_month: text, action: String(data.get("action")) as keyof typeof ACTIONS };
      await unwrap(api.PUT("/api/v1/projects/{project}/budget", { params, body }));
    }
    await client.invalidateQueries({ queryKey: usageKeys.all });
    toast(text === "" ? `Project ${budget.project} has no budget.` : `Set the budget of ${budget.project}.`);
  };
  return (
    <FormDialog title={`Budget of ${budget.project}`} isOpen close={close} verb="Set" submit={submit}>
      {(errorOf) => (
        <>
          <TextInput
            name="per_month"
            label={`Per calendar month, in ${budget.currency}`}
            hint="Blank: no budget. Running jobs go on when it is spent."
            defaultValue={budget.per_month ?? ""}
            error={errorOf("per_month")}
            isNumeric
          />
          <Field label="Once it is spent" error={errorOf("action")}>
            {(props) => (
              <select {...props} name="action" className="input" defaultValue={budget.action ?? "warn"}>
                <option value="warn">warn at each submission</option>
                <option value="lower_priority">let jobs wait behind all others</option>
                <option value="refuse">refuse new jobs and studies</option>
              </select>
            )}
          </Field>
        </>
      )}
    </FormDialog>
  );
}
