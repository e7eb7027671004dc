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

/** Settings and nodes to try; what is left as it is now says so. */
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
      aria-label="What to try"
      onSubmit={(event) => {
        event.preventDefault();
        submit(new FormData(event.currentTarget));
      }}
    >
      <fieldset>
        <legend>The planner's settings were</legend>
        <div className="fours trial-fields">
          {settings.map((setting) => (
            <SettingInput key={setting.name} setting={setting} />
          ))}
        </div>
      </fieldset>
      <fieldset>
        <legend>The cluster had</legend>
        <div className="fours trial-fields">
          <TextInput isNumeric name="more_nodes" label="More nodes" placeholder="0" type="number" />
          <TextInput isNumeric name="like" label="Of the kind of" placeholder="a node" list={names} />
          <TextInput isNumeric name="without" label="Without the nodes" placeholder="none" list={names} />
          <TextInput isNumeric name="days" label="Jobs of the last days" placeholder={String(DAYS)} />
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
        <span className="dim small">What is empty stays as it is now.</span>
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
          <option value="">{setting.text} (as now)</option>
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
