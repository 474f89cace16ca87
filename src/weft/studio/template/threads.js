// Queries at the left, keys at the right, a thread for every weight of the chosen heads.

const FAINTEST = 0.004, MOST_THREADS = 4000;
let woven = null; // what is on the stage: {layer, threads, words}

function showThreads() {
  const layer = layerOf(state.example, state.layer);
  const rows = Math.max(layer.queries, layer.keys);
  const row = rows <= 18 ? 30 : rows <= 30 ? 25 : rows <= 60 ? 21 : 18;
  const size = `${Math.min(15, row - 8)}px`;
  // As wide as the words need, within limits: 8 px a letter, room for a number beside keys.
  const letters = (tokens) => Math.max(...tokens.slice(0, 400).map((token) => visible(token, 24).length), 4);
  const narrow = window.innerWidth < 640;
  const wide = (tokens, room, least) => `${narrow ? 112 : Math.max(Math.min(letters(tokens) * 8.5 + room, 230), least)}px`;
  const shape = { "--row": `${row}px`, "--size": size,
    "--left": wide(layer.queryTokens, 62, 120), "--right": wide(layer.keyTokens, 84, 165) };

  const word = (token, place, side) => make("button", {
    type: "button", className: "word", "aria-current": "false", tabIndex: -1, "data-place": place,
    onpointerenter: (event) => event.pointerType === "mouse" && !locked() && look({ [side]: place }, false),
    onpointerleave: (event) => event.pointerType === "mouse" && !locked() && look({}, false),
    onclick: () => state.locked && state[side] === place ? look({}, false) : look({ [side]: place }, true),
  }, side === "query" ? make("span", { className: "number" }) : null, make("i"), tokenSpan(token),
    side === "key" ? make("span", { className: "number" }) : null);

  const queries = layer.queryTokens.map((token, place) => word(token, place, "query"));
  const keys = layer.keyTokens.map((token, place) => word(token, place, "key"));
  const svg = make("svg", { "aria-hidden": "true", preserveAspectRatio: "none" });
  const cloth = make("div", { className: "cloth" },
    make("div", { className: "column queries" }, queries), svg, make("div", { className: "column keys-column" }, keys));
  fill(byId("stage"), make("div", { className: "threads", style: shape }, rail(layer),
    make("div", { className: "loom" },
      make("div", { className: "ends" },
        make("span", { className: "query" }, narrow ? "queries" : "queries: who looks"),
        make("span", { className: "key" }, narrow ? "keys" : "keys: who is looked at")),
      cloth)));
  const threads = weave(layer, svg, rows, row);
  woven = { layer, threads, queries, keys };
  light();
}

const locked = () => state.locked;

function rail(layer) {
  const total = payload.examples[state.example].layers.length;
  return make("div", { className: "rail", role: "group", "aria-label": "Heads of the layer" },
    make("h2", {}, layerName(layer)),
    make("div", { className: "turn" },
      make("button", { type: "button", className: "plain", title: "Layer before (←)", "aria-label": "Layer before", disabled: state.layer === 0, onclick: () => turn(-1) }, "←"),
      make("button", { type: "button", className: "plain", title: "Layer after (→)", "aria-label": "Layer after", disabled: state.layer === total - 1, onclick: () => turn(1) }, "→")),
    Array.from({ length: layer.heads }, (_, head) => {
      const canvas = make("canvas", { "aria-hidden": "true" });
      paint(canvas, weightsOf(layer, head), layer.queries, layer.keys, Math.sqrt);
      const on = state.heads.includes(head);
      return make("button", {
        type: "button", className: "tile", "aria-pressed": String(on), "aria-label": `head ${head}`,
        title: "Click: this head alone. With Shift or Ctrl: together with others.",
        onclick: (event) => toggle(head, event.shiftKey || event.ctrlKey || event.metaKey),
      }, canvas, make("span", { className: "strip", style: on ? { background: headColour(head) } : {} }), make("small", {}, `H${head}`));
    }));
}

function turn(by) {
  const number = state.layer + by;
  if (number < 0 || number >= payload.examples[state.example].layers.length) return;
  const heads = layerOf(state.example, number).heads;
  go({ layer: number, head: Math.min(state.head, heads - 1), heads: state.heads.filter((head) => head < heads), query: null, key: null, locked: false });
  render();
}

