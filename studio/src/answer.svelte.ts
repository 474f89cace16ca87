// What a view asked for, as long as it is of what the view shows.

import { whileWanted } from "./wanted";

/** The answer to the question of now. An answer to the one before is none: where a layer of seven
 * keys follows one of four, nothing may look for the other three in it. */
export class Answer<Question extends unknown[] | [], Value> {
  private last: { question: Question; value: Value } | null = $state.raw(null);
  /** Why there is no answer; "": nothing is wrong. */
  problem = $state("");
  /** null: there is none yet. */
  readonly value: Value | null = $derived.by(() => {
    const [now, { last }] = [this.question(), this];
    const fits = (part: unknown, place: number) => part === now?.[place];
    return now && last?.question.slice(0, this.same).every(fits) ? last.value : null;
  });

  /**
   * question: what `ask` is called with; null: nothing is asked.
   * failed: is told a problem too.
   * same: how many of its first parts an answer is of: when others change it stays until the next.
   */
  constructor(
    private readonly question: () => Question | null,
    ask: (...question: Question) => Promise<Value>,
    failed: (error: Error) => void = () => {},
    private readonly same?: number,
  ) {
    $effect(() => {
      const question = this.question();
      this.problem = "";
      if (!question) return;
      return whileWanted(
        ask(...question),
        (value) => (this.last = { question, value }),
        (error) => {
          this.problem = error.message;
          failed(error);
        },
      );
    });
  }
}
