import { expect, test } from "vitest";
import type { Layer } from "../src/model";
import { Overview, Pictures } from "../src/overview";
import type { Source } from "../src/source";
import { whileWanted } from "../src/wanted";

const settled = () => new Promise((done) => setTimeout(done, 0));
const gone = () => Promise.reject(new Error("no longer held"));

test("an answer is heard while it is wanted, and no longer", async () => {
  const heard: string[] = [];
  const hear = (promise: Promise<string>) =>
    whileWanted(
      promise,
      (value) => heard.push(value),
      (error) => heard.push(error.message),
    );
  hear(Promise.resolve("found"));
  hear(gone());
  hear(Promise.resolve("too late"))();
  hear(gone())();
  await settled();
  expect(heard).toEqual(["found", "no longer held"]);
});

const LAYER = { number: 0, heads: 2, rows: 3, columns: 3, picture: "means" } as Layer;

test("why there are no pictures is told to who looks; who looks again asks again", async () => {
  let asked = 0;
  const source = {
    soFar: () => {
      asked++;
      return gone();
    },
  } as unknown as Source;
  const heard: string[] = [];
  const overview = new Overview(source, (name) => name, LAYER);
  overview.watch(
    () => {},
    () => heard.push("first"),
  )();
  const stop = overview.watch(
    () => {},
    (error) => heard.push(error.message),
  );
  await settled();
  expect([heard, asked]).toEqual([["no longer held"], 1]);
  stop();
  overview.watch(
    () => {},
    () => heard.push("again"),
  );
  await settled();
  expect([heard, asked]).toEqual([["no longer held", "again"], 2]);
});

test.each([true, false])("small pictures, %s: the same", async (small) => {
  let asked = 0;
  const source = {
    soFar: () => {
      asked++;
      return gone();
    },
  } as unknown as Source;
  const pictures = new Pictures(
    source,
    (name) => name,
    [LAYER],
    small,
    () => new Overview(source, (name) => name, LAYER),
  );
  const heard: string[] = [];
  const watch = (name: string) =>
    pictures.watch(
      () => {},
      () => heard.push(name),
    );
  watch("gone")();
  const stop = watch("here");
  await settled();
  expect(heard).toEqual(["here"]);
  stop();
  const before = asked;
  watch("again");
  await settled();
  expect(heard).toEqual(["here", "again"]);
  expect(asked).toBe(before + 1);
});