function toggle(head, together) {
  let heads = [head];
  if (together) {
    heads = state.heads.includes(head) ? state.heads.filter((other) => other !== head) : [...state.heads, head].sort((a, b) => a - b);
    if (!heads.length) heads = [head];
  }
  go({ heads, head: heads.includes(state.head) ? state.head : heads[0] });
  render();
}

function weave(layer, svg, rows, row) {
  const threads = [];
  for (const head of state.heads) {
    const weights = weightsOf(layer, head);
    for (let i = 0; i < layer.queries; i++)
      for (let j = 0; j < layer.keys; j++) {
        const weight = weights[i * layer.keys + j];
        if (weight >= FAINTEST && !(state.sinks && isSink(layer, j))) threads.push({ head, i, j, weight });
      }
  }
  threads.sort((a, b) => a.weight - b.weight);
  const shown = threads.slice(-MOST_THREADS);
  const y = (place, count) => (place + 0.5 + (rows - count) / 2) * row;
  svg.setAttribute("viewBox", `0 0 100 ${rows * row}`);
  svg.style.height = `${rows * row}px`;
  for (const thread of shown) {
    const start = y(thread.i, layer.queries), end = y(thread.j, layer.keys);
    thread.path = make("path", {
      d: `M1 ${start} C50 ${start} 50 ${end} 99 ${end}`, stroke: headColour(thread.head), "vector-effect": "non-scaling-stroke",
    });
    svg.append(thread.path);
  }
  return shown;
}

const isSink = (layer, key) => key === 0 || key === layer.keys - 1;

function look(changes, lock) {
  go({ query: changes.query ?? null, key: changes.key ?? null, locked: lock });
  light();
}

// Bring the threads of the chosen token forward; without one, all alike.
function light() {
  const { layer, threads, queries, keys } = woven;
  const { query, key } = state;
  const some = query !== null || key !== null;
  const many = state.heads.length ** 0.35;
  let strongest = 1e-9;
  for (const thread of threads)
    if (thread.i === query || thread.j === key) strongest = Math.max(strongest, thread.weight);
  for (const thread of threads) {
    const forward = some && (thread.i === query || thread.j === key);
    const share = forward ? thread.weight / strongest : thread.weight;
    const opacity = forward ? 0.15 + 0.8 * share : some ? 0.03 : (0.05 + 0.8 * thread.weight) / many;
    thread.path.setAttribute("stroke-opacity", opacity.toFixed(3));
    thread.path.setAttribute("stroke-width", (0.6 + (forward ? 3.6 : 3) * share).toFixed(2));
  }
  const received = new Float32Array(layer.keys), given = new Float32Array(layer.queries);
  for (const head of state.heads) {
    const weights = weightsOf(layer, head);
    for (let i = 0; i < layer.queries; i++)
      for (let j = 0; j < layer.keys; j++) {
        const weight = weights[i * layer.keys + j] / state.heads.length;
        if (query === null || i === query) received[j] += query === null ? weight / layer.queries : weight;
        if (j === key) given[i] += weight;
      }
  }
  const mark = (words, values, chosen, other) => {
    const top = Math.max(...values, 1e-9);
    words.forEach((word, place) => {
      const value = values[place], bar = word.querySelector("i"), number = word.querySelector(".number");
      word.setAttribute("aria-current", String(place === chosen));
      word.classList.toggle("dim", other !== null && value < 0.01);
      bar.style.width = value >= 0.005 ? `calc(${(100 * value) / top}% - 8px)` : "0";
      number.textContent = value >= 0.005 ? value.toFixed(2) : "";
    });
  };
  mark(keys, key === null ? received : new Float32Array(layer.keys), key, query);
  mark(queries, given, query, key);
  showThreadsPanel(layer);
}

