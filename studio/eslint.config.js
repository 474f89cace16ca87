import js from "@eslint/js";
import { defineConfig } from "eslint/config";
import svelte from "eslint-plugin-svelte";
import globals from "globals";
import typescript from "typescript-eslint";

export default defineConfig(
  js.configs.recommended,
  typescript.configs.strict,
  svelte.configs["flat/recommended"],
  svelte.configs["flat/prettier"],
  {
    languageOptions: { globals: globals.browser },
    rules: {
      // Prettier breaks code; a text that it cannot break is broken by hand.
      "max-len": ["error", { code: 100 }],
      "@typescript-eslint/no-unused-vars": [
        "error",
        { varsIgnorePattern: "^_$", argsIgnorePattern: "^_$" },
      ],
      // `!` stands where a check before it is out of the compiler's sight.
      "@typescript-eslint/no-non-null-assertion": "off",
      // What is not warned in a plain build may be in another: svelte-check decides.
      "svelte/no-unused-svelte-ignore": "off",
      // Sets and maps here are made anew by each derived value, not changed.
      "svelte/prefer-svelte-reactivity": "off",
    },
  },
  {
    files: ["**/*.svelte", "**/*.svelte.ts"],
    languageOptions: { parserOptions: { parser: typescript.parser } },
  },
  {
    files: ["**/*.ts", "**/*.svelte"],
    // TypeScript knows which names there are.
    rules: { "no-undef": "off" },
  },
);
