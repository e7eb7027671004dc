import { useQuery } from "@tanstack/react-query";
import { Plus } from "lucide-react";
import type { ReactNode } from "react";
import { isMap, isSeq, type Document } from "yaml";
import { projectsQuery } from "~/api/queries";
import type { Mistake } from "~/api/types";
import { Field } from "~/components/parts";
import { TextInput } from "~/components/forms/textInput";
import {
  parametersOf,
  type Path,
  textAt,
  typed,
  withAt,
  withNewParameter,
  withoutParameter,
  withParameter,
} from "./studyDraft";
import { Code } from "~/pages/submit/code";
import { ParameterFields } from "./parameterFields";

const ALGORITHMS: readonly [string, string][] = [
  ["auto", "auto: TPE, or TPE interleaved with GP"],
  ["tpe", "TPE"],
  ["gp", "Gaussian process"],
  ["cma-es", "CMA-ES"],
  ["qmc", "QMC (quasi-random)"],
  ["random", "random"],
  ["grid", "grid"],
];
const RULES: readonly [string, string][] = [
  ["", "none"],
  ["median", "median"],
  ["asha", "ASHA"],
  ["hyperband", "Hyperband"],
  ["decay-curve", "decay curve"],
  ["patience", "patience"],
];
// The fields of each rule: name, label and default.
const RULE_FIELDS: Record<string, readonly [string, string, string][]> = {
  median: [
    ["min_steps", "Min steps", "1"],
    ["min_trials", "Min trials", "4"],
  ],
  asha: [
    ["min_steps", "First rung at step", "1"],
    ["reduction", "Reduction factor", "3"],
    ["min_trials", "Min trials", "4"],
  ],
  hyperband: [
    ["min_steps", "First rung at step", "1"],
    ["reduction", "Reduction factor", "3"],
    ["max_steps", "Max steps", "unknown"],
    ["min_trials", "Min trials", "4"],
  ],
  "decay-curve": [
    ["min_steps", "Min steps", "1"],
    ["max_steps", "Max steps", "longest trial"],
  ],
  patience: [
    ["min_steps", "Min steps", "1"],
    ["patience", "Patience, reports", "10"],
  ],
};

interface FormProps {
  document: Document;
  mistakes: readonly Mistake[];
  change: (make: (text: string) => string) => void;
}

/** The API's error about a field or a nested field. */
export function errorAt(mistakes: readonly Mistake[], ...paths: string[]): string | undefined {
  const found = mistakes.find(({ path }) => paths.some((field) => path === field || path.startsWith(`${field}.`)));
  return found && (found.hint ? `${found.message}: ${found.hint}` : found.message);
}

