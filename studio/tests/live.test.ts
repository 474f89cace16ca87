import { describe, expect, test } from "vitest";
import type { Card } from "../src/live/card";
import { edgesPiece, meanPiece, picturesPiece, sumsPiece } from "../src/live/pieces";
import { mostProbable, probabilities, sampled } from "../src/live/sampling";
import { sharedCharacters } from "../src/live/shared";
import { externalData } from "../src/live/stored";
import { layerWeights, type LayerInputs, type Rule } from "../src/live/weights";
import { Edges } from "../src/model";

describe("stored tensors", () => {
  const card = {
    tensors: [
      { name: "E", count: 6, rows: 2, bits: 8 },
      { name: "b", count: 2, rows: 1, bits: 32 },
      { name: "W", count: 2, rows: 2, bits: 8 },
    ],
    graphs: {
      model: {
        tensors: [
          [1, 0],
          [0, 8],
          [2, 32],
        ],
        bytes: 40,
      },
    },
    snapshots: { steps: [0], tensors: [2], table: [{ name: "W", count: 2, rows: 1, bits: 8 }] },
  } as unknown as Card;
  const trained = {
    // The scales of E, all of b, the scales of W.
    floats: Float32Array.from([0.5, 2, 7, 8, 1, 0.25]),
    bytes: Int8Array.from([1, -2, 127, 3, 0, -128, 4, 8]),
  };
  const read = (bytes: Uint8Array<ArrayBuffer>) => [...new Float32Array(bytes.buffer)];

  test("8 bits are numbers times the scale of their row", () => {
    const found = read(externalData(card, "model", trained));
    expect(found).toEqual([7, 8, 0.5, -1, 63.5, 6, 0, -256, 4, 2]);
  });
  test("a snapshot has some of them", () => {
    const early = { floats: Float32Array.from([3]), bytes: Int8Array.from([5, 6]) };
    const found = read(externalData(card, "model", trained, early));
    expect(found).toEqual([7, 8, 0.5, -1, 63.5, 6, 0, -256, 15, 18]);
  });
});

describe("pieces", () => {
  // Scores are ln 2 q k: the rows of the first head are 1 and 1/3, 2/3, those of the second 1 and
  // 1/2, 1/2.
  const rule: Rule = {
    heads: 2,
    kvHeads: 1,
    scale: Math.log(2),
    causal: true,
    window: null,
    softcap: null,
    sinks: null,
  };
  const inputs: LayerInputs = {
    rows: 2,
    columns: 2,
    depth: 1,
    valueDepth: 2,
    queries: Float32Array.from([1, 1, 0, 0]),
    keys: Float32Array.from([0, 1]),
    values: Float32Array.from([3, 4, 0, 1]),
    bias: null,
  };
  const layer = layerWeights(rule, inputs);

  test("edges: strongest first, of equal ones the first key", () => {
    const one = new Edges(edgesPiece(layer, 0, 0), 2, 2);
    expect([one.row(0), one.row(1)].map((row) => row.map(({ key }) => key))).toEqual([[0], [1, 0]]);
    expect(one.row(1)[0].weight).toBeCloseTo(2 / 3, 6);
    expect(one.row(1)[0].score).toBeCloseTo(Math.log(2), 6);
    expect([...one.count, ...one.rest]).toEqual([1, 2, 0, 0]);
    const other = new Edges(edgesPiece(layer, 1, 0), 2, 2);
    expect(other.row(1).map(({ key, weight }) => [key, weight])).toEqual([
      [0, 0.5],
      [1, 0.5],
    ]);
  });
  test("pictures", () => {
    const shade = (mass: number) => Math.round(255 * mass ** 0.25);
    const found = [...new Uint8Array(picturesPiece(layer, 128))];
    expect(found).toEqual([255, 0, shade(1 / 3), shade(2 / 3), 255, 0, shade(1 / 2), shade(1 / 2)]);
    // One block of all cells: a row's share in it is 1.
    expect([...new Uint8Array(picturesPiece(layer, 1))]).toEqual([255, 255]);
  });
  test("sums: received, valued, given", () => {
    const found = [...new Float32Array(sumsPiece(rule, layer, inputs))].map((n) => +n.toFixed(5));
    const [row, other] = [5 / 3 + 2 / 3, 5 / 2 + 1 / 2]; // of weights times |v|, 5 and 1
    const given = [1 + 5 / 3 / row, 2 / 3 / row, 1 + 5 / 2 / other, 1 / 2 / other];
    const all = [4 / 3, 2 / 3, 3 / 2, 1 / 2, 5, row, 5, other, ...given];
    expect(found).toEqual(all.map((n) => +n.toFixed(5)));
  });
  test("the mean of the heads", () => {
    const bytes = meanPiece(layer, 1);
    const weights = [...new Float32Array(bytes, 0, 6)].map((n) => +n.toFixed(5));
    // Weights, what is missing of a row, and keys.
    expect(weights).toEqual([1, 0, 7 / 12, 5 / 12, 0, 0].map((n) => +n.toFixed(5)));
    expect([...new Uint32Array(bytes, 24)]).toEqual([0, 2 ** 32 - 1, 1, 0]);
  });
});

describe("the next token", () => {
  const logits = Float32Array.from([0, Math.log(2), Math.log(5)]);
  test("probabilities", () => {
    const eighths = Array.from(probabilities(logits), (one) => Math.round(one * 8e4) / 1e4);
    expect(eighths).toEqual([1, 2, 5]);
    expect(probabilities(logits, { topK: 2 })[0]).toBe(0);
    expect(probabilities(logits, { temperature: 0.5 })[2]).toBeCloseTo(25 / 30, 6);
    expect(mostProbable(probabilities(logits), 2).map(([id]) => id)).toEqual([2, 1]);
  });
  test("temperature 0 takes the most probable; draws follow the probabilities and the seed", () => {
    expect(sampled({ temperature: 0 })(logits)).toBe(2);
    const draw = (seed: number) => {
      const next = sampled({ temperature: 1, seed });
      return Array.from({ length: 4000 }, () => next(logits));
    };
    expect(draw(7)).toEqual(draw(7));
    expect(draw(7)).not.toEqual(draw(8));
    const share = draw(7).filter((id) => id === 2).length / 4000;
    expect(Math.abs(share - 5 / 8)).toBeLessThan(0.03);
  });
});

test("characters of several tokens, as in Python", () => {
  const names = [" ‹0xE6›", "‹0x9D›‹0xB1›", "!‹0xFF›", "<end>", "‹0xE6›‹0x9D›", "a"];
  const shown = [" 東¹⁄₂", "東²⁄₂", "!‹0xFF›", "<end>", "‹0xE6›‹0x9D›", "a"];
  expect(sharedCharacters(names)).toEqual(shown);
});
