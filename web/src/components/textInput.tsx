import { type ChangeEvent, type ReactNode, useId } from "react";
import { Field } from "./parts";

interface TextInputProps {
  name: string;
  label: string;
  placeholder?: string;
  hint?: ReactNode;
  wrong?: string | undefined;
  type?: string;
  /** What is offered while somebody types. */
  list?: readonly string[];
  isNumeric?: boolean;
  isDisabled?: boolean;
  /** With `set` the form keeps the value; without them the browser does, until the form is sent. */
  value?: string;
  set?: (value: string) => void;
}

/** A labelled line of text. */
export function TextInput({ name, label, hint, wrong, list = [], isNumeric, isDisabled, set, ...more }: TextInputProps) {
  const listId = useId();
  const kept = set ? { onChange: (event: ChangeEvent<HTMLInputElement>) => set(event.target.value) } : {};
  return (
    <Field label={label} hint={hint} wrong={wrong}>
      {(props) => (
        <>
          <input
            {...props}
            {...more}
            {...kept}
            className={isNumeric ? "input num" : "input"}
            name={name}
            min={0}
            disabled={isDisabled}
            autoComplete="off"
            spellCheck={false}
            list={list.length > 0 ? listId : undefined}
          />
          {list.length > 0 && (
            <datalist id={listId}>
              {list.map((item) => (
                <option key={item} value={item} />
              ))}
            </datalist>
          )}
        </>
      )}
    </Field>
  );
}
