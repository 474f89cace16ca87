import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Connection, LOOK } from "../src/connection.svelte";
import { servedSource } from "../src/source";

/** What the server has; null: none answers. */
let traces: string | null;
let asked: string[];
let broken: string[];

beforeEach(() => {
  vi.useFakeTimers();
  [traces, asked, broken] = ["first", [], []];
  vi.stubGlobal("fetch", async (path: string, options: RequestInit = {}) => {
    options.signal?.throwIfAborted();
    asked.push(`${options.method ?? "GET"} ${path}`);
    if (traces === null) throw new TypeError("Failed to fetch");
    const meant = new Headers(options.headers).get("Headloom-Traces") ?? traces;
    const response = new Response(meant === traces ? `"${path} of ${traces}"` : "{}", {
      status: meant === traces ? 200 : 412,
      headers: { "Headloom-Traces": traces },
    });
    if (broken.includes(path)) response.json = () => Promise.reject(new TypeError("network error"));
    return response;
  });
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const looks = (count: number) => vi.advanceTimersByTimeAsync(count * LOOK + 1);

test("what is asked while no server is there is answered once one is", async () => {
  const source = servedSource("/");
  const connection = source.connection!;
  const returned = vi.spyOn(connection, "returned");
  expect(await source.json("open")).toBe("/open of first");
  traces = null;
  const pieces = [source.json("a"), source.json("b")];
  await looks(3);
  expect(connection.contact).toBe("lost");
  // However many wait, one looks; what waits is not asked for meanwhile.
  expect(asked.filter((path) => path === "GET /open").length).toBe(5);
  expect(asked.filter((path) => path === "GET /a").length).toBe(1);
  traces = "first";
  await looks(1);
  expect(await Promise.all(pieces)).toEqual(["/a of first", "/b of first"]);
  expect(connection.contact).toBe("there");
  expect(returned).toHaveBeenCalledOnce();
  const before = asked.length;
  await looks(5);
  expect(asked.length).toBe(before);
});

test("a server with other traces answers nothing, and that of before goes on", async () => {
  const source = servedSource("/");
  await source.json("open");
  traces = "second";
  const piece = source.json("a");
  await looks(2);
  expect(source.connection!.contact).toBe("other");
  traces = "first";
  await looks(1);
  expect(await piece).toBe("/a of first");
});

test("what is called off does not wait", async () => {
  const source = servedSource("/");
  await source.json("open");
  traces = null;
  const stop = new AbortController();
  const piece = source.bytes("a", stop.signal);
  const question = source.ask!("sql", {}, stop.signal);
  await looks(1);
  const failed = expect(piece).rejects.toThrow("left");
  stop.abort(new DOMException("left", "AbortError"));
  await failed;
  expect(await question).toBe(null);
});

test("an answer that breaks off each time is not asked for without end", async () => {
  const source = servedSource("/");
  broken = ["/a"];
  const failed = expect(source.json("a")).rejects.toThrow("breaks off its answer to a");
  await looks(3);
  await failed;
  expect(source.connection!.contact).toBe("there");
  expect(asked.filter((path) => path === "GET /a").length).toBe(3);
});

test("another program at the address is no server", async () => {
  const connection = new Connection("/");
  await connection.ask("open", (response) => response.json());
  vi.stubGlobal("fetch", async () => new Response("<html>"));
  const piece = connection.ask("a", (response) => response.text());
  await looks(1);
  expect(connection.contact).toBe("lost");
  vi.stubGlobal(
    "fetch",
    async () => new Response("right", { headers: { "Headloom-Traces": "first" } }),
  );
  await looks(1);
  expect(await piece).toBe("right");
});
