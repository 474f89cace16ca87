import { expect, test } from "vitest";
import { format, parse, START } from "../src/link";

const VIEWS = ["heads", "threads", "matrix", "training"];

test("a link holds what differs from the start, and the view", () => {
  expect(format(START)).toBe("#view=heads");
  const state = { ...START, view: "matrix", layer: 3, sinks: true, window: "1,2,3" };
  expect(parse(format(state), VIEWS)).toEqual({ state, problems: [] });
});

test("a name of an example survives whatever it holds", () => {
  const state = { ...START, example: "a&b=c #d → é" };
  expect(parse(format(state), VIEWS).state.example).toBe(state.example);
});

test("what cannot be stays as it starts, and is said", () => {
  const { state, problems } = parse("#view=graph&layer=two&share=1.5&head=1e99&query=", VIEWS);
  expect(state).toEqual(START);
  expect(problems).toEqual([
    "The link has view=graph; expected one of heads, threads, matrix, training.",
    "The link has layer=two; expected a whole number.",
    "The link has share=1.5; expected a share above 0, at most 1.",
    "The link has head=1e99; expected a whole number.",
    "The link has query=∅; expected a whole number.",
  ]);
});

test("names that there are not are left out, also those of every object", () => {
  expect(parse("#toString=1&__proto__=2&colour=entropy", VIEWS).state).toEqual({
    ...START,
    colour: "entropy",
  });
});

test("long texts are cut", () => {
  expect(parse(`#window=${"1".repeat(1000)}`, VIEWS).state.window).toHaveLength(400);
});
