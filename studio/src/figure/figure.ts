// A view as a figure: its stage, laid out for a width, with a title above and small print below.

import { tick } from "svelte";
import { INKS, type Theme } from "../colour";
import { headName, roundedWords, verifiedWords } from "../description";
import type { Studio } from "../studio.svelte";
import { fileName, modelName, visible } from "../text";
import { captured } from "./capture";
import { element, escaped, FONTS, widthOf } from "./pen";

interface Drawn {
  svg: string;
  width: number;
  height: number;
}

/** Padding of a figure; font sizes in pixels of 1/96 inch. */
const EDGE = 12,
  TITLE = 13,
  SMALL = 9.4;
/** Milliseconds between two checks that a view is complete, and checks at most. */
const LOOK = 100,
  LOOKS = 300;

/** A text in lines that fit into a room. */
function linesOf(content: string, size: number, room: number, weight = 400): string[] {
  const lines: string[] = [];
  for (const word of content.split(" ")) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && widthOf(longer, size, weight) <= room) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return content ? lines : [];
}

/** The source of a figure, in small print. */
function smallPrint(studio: Studio): string {
  const { opening, example } = studio;
  const parts = [opening?.title ?? ""];
  if (example) {
    if ((opening?.examples.length ?? 0) > 1) parts.push(example.description.name);
    parts.push(studio.besideName, modelName(example.description.model.name));
    parts.push(verifiedWords(example.description));
  }
  if (opening) parts.push(roundedWords(opening), `headloom ${opening.headloom}`);
  return parts
    .map((part) => visible(part, 80))
    .filter((part) => part !== "∅")
    .join(" · ");
}

/** The name of a figure's file: the trace, the view, and the content. */
export function figureName(studio: Studio, wide: string): string {
  const { opening, example, state } = studio;
  const parts = [opening?.title || "headloom"];
  if (example && (opening?.examples.length ?? 0) > 1) parts.push(example.description.name);
  parts.push(state.view);
  const { of } = studio.figure?.() ?? {};
  if (of) parts.push(of);
  else if (example) parts.push(headName(example, studio.layer, studio.head));
  return [...parts, wide].map(fileName).filter(Boolean).join("-");
}

/** The view that is shown as a figure.
 *
 * wide: pixels of the page that it is laid out for; 0: as it stands. */
export async function figureOf(
  studio: Studio,
  root: HTMLElement,
  theme: Theme,
  wide: number,
): Promise<Drawn> {
  if (!studio.figure) throw new Error("Nothing to export yet: the view is still loading.");
  const { title, note = "" } = studio.figure();
  const before = root.style.cssText;
  root.classList.add("as-figure");
  if (wide) root.style.width = `${wide - 2 * EDGE}px`;
  studio.asFigure = theme;
  try {
    await laidOut(root);
    return drawnOf(studio, root, theme, title, note);
  } finally {
    studio.asFigure = null;
    root.style.cssText = before;
    root.classList.remove("as-figure");
  }
}

/** Waits until the page is laid out anew, and all that a view shows is there. */
async function laidOut(root: HTMLElement): Promise<void> {
  await tick();
  for (let look = 0, same = 0; same < 3; look++) {
    await new Promise((done) => setTimeout(done, LOOK));
    const waits = root.querySelector('main [aria-busy="true"], main .skeleton, canvas.waiting');
    same = waits ? 0 : same + 1;
    if (look > LOOKS) throw new Error("The view is still loading; try again in a moment.");
  }
}

function drawnOf(
  studio: Studio,
  root: HTMLElement,
  theme: Theme,
  title: string,
  note: string,
): Drawn {
  const ink = INKS[theme];
  const stage = root.querySelector<HTMLElement>(".stage")!;
  const box = stage.getBoundingClientRect();
  const width = box.width + 2 * EDGE;
  const parts: string[] = [];
  let y = 8;
  const written = (content: string, size: number, more: Record<string, string | number>) => {
    for (const line of linesOf(content, size, box.width, Number(more["font-weight"] ?? 400)))
      parts.push(
        element(
          "text",
          { x: EDGE, y: (y += size + 3.5), "font-size": size, ...more },
          escaped(line),
        ),
      );
  };
  written(title, TITLE, { "font-weight": 600 });
  written(note, SMALL, { fill: ink.faint });
  y += 10;
  // The stage, and the colour scales of the panel.
  for (const one of [stage, ...root.querySelectorAll<HTMLElement>(".panel .ramp")]) {
    const own = one.getBoundingClientRect();
    parts.push(captured(one, { x: own.left - EDGE, y: own.top - y }));
    y += own.height + 8;
  }
  written(smallPrint(studio), SMALL, { fill: ink.faint });
  const height = Math.ceil(y + 10);
  const ground = element("rect", { width: width + 1, height, fill: ink.card });
  const svg = element(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width: width.toFixed(2),
      height,
      viewBox: `0 0 ${width.toFixed(2)} ${height}`,
      "font-family": escaped(FONTS),
      fill: ink.ink,
    },
    element("title", {}, escaped(title)) + ground + parts.join(""),
  );
  return { svg, width, height };
}
