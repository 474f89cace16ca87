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

/** A server that has lost what it is asked for, and how often it was asked. */
function forgetful() {
  const asked = { times: 0 };
  const soFar = () => {
    asked.times++;
    return gone();
  };
  return { asked, source: { soFar } as unknown as Source };
}

test("why there are no pictures is told to who looks; who looks again asks again", async () => {
  const { asked, source } = forgetful();
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
  expect([heard, asked.times]).toEqual([["no longer held"], 1]);
  stop();
  overview.watch(
    () => {},
    () => heard.push("again"),
  );
  await settled();
  expect([heard, asked.times]).toEqual([["no longer held", "again"], 2]);
});

test.each([true, false])("so it is of the pictures of all heads; small: %s", async (small) => {
  const { asked, source } = forgetful();
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
  const before = asked.times;
  watch("again");
  await settled();
  expect(heard).toEqual(["here", "again"]);
  expect(asked.times).toBe(before + 1);
});
