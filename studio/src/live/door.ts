// window.headloom: the model of the page for tests and for the console.

import type { Change, Input } from "./card";
import type { LiveModel, Writing } from "./model.svelte";

export const doorTo = (model: LiveModel) => ({
  card: model.card,
  ids: (text: string) => model.ids(text),
  generate: (text: string, options: Writing = {}) => model.generate(text, options),
  /** What the model makes of a text: its output, logits, and the weights of every head. */
  read: async (input: Input, change: Change = {}) => {
    const { tokens, ids, output, logits, weights, lse } = await model.whole(input, change);
    const layers = model.card.layers.map(({ name }) => name);
    return { tokens, ids, output, logits, layers, weights, lse };
  },
});
