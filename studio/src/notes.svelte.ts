// What was written about the heads and the edges of a trace: see src/weft/formats/notes.py.

import type { Example } from "./model";
import type { Source } from "./source";

export interface Note {
  id: string;
  version: number;
  layer: number;
  head: number;
  /** Of a note on an edge; null: it is on the head. */
  query: number | null;
  key: number | null;
  text: string;
  /** When it was last changed, UTC. */
  written: string;
  /** Whether it was written of another trace of this name. */
  earlier: boolean;
}

/** Characters of a note, at most. */
export const LONGEST_NOTE = 2000;

interface Known {
  notes: Note[];
  writable: boolean;
  problem: string;
}

export class Notes {
  all: Note[] = $state.raw([]);
  writable = $state(false);
  /** Why they cannot be read or written, in one line. */
  problem = $state("");
  private example: Example | null = null;
  /** How often notes were written here. */
  private writes = 0;

  constructor(private readonly source: Source) {}

  /** Reads the notes of an example, also what another tab wrote meanwhile. */
  async load(example: Example | null = this.example): Promise<void> {
    if (!example) return;
    if (example !== this.example) [this.all, this.writable, this.problem] = [[], false, ""];
    this.example = example;
    const { writes } = this;
    try {
      const known = await this.source.json<Known>(example.path("notes"));
      if (example !== this.example) return;
      this.writable = known.writable;
      // What was read before one was written may come after it.
      if (writes === this.writes) [this.all, this.problem] = [known.notes, known.problem];
    } catch (error) {
      if (example === this.example) this.problem = (error as Error).message;
    }
  }

  /** Those on a head and on its edges. */
  of(layer: number, head: number): Note[] {
    return this.all.filter((note) => note.layer === layer && note.head === head);
  }

  add(note: { text: string; layer: number; head: number; query?: number; key?: number }) {
    return this.send("add", note);
  }
  change({ id, version }: Note, text: string) {
    return this.send("change", { id, version, text });
  }
  remove({ id, version }: Note) {
    return this.send("remove", { id, version });
  }

  /** Whether it was written; else `problem` says why not. */
  private async send(path: "add" | "change" | "remove", content: object): Promise<boolean> {
    const { example } = this;
    if (!example || !this.source.ask) return false;
    this.problem = "";
    try {
      const answer = await this.source.ask<{ notes?: Note[]; problem?: string }>(
        example.path(`notes/${path}`),
        content,
        undefined,
        true,
      );
      if (example !== this.example) return true;
      if (!answer) {
        await this.load();
        this.problem = "Somebody changed this note meanwhile: this is how it is now.";
        return false;
      }
      if (answer.problem) this.problem = answer.problem;
      if (answer.notes) {
        this.writes++;
        this.all = answer.notes;
      }
      return !answer.problem;
    } catch (error) {
      this.problem = (error as Error).message;
      return false;
    }
  }
}
