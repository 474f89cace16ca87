import { expect, test } from "vitest";
import type { Layer } from "../src/description";
import { Overview } from "../src/overview";
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
  const bytes = () => {
    asked.times++;
    return gone();
  };
  const source = { bytes } as unknown as Source;
  return { asked, overview: new Overview(source, (name) => name, LAYER, 128) };
}

test("why there are no pictures is told to who looks; who looks again asks again", async () => {
  const { asked, overview } = forgetful();
  const heard: string[] = [];
  const watch = (name: string) =>
    overview.watch(
      () => {},
      () => heard.push(name),
    );
  watch("gone")();
  const stop = watch("here");
  await settled();
  expect([heard, asked.times]).toEqual([["here"], 1]);
  stop();
  watch("again");
  await settled();
  expect([heard, asked.times]).toEqual([["here", "again"], 2]);
});
