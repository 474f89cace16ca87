// The views, in the order of their tabs. A view is a file in views/ and an entry here.

import type { Component } from "svelte";
import type { LiveModel } from "./live/model.svelte";
import type { Example } from "./model";
import type { Studio } from "./studio.svelte";
import type { Training } from "./training";
import Compare from "./views/Compare.svelte";
import Corpus from "./views/Corpus.svelte";
import Graph from "./views/Graph.svelte";
import { isGuided } from "./views/guide";
import Guide from "./views/Guide.svelte";
import Heads from "./views/Heads.svelte";
import Images from "./views/Images.svelte";
import Matrix from "./views/Matrix.svelte";
import ModelView from "./views/Model.svelte";
import Neuron from "./views/Neuron.svelte";
import Paths from "./views/Paths.svelte";
import Threads from "./views/Threads.svelte";
import TrainingView from "./views/Training.svelte";

export interface ViewEntry {
  /** The name in links. */
  name: string;
  title: string;
  /** The key that opens it. */
  key: string;
  /** The view that Escape goes back to. */
  back?: string;
  /** Whether it needs a server, or for an example the model that read it. */
  live?: boolean;
  ofRead?: boolean;
  /** Whether it shows the head that is chosen. */
  ofHead?: boolean;
  /** Whether it has content; default: always. */
  when?: (studio: Studio) => boolean;
  /** The component of an example; */
  ofExample?: Component<{ studio: Studio; example: Example }>;
  /** or that of an example and the model in the page; */
  ofModel?: Component<{ studio: Studio; model: LiveModel; example: Example }>;
  /** Whether it chooses its own texts. */
  whole?: boolean;
  /** or the component of a training, where there is one. */
  ofTraining?: Component<{ studio: Studio; training: Training }>;
}

/** Whether a view is available for the open collection. */
export const isAvailable = (one: ViewEntry, studio: Studio): boolean =>
  one.ofModel
    ? Boolean(studio.source.model?.card.tokenizer) && (!one.when || one.when(studio))
    : one.live
      ? (studio.source.live && (!one.when || one.when(studio))) ||
        Boolean(one.ofRead && studio.source.model && studio.example?.description.read)
      : Boolean(one.ofExample || studio.opening?.history);

export const VIEWS: ViewEntry[] = [
  {
    name: "guide",
    title: "Guide",
    key: "u",
    ofModel: Guide,
    whole: true,
    when: ({ source }) => isGuided(source.model!.card),
  },
  { name: "model", title: "Model", key: "o", ofModel: ModelView },
  { name: "heads", title: "Heads", key: "h", ofExample: Heads },
  { name: "threads", title: "Threads", key: "t", back: "heads", ofHead: true, ofExample: Threads },
  { name: "matrix", title: "Matrix", key: "m", back: "threads", ofHead: true, ofExample: Matrix },
  {
    name: "neuron",
    title: "Neuron",
    key: "n",
    back: "threads",
    ofHead: true,
    ofExample: Neuron,
    live: true,
    ofRead: true,
  },
  {
    name: "image",
    title: "Image",
    key: "i",
    back: "heads",
    ofHead: true,
    ofExample: Images,
    live: true,
    when: ({ example }) => (example?.description.patches?.length ?? 0) > 0,
  },
  {
    name: "texts",
    title: "Texts",
    key: "x",
    back: "heads",
    ofExample: Corpus,
    live: true,
    when: ({ opening }) => (opening?.examples.length ?? 0) > 1,
  },
  { name: "graph", title: "Graph", key: "g", back: "heads", ofHead: true, ofExample: Graph },
  { name: "paths", title: "Paths", key: "f", back: "heads", ofExample: Paths },
  {
    name: "compare",
    title: "Compare",
    key: "c",
    back: "heads",
    ofHead: true,
    ofExample: Compare,
    live: true,
    when: ({ opening }) => (opening?.examples.length ?? 0) > 1,
  },
  { name: "training", title: "Training", key: "r", back: "heads", ofTraining: TrainingView },
];
