// What the page holds, decoded when it is first looked at, and numbers about a head.

const payload = JSON.parse(document.getElementById("data").textContent);
const NONE = 65535;

function bytes(text) {
  const binary = atob(text);
  const array = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) array[i] = binary.charCodeAt(i);
  return array;
}
const floats = (text) => new Float32Array(bytes(text).buffer);

// A layer of an example, with its numbers as arrays; each is decoded once.
function layerOf(example, number) {
  const raw = payload.examples[example].layers[number];
  if (!raw.decoded) {
    const [heads, queries, keys] = raw.shape;
    const sequences = payload.examples[example].sequences;
    raw.decoded = {
      name: raw.name, kind: raw.kind, index: raw.index, heads, queries, keys, kept: raw.kept,
      queryTokens: sequences[raw.queries], keyTokens: sequences[raw.keys],
      self: raw.queries === raw.keys,
      edgeKeys: new Uint16Array(bytes(raw.edge_keys).buffer), edgeWeights: floats(raw.edge_weights),
      lse: floats(raw.lse), entropy: floats(raw.entropy), rest: floats(raw.rest),
      count: new Uint16Array(bytes(raw.count).buffer), matrices: [],
    };
  }
  return raw.decoded;
}

// The kept weights of a head as a matrix, rows one after the other; 0 where none was kept.
function weightsOf(layer, head) {
  if (!layer.matrices[head]) {
    const matrix = new Float32Array(layer.queries * layer.keys);
    for (let i = 0; i < layer.queries; i++) {
      const start = (head * layer.queries + i) * layer.kept;
      for (let e = start; e < start + layer.kept && layer.edgeKeys[e] !== NONE; e++)
        matrix[i * layer.keys + layer.edgeKeys[e]] = layer.edgeWeights[e];
    }
    layer.matrices[head] = matrix;
  }
  return layer.matrices[head];
}

// The edges of a query, strongest first: [{key, weight, score, rank}].
function edgesOf(layer, head, query) {
  const row = head * layer.queries + query;
  const edges = [];
  for (let e = row * layer.kept; e < (row + 1) * layer.kept && layer.edgeKeys[e] !== NONE; e++) {
    const weight = layer.edgeWeights[e];
    edges.push({
      key: layer.edgeKeys[e], weight, rank: edges.length + 1,
      score: Math.log(weight) + layer.lse[row], // weight = exp(score - lse)
    });
  }
  return edges;
}

const NEAR = 3; // tokens away that count as local

// Where a head looks: mean weight on the token before, after, itself, ... beside what weights
// spread evenly over the allowed keys would give.
function measuresOf(layer, head) {
  const { queries, keys } = layer;
  const weights = weightsOf(layer, head);
  const at = (pick) => {
    let sum = 0, even = 0, rows = 0;
    for (let i = 0; i < queries; i++) {
      const j = pick(i), count = layer.count[head * queries + i];
      if (j < 0 || j >= keys || !count) continue;
      sum += weights[i * keys + j];
      even += j < count || count === keys ? 1 / count : 0;
      rows++;
    }
    return rows ? { value: sum / rows, even: even / rows } : { value: 0, even: 0 };
  };
  const places = layer.self
    ? { previous: (i) => i - 1, next: (i) => i + 1, same: (i) => i, first: () => 0, last: () => keys - 1 }
    : { first: () => 0, last: () => keys - 1 };
  const looks = Object.entries(places).map(([name, pick]) => ({ name, ...at(pick) }));
  let entropy = 0, most = 0, distance = 0, away = 0, rest = 0, allowed = 0, near = 0, nearEven = 0;
  for (let i = 0; i < queries; i++) {
    const row = head * queries + i;
    entropy += layer.entropy[row] / queries;
    rest += layer.rest[row] / queries;
    allowed += layer.count[row] / queries;
    let top = 0, around = 0;
    for (let j = 0; j < keys; j++) {
      const weight = weights[i * keys + j];
      if (Math.abs(i - j) <= NEAR) {
        near += weight / queries;
        around += j < layer.count[row] || layer.count[row] === keys;
      }
      if (weight > top) top = weight;
      distance += (weight * Math.abs(i - j)) / queries;
      away += (weight * Math.abs(i / Math.max(queries - 1, 1) - j / Math.max(keys - 1, 1))) / queries;
    }
    most += top / queries;
    nearEven += layer.count[row] ? around / layer.count[row] / queries : 0;
  }
  return { looks, entropy, most, distance, away, rest, allowed, near, nearEven, local: layer.self, spread: Math.exp(entropy) };
}

const NAMES = {
  previous: "the one before it", next: "the one after it", same: "itself",
  first: "the first token", last: "the last token",
};

// The pattern that stands out most from even weights, or what else can be said, in a word.
function roleOf(measures) {
  const best = [...measures.looks].sort((a, b) => b.value - b.even - (a.value - a.even))[0];
  if (best && best.value - best.even > 0.25) return { name: best.name, best };
  if (measures.local && measures.near - measures.nearEven > 0.35) return { name: "local" };
  if (measures.most > 0.6) return { name: "focused" };
  if (measures.spread > 0.7 * measures.allowed) return { name: "broad" };
  return { name: "mixed" };
}

function sentenceOf(layer, measures) {
  const role = roleOf(measures);
  const subject = layer.self ? "Each token" : "Each target token";
  const spread = `${measures.spread.toFixed(1)} of ${measures.allowed.toFixed(0)} keys`;
  if (role.best)
    return `${subject} looks at ${NAMES[role.name]}: mean weight ${role.best.value.toFixed(3)}; ` +
      `spread evenly it would be ${role.best.even.toFixed(3)}.`;
  if (role.name === "local")
    return `${subject} looks at its neighbours: mean mass within ${NEAR} tokens ${measures.near.toFixed(3)}; ` +
      `spread evenly it would be ${measures.nearEven.toFixed(3)}.`;
  if (role.name === "focused")
    return `${subject} picks few keys: its largest weight is ${measures.most.toFixed(3)} on average.`;
  if (role.name === "broad")
    return `${subject} looks almost everywhere: as if evenly at ${spread}.`;
  return `${subject} looks at several keys: as if evenly at ${spread}; ` +
    `its largest weight is ${measures.most.toFixed(3)} on average.`;
}

// A token as one line in which nothing hides.
function visible(token, limit = 60) {
  if (!token) return "∅";
  const letters = Array.from(token.slice(0, 2 * limit));
  const cut = letters.length > limit || token.length > 2 * limit;
  const shown = letters.slice(0, limit);
  const start = shown.findIndex((c) => c !== " ");
  let end = shown.length;
  while (end > 0 && shown[end - 1] === " ") end--;
  return shown.map((c, place) => {
    const code = c.codePointAt(0);
    if (c === " ") return start >= 0 && place > start && place < end ? " " : "␣";
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (code === 0x7f) return "␡";
    if (/[\u200c\u200d\ufe0e\ufe0f]/.test(c) && place > 0 && shown.length > 1) return c;
    if (/\p{M}/u.test(c) && place === 0) return "◌" + c;
    if (/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/u.test(c))
      return `‹${code.toString(16).toUpperCase().padStart(4, "0")}›`;
    if (/\p{Zs}/u.test(c)) return "⍽";
    return c;
  }).join("") + (cut ? "…" : "");
}
