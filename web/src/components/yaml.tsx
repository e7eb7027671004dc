/** Read-only YAML with highlighted keys, strings and numbers. */
export function Yaml({ text }: { text: string }) {
  return (
    <pre className="code" tabIndex={0}>
      {text
        .replace(/\n$/, "")
        .split("\n")
        .map((line, i) => (
          <YamlLine key={i} line={line} />
        ))}
    </pre>
  );
}

function YamlLine({ line }: { line: string }) {
  const match = line.match(/^(\s*(?:- )*)([^\s:#"'][^:]*)(:)(\s.*|)$/);
  if (match === null) return <div>{line || " "}</div>;
  const [, indent, key, colon, value = ""] = match;
  const kind = /^\s*-?[\d.]+\s*$/.test(value)
    ? "y-number"
    : /^\s*(true|false|null)\s*$/.test(value)
      ? "y-word"
      : "y-text";
  return (
    <div>
      {indent}
      <span className="y-key">{key}</span>
      {colon}
      <span className={kind}>{value}</span>
    </div>
  );
}