function showThreadsPanel(layer) {
  const { query, key } = state;
  const heads = state.heads.length === 1 ? `head ${state.heads[0]}` : `heads ${state.heads.join(", ")}`;
  const parts = [];
  if (query !== null) {
    const rows = new Map();
    for (const head of state.heads)
      for (const edge of edgesOf(layer, head, query)) {
        const row = rows.get(edge.key) ?? { key: edge.key, weight: 0, scores: [] };
        row.weight += edge.weight / state.heads.length;
        row.scores.push(edge.score);
        rows.set(edge.key, row);
      }
    const sorted = [...rows.values()].sort((a, b) => b.weight - a.weight);
    const shown = sorted.slice(0, 12);
    const held = shown.reduce((sum, row) => sum + row.weight, 0);
    parts.push(
      make("h2", { className: "pair" }, tokenSpan(layer.queryTokens[query], "query"), make("span", { className: "faint" }, `query ${query}`),
        layer.kind !== "encoder" && query + 1 < layer.queries ? [make("span", { className: "faint" }, "· before"), tokenSpan(layer.queryTokens[query + 1], "query")] : null),
      make("p", {}, `What it looks at in ${layerName(layer).toLowerCase()}, ${heads}. These ${shown.length} keys hold ${(100 * held).toFixed(1)} % of its mass.`),
      table(["key", "weight", state.heads.length === 1 ? "score" : ""], shown.map((row) => [
        tokenSpan(layer.keyTokens[row.key], "key"), row.weight.toFixed(4),
        state.heads.length === 1 && Number.isFinite(row.scores[0]) ? minus(row.scores[0], 2) : ""])));
    say(`${visible(layer.queryTokens[query])} looks most at ${shown.slice(0, 3).map((row) => `${visible(layer.keyTokens[row.key])}, ${row.weight.toFixed(2)}`).join("; ")}`);
  } else if (key !== null) {
    const rows = layer.queryTokens.map((token, i) => ({
      i, weight: state.heads.reduce((sum, head) => sum + weightsOf(layer, head)[i * layer.keys + key], 0) / state.heads.length,
    })).sort((a, b) => b.weight - a.weight).slice(0, 12);
    const total = rows.reduce((sum, row) => sum + row.weight, 0);
    parts.push(
      make("h2", { className: "pair" }, tokenSpan(layer.keyTokens[key], "key"), make("span", { className: "faint" }, `key ${key}`)),
      make("p", {}, `Who looks at it in ${layerName(layer).toLowerCase()}, ${heads}: weights that sum to ${total.toFixed(2)} over these ${rows.length} queries.`),
      table(["query", "weight"], rows.map((row) => [tokenSpan(layer.queryTokens[row.i], "query"), row.weight.toFixed(4)])));
  } else {
    const measures = measuresOf(layer, state.head);
    parts.push(
      make("h2", {}, `${layerName(layer)}, ${heads}`),
      make("p", {}, sentenceOf(layer, measures)),
      make("p", { className: "faint" }, "Point at a word, or move with ↑ and ↓, to follow its threads; click to hold it. The bars say what each key receives on average."));
  }
  parts.push(make("hr"),
    make("div", { className: "actions" },
      make("button", { type: "button", "aria-pressed": String(state.sinks), onclick: () => { go({ sinks: !state.sinks }); render(); } }, "Hide first and last token"),
      make("button", { type: "button", onclick: () => { go({ heads: state.heads.length > 1 ? [state.head] : Array.from({ length: layer.heads }, (_, head) => head) }); render(); } }, state.heads.length > 1 ? "One head" : "All heads"),
      make("button", { type: "button", onclick: () => go({ view: "matrix" }, true) }, "Matrix")),
    hint(["↑ ↓", "query"], ["← →", "layer"], ["0–9", "head"], ["s", "hide ends"], ["m", "matrix"], ["Esc", "back"]));
  fill(byId("panel"), parts);
}

function table(names, rows) {
  return make("table", { className: "table" },
    make("thead", {}, make("tr", {}, names.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell) => make("td", {}, cell))))));
}

function moveInThreads(dx, dy) {
  if (dx) return turn(dx);
  const { queries, keys, queryTokens } = woven.layer;
  if (state.key !== null && state.query === null)
    return look({ key: Math.min(Math.max(state.key + dy, 0), keys - 1) }, true);
  const from = state.query ?? (dy > 0 ? -1 : queryTokens.length);
  look({ query: Math.min(Math.max(from + dy, 0), queries - 1) }, true);
  woven.queries[state.query]?.scrollIntoView({ block: "nearest" });
}
