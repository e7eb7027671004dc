import { type ChangeEvent, type ReactNode, useId, useState } from "react";
import { Field } from "~/components/parts";

interface TextInputProps {
  name: string;
  label: string;
  placeholder?: string;
  hint?: ReactNode;
  error?: string | undefined;
  type?: string;
  /** Suggestions while typing. */
  list?: readonly string[];
  isNumeric?: boolean;
  isDisabled?: boolean;
  isRequired?: boolean;
  /** With `set` the input is controlled; without it the browser holds the value until the form is sent. */
  value?: string;
  defaultValue?: string | number;
  set?: (value: string) => void;
  /** The typed text stays until the field loses focus, whatever `set` makes of it: "0." may become 0.5. */
  keepsTypedText?: boolean;
  /** Client-side validation of the typed text. */
  validateTyped?: (typed: string) => string | undefined;
}

/** A labelled text input. */
export function TextInput(props: TextInputProps) {
  const {
    name,
    label,
    hint,
    error,
    list = [],
    isNumeric,
    isDisabled,
    isRequired,
    set,
    keepsTypedText,
    validateTyped,
    value,
    ...more
  } = props;
  const listId = useId();
  const [typed, setTyped] = useState<string | null>(null);
  const change = (event: ChangeEvent<HTMLInputElement>) => {
    if (keepsTypedText) setTyped(event.target.value);
    set?.(event.target.value);
  };
  const controlled = set ? { onChange: change, onBlur: () => setTyped(null), value: typed ?? value ?? "" } : {};
  return (
    <Field label={label} hint={hint} error={(typed !== null ? validateTyped?.(typed) : undefined) ?? error}>
      {(fieldProps) => (
        <>
          <input
            {...fieldProps}
            {...more}
            {...controlled}
            className={isNumeric ? "input num" : "input"}
            name={name}
            min={0}
            disabled={isDisabled}
            required={isRequired}
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
