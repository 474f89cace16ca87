import { svelte } from "@sveltejs/vite-plugin-svelte";
import { copyFileSync } from "node:fs";
import { defineConfig, type Plugin, type UserConfig } from "vite";

const STATIC = "../src/headloom/studio/static";
const shared = {
  outDir: STATIC,
  target: "es2022",
  reportCompressedSize: false,
  rolldownOptions: { output: { minify: true }, checks: { bundlerTimings: false } },
  modulePreload: false,
} as const;

/** ONNX Runtime gets its WebAssembly as bytes: the place of its script is not asked. */
const onnxRuntime: Plugin = {
  name: "onnx-runtime",
  enforce: "pre",
  transform: (code, id) =>
    id.includes("onnxruntime-web")
      ? code.replaceAll("import.meta.url", JSON.stringify("https://headloom.invalid/"))
      : null,
  writeBundle: () => {
    const wasm = "node_modules/onnxruntime-web/dist/ort-wasm-simd-threaded.wasm";
    copyFileSync(wasm, `${STATIC}/ort.wasm`);
  },
};

/** The programs in the worker besides ours, as their licences ask. */
const NOTICE =
  "/*! ONNX Runtime (c) Microsoft Corporation, MIT licence: github.com/microsoft/onnxruntime; " +
  "tokenizers.js (c) Hugging Face, Apache licence 2.0: github.com/huggingface/tokenizers.js */";

/** The worker of a page with a model inside: one script. */
const worker: UserConfig = {
  plugins: [onnxRuntime],
  build: {
    ...shared,
    emptyOutDir: false,
    rolldownOptions: {
      ...shared.rolldownOptions,
      output: { ...shared.rolldownOptions.output, postBanner: NOTICE },
    },
    lib: {
      entry: "src/live/worker.ts",
      formats: ["iife"],
      name: "headloomWorker",
      fileName: () => "worker.js",
    },
  },
};

/** One module and one style sheet serve the local server, the exported page and the notebook. */
const studio: UserConfig = {
  plugins: [
    svelte({
      // Elements are made one by one: no markup is parsed, so a strict policy can forbid it.
      compilerOptions: { fragments: "tree", css: "external" },
    }),
  ],
  build: {
    ...shared,
    emptyOutDir: true,
    lib: {
      entry: "src/main.ts",
      formats: ["es"],
      fileName: () => "studio.js",
      cssFileName: "studio",
    },
  },
  define: { "process.env.NODE_ENV": '"production"' },
};

export default defineConfig(({ mode }) => (mode === "worker" ? worker : studio));
