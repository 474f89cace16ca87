// The name of a figure's file.

import { headName } from "../model";
import type { Studio } from "../studio.svelte";
import { fileName } from "../text";
import { VIEWS } from "../views";

/** What the file of the view's figure is called: the trace, the view, and what of it is shown. */
export function figureName(studio: Studio, of: string | undefined, wide: string): string {
  const { opening, example, state } = studio;
  const view = VIEWS.find(({ name }) => name === state.view);
  const parts = [opening?.title || "headloom"];
  if (example && view?.ofExample && (opening?.examples.length ?? 0) > 1)
    parts.push(example.description.name);
  parts.push(state.view);
  if (of) parts.push(of);
  else if (example && view?.ofHead) parts.push(headName(example, studio.layer, studio.head));
  return [...parts, wide].map(fileName).filter(Boolean).join("-");
}
