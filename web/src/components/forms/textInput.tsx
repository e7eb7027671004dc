import { type ChangeEvent, type ReactNode, useId, useState } from "react";
import { Field } from "~/components/parts";

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
  isRequired?: boolean;
  /** With `set` the form keeps the value; without them the browser does, until the form is sent. */
  value?: string;
  defaultValue?: string | number;
  set?: (value: string) => void;
  /** What is typed stays as it is until the field is left, whatever `set` makes of it: "0." is on its way to 0.5. */
  isKept?: boolean;
  /** What is wrong with what is typed, before anybody else is asked. */
  wrongWhile?: (typed: string) => string | undefined;
}

/** A labelled line of text. */
export function TextInput(props: TextInputProps) {
  const {
    name,
    label,
    hint,
    wrong,
    list = [],
    isNumeric,
    isDisabled,
    isRequired,
    set,
    isKept,
    wrongWhile,
    value,
    ...more
  } = props;
  const listId = useId();
  const [typed, setTyped] = useState<string | null>(null);
  const change = (event: ChangeEvent<HTMLInputElement>) => {
    if (isKept) setTyped(event.target.value);
    set?.(event.target.value);
  };
  const kept = set ? { onChange: change, onBlur: () => setTyped(null), value: typed ?? value ?? "" } : {};
  return (
    <Field label={label} hint={hint} wrong={(typed !== null ? wrongWhile?.(typed) : undefined) ?? wrong}>
      {(own) => (
        <>
          <input
            {...own}
            {...more}
            {...kept}
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
