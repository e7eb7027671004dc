import { Search } from "lucide-react";
import { useEffect, useRef, useState } from "react";

interface SearchBoxProps {
  /** Accessible name. */
  label: string;
  /** Placeholder. */
  hint: string;
  value: string;
  set: (text: string) => void;
}

/** A search field that reports its text 200 ms after the last key press. */
export function SearchBox({ label, hint, value, set }: SearchBoxProps) {
  const [text, setText] = useState(value);
  const lastSent = useRef(value);
  const page = useRef(window.location.pathname);
  const onChange = useRef(set);
  onChange.current = set;
  useEffect(() => {
    if (value !== lastSent.current) {
      lastSent.current = value;
      setText(value);
    }
  }, [value]);
  useEffect(() => {
    if (text.trim() === lastSent.current) return;
    const timer = setTimeout(() => {
      // After a click that leads to another page, do not navigate back.
      if (window.location.pathname !== page.current) return;
      lastSent.current = text.trim();
      onChange.current(text.trim());
    }, 200);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <div className="search filter-search">
      <Search size={14} aria-hidden="true" />
      <input
        className="input"
        type="search"
        aria-label={label}
        placeholder={hint}
        value={text}
        onChange={(event) => setText(event.target.value)}
      />
    </div>
  );
}
