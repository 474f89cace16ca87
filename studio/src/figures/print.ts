// The small print of a figure: what it shows and what made it.

import { roundedWords, verifiedWords, type Example } from "../model";
import type { Studio } from "../studio.svelte";
import { modelName, visible } from "../text";

export function smallPrint(studio: Studio, example: Example | null): string {
  const parts = [studio.opening?.title ?? ""];
  if (example && (studio.opening?.examples.length ?? 0) > 1) parts.push(example.description.name);
  if (example && example === studio.example) parts.push(studio.besideName);
  if (example) parts.push(modelName(example.description.model.name));
  if (example && verifiedWords(example)) parts.push(verifiedWords(example));
  if (studio.opening && roundedWords(studio.opening)) parts.push(roundedWords(studio.opening));
  parts.push(`headloom ${studio.opening?.headloom ?? ""}`);
  return parts
    .map((part) => visible(part, 80))
    .filter((part) => part !== "∅")
    .join(" · ");
}
