import { useQuery } from "@tanstack/react-query";
import { FlaskConical } from "lucide-react";
import { useState } from "react";
import { nodesQuery } from "~/api/queries";
import type { Setting } from "~/api/types";
import { Field } from "~/components/parts";
import { TextInput } from "~/components/forms/textInput";
import { parseCluster, settingLabel, validateSimulation, describeChanges } from "./comparison";

export interface SimulationRequest {
  body: {
    policy: Record<string, string>;
    cluster: { more_nodes: number; like: string | null; without: string[] } | null;
    days: number;
  };
  title: string;
}

interface FormProps {
  settings: readonly Setting[];
  begin: (request: SimulationRequest) => void;
  isBusy: boolean;
}

const DAYS = 30;

/** Settings and nodes to simulate; placeholders show the present values. */
export function SimulationForm({ settings, begin, isBusy }: FormProps) {
  const { data: nodes } = useQuery(nodesQuery);
  const [mistake, setMistake] = useState("");
  const names = (nodes ?? []).map((node) => node.name);
  const submit = (form: FormData) => {
    const text = (name: string) => String(form.get(name) ?? "").trim();
    const policy = Object.fromEntries(
      settings.map(({ name }) => [name, text(`set.${name}`)]).filter(([, value]) => value),
    );
    const cluster = parseCluster(text("more_nodes"), text("like"), text("without"));
    const found = validateSimulation(policy, cluster);
    setMistake(found);
    const days = Number(text("days")) || DAYS;
    if (found === "") begin({ body: { policy, cluster, days }, title: describeChanges(policy, cluster) });
  };
  return (
    <form
      className="stack"
      aria-label="Changes"
      onSubmit={(event) => {
        event.preventDefault();
        submit(new FormData(event.currentTarget));
      }}
    >
      <fieldset>
        <legend>Scheduling policy</legend>
        <div className="fours simulation-fields">
          {settings.map((setting) => (
            <SettingInput key={setting.name} setting={setting} />
          ))}
        </div>
      </fieldset>
      <fieldset>
        <legend>Cluster</legend>
        <div className="fours simulation-fields">
          <TextInput isNumeric name="more_nodes" label="Additional nodes" placeholder="0" type="number" />
          <TextInput isNumeric name="like" label="Like node" placeholder="a node" list={names} />
          <TextInput isNumeric name="without" label="Removed nodes" placeholder="none" list={names} />
          <TextInput isNumeric name="days" label="Days of history" placeholder={String(DAYS)} />
        </div>
      </fieldset>
      {mistake && (
        <p className="note bad" role="alert">
          {mistake}
        </p>
      )}
      <div className="row">
        <button type="submit" className="button primary" disabled={isBusy}>
          <FlaskConical size={15} aria-hidden="true" /> Simulate
        </button>
        <span className="dim small">Blank fields stay unchanged.</span>
      </div>
    </form>
  );
}

function SettingInput({ setting }: { setting: Setting }) {
  const name = `set.${setting.name}`;
  const choices = setting.kind === "switch" ? ["on", "off"] : (setting.choices ?? []);
  if (choices.length === 0)
    return <TextInput isNumeric name={name} label={settingLabel(setting.name)} placeholder={setting.text} />;
  return (
    <Field label={settingLabel(setting.name)}>
      {(props) => (
        <select {...props} className="input" name={name} defaultValue="">
          <option value="">{setting.text} (current)</option>
          {choices
            .filter((choice) => choice !== setting.text)
            .map((choice) => (
              <option key={choice}>{choice}</option>
            ))}
        </select>
      )}
    </Field>
  );
}
