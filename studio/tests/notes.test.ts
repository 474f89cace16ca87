import { expect, test } from "vitest";
import type { Example } from "../src/model";
import { Notes, type Note } from "../src/notes.svelte";
import type { Source } from "../src/source";

test("a list that was read before a note was written does not take its place", async () => {
  const late: ((known: object) => void)[] = [];
  const source = {
    json: () => new Promise((done) => late.push(done)),
    ask: async () => ({ notes: [{ id: "new" } as Note] }),
  } as unknown as Source;
  const notes = new Notes(source);
  const reading = notes.load({ path: (rest: string) => rest } as Example);
  expect(await notes.add({ text: "x", layer: 0, head: 0 })).toBe(true);
  late[0]({ notes: [], writable: true, problem: "" });
  await reading;
  expect(notes.all.map(({ id }) => id)).toEqual(["new"]);
  expect(notes.writable).toBe(true);
  const again = notes.load();
  late[1]({ notes: [{ id: "new" }, { id: "other" }], writable: true, problem: "" });
  await again;
  expect(notes.all.map(({ id }) => id)).toEqual(["new", "other"]);
});
