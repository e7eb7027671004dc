import { Trash2 } from "lucide-react";
import type { Mistake } from "~/api/types";
import { Field, Sentence } from "~/components/parts";
import { TextInput } from "~/components/forms/textInput";
import type { ParameterRow } from "./studyDraft";
import { errorAt } from "./form";

const TYPES = ["float", "integer", "categorical", "discrete"];
const SCALES = ["linear", "log", "reverse-log"];

interface ParameterProps {
  row: ParameterRow;
  /** Names of the other parameters. */
  others: readonly string[];
  mistakes: readonly Mistake[];
  set: (field: keyof ParameterRow, value: string) => void;
  remove: () => void;
}

/** One parameter: its range or values, and its condition. */
export function ParameterFields({ row, others, mistakes, set, remove }: ParameterProps) {
  const at = `parameters.${row.name}`;
  const fields = ["type", "min", "max", "scale", "values", "when"];
  // Errors of the whole parameter are shown below, errors of a field at the field.
  const whole = mistakes.find(
    ({ path }) =>
      path === at || (path.startsWith(`${at}.`) && !fields.some((field) => path.startsWith(`${at}.${field}`))),
  );
  const input = (field: keyof ParameterRow, label: string, placeholder: string) => (
    <TextInput
      name={`${at}.${field}`}
      label={label}
      placeholder={placeholder}
      value={row[field]}
      error={errorAt(mistakes, `${at}.${field}`)}
      keepsTypedText
      set={(value) => set(field, value)}
    />
  );
  const choice = (field: "type" | "scale", label: string, items: readonly string[]) => (
    <Field label={label} error={errorAt(mistakes, `${at}.${field}`)}>
      {(props) => (
        <select {...props} className="input" value={row[field]} onChange={(event) => set(field, event.target.value)}>
          {(items.includes(row[field]) ? items : [row[field], ...items]).map((item) => (
            <option key={item}>{item}</option>
          ))}
        </select>
      )}
    </Field>
  );
  const isRange = row.type === "float" || row.type === "integer";
  return (
    <div className="parameter" role="group" aria-label={`Parameter ${row.name}`}>
      <TextInput
        name={`${at}.name`}
        label="Name"
        value={row.name}
        keepsTypedText
        validateTyped={(typed) =>
          typed.trim() === "" ? "Enter a name." : others.includes(typed) ? `The name ${typed} is taken.` : undefined
        }
        set={(value) => set("name", value)}
      />
      {choice("type", "Type", TYPES)}
      {isRange ? (
        <>
          {input("min", "Min", "0")}
          {input("max", "Max", "1")}
          {choice("scale", "Scale", SCALES)}
        </>
      ) : (
        <div className="parameter-values">
          {input("values", "Values", row.type === "discrete" ? "16, 32, 64" : "sgd, adam")}
        </div>
      )}
      <div className="parameter-when">
        {input("when", "Condition", others[0] ? `always; or ${others[0]}=value` : "always")}
      </div>
      <button type="button" className="button quiet icon small" aria-label={`Remove ${row.name}`} onClick={remove}>
        <Trash2 size={14} aria-hidden="true" />
      </button>
      {whole && (
        <p className="tone-red small parameter-wrong">
          <Sentence
            text={whole.hint ? `${row.name} ${whole.message}: ${whole.hint}` : `${row.name} ${whole.message}`}
          />
        </p>
      )}
    </div>
  );
}
