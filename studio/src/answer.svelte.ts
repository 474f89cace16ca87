// The answer to a view's request, as long as the view still shows the same thing.

import { whileWanted } from "./wanted";

/** The answer to the current question. Answers to earlier questions are dropped: after a layer of
 * four keys, one of seven must not read missing keys from it. */
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
   * question: the arguments of `ask`; null: no request.
   * failed: called with an error too.
   * same: the first parts of the question that identify an answer: when only other parts change, it
   * stays until the next.
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
