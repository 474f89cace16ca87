// window.headloom: the model of the page for tests and for the console.

import type { Change, Input } from "./card";
import type { LiveModel, Writing } from "./model.svelte";

export const doorTo = (model: LiveModel) => ({
  card: model.card,
  ids: (text: string) => model.ids(text),
  generate: (text: string, options: Writing = {}) => model.generate(text, options),
  /** What the model makes of a text: its output, logits, and the weights of every head. */
  read: async (input: Input, change: Change = {}) => {
    const { number, tokens, ids, output, logits } = await model.read(input, change);
    const layers = model.card.layers.map(({ name }) => name);
    const arrays = await model.arrays(number);
    await model.drop(number);
    return { tokens, ids, output, logits, layers, ...arrays };
  },
});
