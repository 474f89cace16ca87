import { describe, expect, test } from "vitest";
import {
  areWords,
  counted,
  fileName,
  flowing,
  listed,
  minus,
  modelName,
  notShown,
  paragraphs,
  percent,
  placesOf,
  short,
  significant3,
  visible,
  weightText,
} from "../src/text";

describe("numbers", () => {
  test("three significant digits", () => {
    expect([0, 0.00012, 0.5, 12.345, 999.4, 12345, -2].map((n) => significant3(n))).toEqual([
      "0",
      "1.2e−4",
      "0.500",
      "12.3",
      "999",
      "12,345",
      "−2.00",
    ]);
  });

  test("in a list, short where their steps are even", () => {
    expect([[], [4], [0, 1, 2], [2, 4, 6, 8], [1, 2, 3, 7]].map((of) => listed(of))).toEqual([
      "",
      "4",
      "0, 1, 2",
      "2, 4 … 8",
      "1, 2, 3, 7",
    ]);
    expect(listed([0, 1, 2, 3], "L")).toBe("L0, L1 … L3");
  });

  test("the positions of tokens that stand several times", () => {
    const which = placesOf(["a", "b", "a", "toString"]);
    expect([0, 1, 2, 3].map(which)).toEqual([" (0)", "", " (2)", ""]);
  });

  test("a true minus sign, none before a zero", () => {
    expect([minus(-1.25, 2), minus(-0.001, 2), minus(3, 0)]).toEqual(["−1.25", "0.00", "3"]);
  });

  test("weights, shares, counts", () => {
    expect([weightText(0), weightText(0.5), weightText(1e-5)]).toEqual([
      "0.0000",
      "0.5000",
      "1.0e−5",
    ]);
    expect([percent(1), percent(0.123), percent(0.05)]).toEqual([
      "100\u00a0%",
      "12\u00a0%",
      "5.0\u00a0%",
    ]);
    expect([short(0.45), short(0.999)]).toEqual([".45", "1"]);
    expect([counted(1, "head"), counted(1200, "query", "queries")]).toEqual([
      "1 head",
      "1,200 queries",
    ]);
  });

  test("100 % is all, and 99.9 % at most what is less", () => {
    const shares = [1, 1 - 1e-7, 0.9999, 0.9995, 0.996, 0.9949, 0.0004, 0];
    expect(shares.map((share) => percent(share).replace("\u00a0%", ""))).toEqual([
      "100",
      "100",
      "99.9",
      "99.9",
      "99.6",
      "99",
      "0.0",
      "0",
    ]);
  });

  test("what pictures leave out", () => {
    expect(notShown([], 4)).toBe("");
    expect(notShown([0.2, 0.4], 2)).toMatch(
      /^Drawn from the kept edges: 20\s% to 40\s% of the mass/,
    );
    expect(notShown([0.2], 3)).toMatch(/edges in 1 head: 20\s% of the mass is not shown$/);
  });
});

describe("tokens", () => {
  test("nothing hides", () => {
    const tokens = ["", " a b ", "\n", "\t", "\u0000", "\u200b", "\u00a0"];
    const shown = ["∅", "␣a b␣", "⏎", "⇥", "␀", "‹200B›", "⍽"];
    expect(tokens.map((token) => visible(token))).toEqual(shown);
    expect(visible("abcdef", 3)).toBe("abc…");
    // A space where a token is cut stands between two words; only those at its end are marked.
    expect(visible("the cat", 4)).toBe("the …");
    expect(visible("the    ", 4)).toBe("the␣…");
  });

  test("in flowing text", () => {
    expect(flowing("##ing", true)).toEqual({ text: "ing", space: false, line: false });
    expect(flowing(" word", false)).toEqual({ text: "word", space: true, line: false });
    expect(flowing("\n", false).line).toBe(true);
    expect([flowing("word", true).space, flowing(",", true).space]).toEqual([true, false]);
  });

  test("whole words, or pieces that hold their spaces", () => {
    expect(areWords(["hello", "there", "people"])).toBe(true);
    expect(areWords(["hello", " there"])).toBe(false);
    expect(areWords([..."hello"])).toBe(false);
  });

  test("paragraphs end at blank lines, and with a sentence where they are long", () => {
    expect(paragraphs(["a", "\n\n", "b"])).toEqual([
      { end: 2, whole: true },
      { end: 3, whole: true },
    ]);
    const long = Array.from({ length: 400 }, (_, n) => (n % 40 === 39 ? "." : "word"));
    expect(paragraphs(long).map(({ end }) => end)).toEqual([160, 320, 400]);
    const endless = Array.from({ length: 1300 }, () => "word");
    expect(paragraphs(endless)[0]).toEqual({ end: 1200, whole: false });
  });

  test("the name of a model in a folder is what its path ends with", () => {
    expect(modelName("/home/me/gpt2/model")).toBe("gpt2");
    expect([modelName("openai/gpt2"), modelName(3)]).toEqual(["openai/gpt2", ""]);
  });

  test("a part of a file's name has letters and digits of any script", () => {
    expect(fileName("../my run/trace.loom")).toBe("my-run-trace.loom");
    expect(fileName("L3 H5")).toBe("L3-H5");
    expect(fileName("Größe: 中文?*")).toBe("Größe-中文");
    expect([fileName("..."), fileName("a".repeat(99)).length]).toEqual(["", 40]);
  });
});
