import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// One module and one style sheet serve the local server, the exported page and the notebook.
export default defineConfig({
  plugins: [
    svelte({
      // Elements are made one by one: no markup is parsed, so a strict policy can forbid it.
      compilerOptions: { fragments: "tree", css: "external" },
    }),
  ],
  build: {
    outDir: "../src/headloom/studio/static",
    emptyOutDir: true,
    target: "es2022",
    reportCompressedSize: false,
    rolldownOptions: { output: { minify: true }, checks: { bundlerTimings: false } },
    modulePreload: false,
    lib: {
      entry: "src/main.ts",
      formats: ["es"],
      fileName: () => "studio.js",
      cssFileName: "studio",
    },
  },
  define: { "process.env.NODE_ENV": '"production"' },
});
