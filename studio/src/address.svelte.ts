// The state of the page, and the address line that holds it as a link.

import { format, parse, START, type State } from "./link";

export class Address {
  state: State = $state({ ...START });
  /** Invalid parts of the link. */
  problems: string[] = $state.raw([]);

  /** linked: whether the studio may write the browser's address; false in a notebook. */
  constructor(
    private readonly linked: boolean,
    start: string,
    views: readonly string[],
  ) {
    ({ state: this.state, problems: this.problems } = parse(start, views));
    const read = () => {
      this.pending = "";
      ({ state: this.state, problems: this.problems } = parse(location.hash, views));
    };
    if (linked) window.addEventListener("popstate", read);
    if (linked) window.addEventListener("hashchange", read);
  }

  /** Changes the state. push: as a step that Back undoes. */
  set(change: Partial<State>, push = false): void {
    Object.assign(this.state, change);
    if (!this.linked) return;
    const link = format(this.state);
    try {
      if (push) {
        this.write();
        history.pushState(null, "", link);
      } else {
        this.pending = link;
        clearTimeout(this.later);
        this.later = window.setTimeout(() => this.write(), 60);
      }
    } catch {
      // Browsers limit how often the line is written; the next change writes it.
    }
  }

  /** Browsers allow few changes per second: only the last one is written, a moment later. */
  private later = 0;
  private pending = "";
  private write(): void {
    clearTimeout(this.later);
    if (this.pending && this.pending !== location.hash)
      history.replaceState(null, "", this.pending);
    this.pending = "";
  }

  get link(): string {
    return format(this.state);
  }
}
