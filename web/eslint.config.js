import hooks from "eslint-plugin-react-hooks";
import { defineConfig, globalIgnores } from "eslint/config";
import ts from "typescript-eslint";

export default defineConfig([
  globalIgnores(["dist", "src/api/schema.gen.ts"]),
  ts.configs.strict,
  {
    plugins: { "react-hooks": hooks },
    rules: { "react-hooks/rules-of-hooks": "error", "react-hooks/exhaustive-deps": "error" },
  },
  {
    rules: {
      // Nothing is ever inserted as HTML.
      "no-restricted-syntax": ["error", "JSXAttribute[name.name='dangerouslySetInnerHTML']"],
      "no-restricted-properties": ["error", { property: "innerHTML" }, { property: "outerHTML" }],
    },
  },
]);
