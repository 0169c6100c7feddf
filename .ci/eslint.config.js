// @ts-check
/** How the JavaScript of the pages and of the benchmarks is checked, beside the pages' types. */

import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: ["**/static/vendor/**"] },
  js.configs.recommended,
  {
    files: ["**/*.js"],
    languageOptions: { ecmaVersion: 2025, sourceType: "module", globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      eqeqeq: "error",
      "max-len": ["error", { code: 120, ignorePattern: "^(import|\\} from|/\\*\\* @typedef) " }],
      "max-lines-per-function": ["error", { max: 30, skipComments: true }],
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-restricted-properties": [
        "error",
        ...["innerHTML", "outerHTML", "insertAdjacentHTML", "setHTML", "setHTMLUnsafe", "write"].map((property) => ({
          property,
          message: "no text becomes HTML: make nodes with shared/dom.js",
        })),
      ],
      "no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_", caughtErrors: "all" }],
      "no-var": "error",
      "prefer-const": "error",
    },
  },
  {
    files: ["tests/benchmarks/*.js"], // programs of Node.js, without a page
    languageOptions: { globals: globals.node },
    rules: { "no-restricted-properties": "off" },
  },
  { files: ["**/*.test.js"], languageOptions: { globals: globals.node }, rules: { "max-lines-per-function": "off" } },
];
