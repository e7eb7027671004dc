import { Search } from "lucide-react";
import { useEffect, useRef, useState } from "react";

interface SearchBoxProps {
  /** What is searched, for screen readers. */
  label: string;
  /** What may be typed. */
  hint: string;
  value: string;
  set: (text: string) => void;
}

/** Typing is quick, the address follows a moment later. */
export function SearchBox({ label, hint, value, set }: SearchBoxProps) {
  const [text, setText] = useState(value);
  const told = useRef(value);
  const page = useRef(window.location.pathname);
  const tell = useRef(set);
  tell.current = set;
  useEffect(() => {
    if (value !== told.current) {
      told.current = value;
      setText(value);
    }
  }, [value]);
  useEffect(() => {
    if (text.trim() === told.current) return;
    const timer = setTimeout(() => {
      // Who has clicked on something meanwhile is on the way to another page, and is not called back.
      if (window.location.pathname !== page.current) return;
      told.current = text.trim();
      tell.current(text.trim());
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
