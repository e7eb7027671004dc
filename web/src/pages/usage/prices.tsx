import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Plus, Tag, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { meQuery } from "~/api/queries";
import type { Price } from "~/api/types";
import { pricesQuery, usageKeys } from "~/api/usage";
import { DataTable } from "~/components/dataTable";
import { Confirm, FormDialog } from "~/components/forms/dialogs";
import { TextInput } from "~/components/forms/textInput";
import { Field } from "~/components/parts";
import { LocalTime } from "~/components/time";

const RESOURCES = { gpu: "GPU", cpu: "core", memory: "GiB of memory" } as const;

const nameOf = (price: Price): string => `${price.gpu_model} ${RESOURCES[price.resource]}`.trim();

/** The price list; platform admins change it. */
export function Prices() {
  const query = useQuery(pricesQuery);
  const { data: me } = useQuery(meQuery);
  const [isOpen, setOpen] = useState(false);
  const [gone, setGone] = useState<Price | null>(null);
  const client = useQueryClient();
  const create = async (data: FormData) => {
    const text = (name: string) => String(data.get(name) ?? "").trim();
    const resource = text("resource") as Price["resource"];
    const labels = text("node_selector")
      .split(/[\s,]+/)
      .filter(Boolean)
      .map((each) => each.split("="));
    const body = {
      resource,
      per_hour: text("per_hour"),
      gpu_model: text("gpu_model"),
      node_selector: Object.fromEntries(labels.map(([key = "", value = ""]) => [key, value])),
      ...(text("effective_from") ? { effective_from: `${text("effective_from")}T00:00:00Z` } : {}),
    };
    await unwrap(api.POST("/api/v1/prices", { body }));
    await client.invalidateQueries({ queryKey: usageKeys.all });
  };
  const remove = async () => {
    await unwrap(api.DELETE("/api/v1/prices/{price}", { params: { path: { price: gone?.id ?? "" } } }));
    await client.invalidateQueries({ queryKey: usageKeys.all });
  };
  return (
    <>
      <div className="row">
        <h2 className="section-title grow">Prices</h2>
        {me?.is_admin && (
          <button type="button" className="button small" onClick={() => setOpen(true)}>
            <Plus size={14} aria-hidden="true" /> Add a price
          </button>
        )}
      </div>
      <DataTable
        label="Prices"
        query={query}
        rowKey={(price) => price.id}
        empty={{ icon: Tag, title: "No prices", description: "Without prices all usage is free." }}
        columns={[
          { head: "Resource", cell: (price) => <span className="strong">{nameOf(price)}</span> },
          {
            head: "Nodes",
            cell: (price) =>
              Object.entries(price.node_selector)
                .map(([key, value]) => `${key}=${value}`)
                .join(", ") || <span className="dimmer">all</span>,
          },
          { head: "Per hour", isRight: true, cell: (price) => `${price.per_hour} ${price.currency}` },
          { head: "From", cell: (price) => <LocalTime at={price.effective_from} /> },
          {
            head: <span className="only-read">Actions</span>,
            isRight: true,
            cell: (price) =>
              me?.is_admin && (
                <button
                  type="button"
                  className="button quiet small danger"
                  onClick={() => setGone(price)}
                  aria-label={`Delete the price of a ${nameOf(price)}`}
                >
                  <Trash2 size={14} aria-hidden="true" />
                </button>
              ),
          },
        ]}
      />
      <FormDialog title="Add a price" isOpen={isOpen} close={() => setOpen(false)} verb="Add" submit={create}>
        {(errorOf) => (
          <>
            <Field label="Of a" error={errorOf("resource")}>
              {(props) => (
                <select {...props} name="resource" className="input">
                  {Object.entries(RESOURCES).map(([value, name]) => (
                    <option key={value} value={value}>
                      {name}
                    </option>
                  ))}
                </select>
              )}
            </Field>
            <TextInput
              name="per_hour"
              label="Per hour"
              placeholder="2.50"
              error={errorOf("per_hour")}
              isNumeric
              isRequired
            />
            <TextInput
              name="gpu_model"
              label="GPU model"
              placeholder="any"
              hint="The price of a model counts before that of any GPU."
              error={errorOf("gpu_model")}
            />
            <TextInput
              name="node_selector"
              label="Labels of nodes"
              placeholder="pool=fast"
              hint="Only on nodes with these labels; the most specific price counts."
              error={errorOf("node_selector")}
            />
            <TextInput
              name="effective_from"
              label="From (UTC)"
              type="date"
              hint="Default: now. It counts for usage from then on."
              error={errorOf("effective_from")}
            />
          </>
        )}
      </FormDialog>
      <Confirm
        title={gone && `Delete the price of a ${nameOf(gone)}?`}
        verb="Delete"
        act={remove}
        close={() => setGone(null)}
      >
        <p>Past usage then has another price that applies, or none. To end a price, add another one.</p>
      </Confirm>
    </>
  );
}
