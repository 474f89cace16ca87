// The choice of the next token, and the probabilities that it is chosen by.

export interface Sampling {
  /** 0: always the most probable token. */
  temperature?: number;
  /** Of the most probable tokens so many; none: of all. */
  topK?: number;
  seed?: number;
}

/** softmax(logits / temperature), of the largest topK alone; those of temperature 0 as of 1. */
export function probabilities(
  logits: Float32Array,
  { temperature = 1, topK = 0 }: Sampling = {},
): Float64Array {
  const found = Float64Array.from(logits, (logit) => logit / (temperature || 1));
  if (topK > 0 && topK < found.length) {
    const least = found.slice().sort()[found.length - topK];
    for (let n = 0; n < found.length; n++) if (found[n] < least) found[n] = -Infinity;
  }
  const most = found.reduce((a, b) => Math.max(a, b), -Infinity);
  let total = 0;
  for (let n = 0; n < found.length; n++) total += found[n] = Math.exp(found[n] - most);
  return found.map((one) => one / total);
}

/** The most probable tokens, most probable first. */
export const mostProbable = (
  of: Float64Array,
  count: number,
): [id: number, probability: number][] =>
  Array.from(of.keys())
    .sort((a, b) => of[b] - of[a] || a - b)
    .slice(0, count)
    .map((id) => [id, of[id]]);

/** A function that draws tokens, the same for the same seed. */
export function sampled({
  temperature = 0,
  topK,
  seed = 1,
}: Sampling): (logits: Float32Array) => number {
  const random = randomNumbers(seed);
  return (logits) => {
    if (!temperature)
      return logits.reduce((best, logit, n) => (logit > logits[best] ? n : best), 0);
    const chances = probabilities(logits, { temperature, topK });
    let left = random();
    for (let n = 0; n < chances.length; n++) if ((left -= chances[n]) < 0) return n;
    return mostProbable(chances, 1)[0][0];
  };
}

/** Numbers from 0 to 1: xorshift of 32 bits (Marsaglia 2003). */
function randomNumbers(seed: number): () => number {
  let state = Math.imul(seed, 0x9e3779b1) || 1; // neighbouring seeds give other numbers
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}