/** The most common fields of a study. The form preserves all other fields of the YAML. */
export function StudyForm({ document, mistakes, change }: FormProps) {
  const { data: projects } = useQuery(projectsQuery);
  const isBroken = document.errors.length > 0;
  const rows = isBroken ? [] : parametersOf(document);
  const set = (path: Path, value: unknown) => change((text) => withAt(text, path, value));
  const textOf = (path: Path) => (isBroken ? "" : textAt(document, path));
  const field = (
    path: Path,
    label: string,
    more: { hint?: ReactNode; placeholder?: string; list?: readonly string[]; also?: string[] } = {},
  ) => {
    const { also = [], ...rest } = more;
    return (
      <TextInput
        name={path.join(".")}
        label={label}
        value={textOf(path)}
        error={errorAt(mistakes, path.join("."), ...also)}
        isDisabled={isBroken}
        keepsTypedText
        set={(value) => set(path, typed(value))}
        {...rest}
      />
    );
  };
  const choice = (
    path: Path,
    label: string,
    choices: readonly [string, string][],
    value: string,
    choose: (value: string) => void,
  ) => (
    <Field label={label} error={errorAt(mistakes, path.join("."))}>
      {(props) => (
        <select
          {...props}
          className="input"
          disabled={isBroken}
          value={value}
          onChange={(event) => choose(event.target.value)}
        >
          {choices.map(([key, text]) => (
            <option key={key} value={key}>
              {text}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
  const hasMetrics = !isBroken && isSeq(document.get("metrics"));
  const hasTemplate = !isBroken && isMap(document.get("template"));
  const hasRoles = !isBroken && document.hasIn(["template", "roles"]);
  const stopping: unknown = isBroken ? "" : document.get("stopping");
  const rule = isMap(stopping) ? textOf(["stopping", "rule"]) : typeof stopping === "string" ? stopping : "";
  const setRule = (next: string) => {
    // Short form: another rule has other fields.
    change((text) => withAt(withAt(text, ["stopping"], ""), ["stopping"], next));
  };
  return (
    <>
      {isBroken && <p className="note warn">The YAML has a syntax error. Fix it there to use the form.</p>}
      <div className="pair">
        {field(["name"], "Name")}
        {field(["project"], "Project", {
          placeholder: "default",
          list: (projects ?? []).map((project) => project.name),
        })}
      </div>
      <fieldset>
        <legend>Trial job</legend>
        <div className="stack">
          {field(["template", "command"], "Command", {
            placeholder: hasTemplate ? "python train.py" : "none: an ask-and-tell program",
            hint: "Each parameter is passed as --name=value.",
            also: ["template.args"],
          })}
          {hasTemplate && (
            <Code
              digest={textOf(["template", "code"])}
              isDisabled={isBroken}
              set={(digest) => set(["template", "code"], digest)}
            />
          )}
          {hasTemplate &&
            (hasRoles ? (
              <p className="hint dim">Its roles are defined individually. Edit them in the YAML.</p>
            ) : (
              <div className="fours">
                {field(["template", "gpus"], "GPUs each", { placeholder: "0" })}
                {field(["template", "workers"], "Workers", { placeholder: "1" })}
                {field(["template", "cpu"], "CPUs each", { placeholder: "shared" })}
                {field(["template", "memory"], "Memory each", { placeholder: "shared" })}
                {field(["template", "image"], "Image", { placeholder: "none" })}
                {field(["template", "input"], "Input", { placeholder: "volume/path" })}
              </div>
            ))}
        </div>
      </fieldset>
      <fieldset>
        <legend>Parameters</legend>
        <div className="stack">
          {rows.map((row, i) => (
            <ParameterFields
              key={i}
              row={row}
              others={rows.filter((other) => other.name !== row.name).map((other) => other.name)}
              mistakes={mistakes}
              set={(name, value) => change((text) => withParameter(text, row.name, name, value))}
              remove={() => change((text) => withoutParameter(text, row.name))}
            />
          ))}
          {errorAt(
            mistakes.filter((mistake) => mistake.path === "parameters"),
            "parameters",
          ) && <p className="tone-red small">{errorAt(mistakes, "parameters")}</p>}
          <div>
            <button type="button" className="button small" disabled={isBroken} onClick={() => change(withNewParameter)}>
              <Plus size={14} aria-hidden="true" /> Add a parameter
            </button>
          </div>
        </div>
      </fieldset>
      <fieldset>
        <legend>Goal</legend>
        {hasMetrics ? (
          <p className="hint dim">This study has several metrics. Edit them in the YAML.</p>
        ) : (
          <div className="pair">
            {field(["metric"], "Metric", { placeholder: "accuracy", also: ["metrics"] })}
            {choice(
              ["goal"],
              "Goal",
              [
                ["", "choose"],
                ["maximize", "maximize"],
                ["minimize", "minimize"],
              ],
              textOf(["goal"]),
              (value) => set(["goal"], value),
            )}
          </div>
        )}
        <div className="pair spaced">
          {choice(["algorithm"], "Algorithm", ALGORITHMS, textOf(["algorithm"]) || "auto", (value) =>
            set(["algorithm"], value === "auto" ? "" : value),
          )}
          {choice(["stopping"], "Early stopping", RULES, rule, setRule)}
        </div>
        {(RULE_FIELDS[rule] ?? []).length > 0 && (
          <div className="fours spaced">
            {(RULE_FIELDS[rule] ?? []).map(([name, label, unstated]) => (
              <TextInput
                key={name}
                name={`stopping.${name}`}
                label={label}
                placeholder={unstated}
                value={textOf(["stopping", name])}
                error={errorAt(mistakes, `stopping.${name}`)}
                keepsTypedText
                set={(value) =>
                  change((text) => withAt(withAt(text, ["stopping", "rule"], rule), ["stopping", name], typed(value)))
                }
              />
            ))}
          </div>
        )}
      </fieldset>
      <fieldset>
        <legend>Budget</legend>
        <div className="fours">
          {field(["budget", "trials"], "Trials", { placeholder: "no limit" })}
          {field(["budget", "parallel"], "Parallel trials", { placeholder: "1" })}
          {field(["budget", "max_time"], "Time", { placeholder: "no limit", hint: "Such as 12h." })}
          {field(["budget", "gpu_hours"], "GPU-hours", { placeholder: "no limit" })}
          {field(["budget", "failed_trials"], "Failed trials", { placeholder: "no limit after five" })}
        </div>
        {mistakes.some((mistake) => mistake.path === "budget") && (
          <p className="tone-red small">{errorAt(mistakes, "budget")}</p>
        )}
      </fieldset>
    </>
  );
}
