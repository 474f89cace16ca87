// How exact the model in a page is, in words.

import { bound } from "../description";
import type { Card } from "../live/card";
import { counted } from "../text";

/** How far the weights of the page's model are from headloom's, as the export measured it. */
export function differenceWords({ bits, difference }: Card): string {
  const most = bound(difference.weights).replace("e-", "e−").replace("e+0", "");
  const texts = counted(difference.texts, "text");
  return bits === 8
    ? `8 bits: weights differ from 32 bits by up to ${most}, measured on ${texts}.`
    : `32 bits: weights within ${most} of headloom’s, measured on ${texts}.`;
}
