// Every head at a glance: layers are rows, heads columns, and each kind stands apart.

// What a view puts above the grid, in pixels.
let headRoom = 0;

// layers: [{kind, index, heads}] in order; drawTile(canvas, layer, head); caption(layer, head).
// extra(size): what else may stand in a place that is left free.
function headGrid(layers, single, drawTile, caption, extra = null) {
  const parts = [];
  const kinds = Object.keys(KINDS).map((kind) => layers.map((layer, number) => ({ layer, number }))
    .filter((row) => row.layer.kind === kind)).filter((rows) => rows.length);
  const { tile, across } = arranged(kinds);
  const size = { free: (byId("stage").clientWidth - (across - 1) * BETWEEN) / across, tile, columns: Math.max(...layers.map((layer) => layer.heads)), rows: Math.max(...kinds.map((rows) => rows.length)) };
  for (const rows of kinds) {
    const kind = rows[0].layer.kind;
    const columns = Math.max(...rows.map((row) => row.layer.heads));
    const grid = make("div", {
      className: "grid", role: "group", "aria-label": `${KINDS[kind][0]} heads`,
      style: { "grid-template-columns": `${ROW_NAME}px repeat(${columns}, minmax(0, ${tile}px))` },
    });
    grid.append(make("span"));
    for (let head = 0; head < columns; head++)
      grid.append(make("span", { className: "name" }, `H${head}`));
    for (const { layer, number } of rows) {
      grid.append(make("span", { className: "name row" }, `L${layer.index}`));
      for (let head = 0; head < columns; head++) {
        if (head >= layer.heads) { grid.append(make("span")); continue; }
        const canvas = make("canvas", { "aria-hidden": "true" });
        drawTile(canvas, number, head);
        const chosen = state.layer === number && state.head === head;
        grid.append(make("button", {
          type: "button", className: "tile", "aria-current": String(chosen), "data-layer": number, "data-head": head,
          "aria-label": `${layerName(layer)}, head ${head}: ${caption(number, head)}`,
          tabIndex: chosen ? 0 : -1,
          onclick: () => {
            if (state.view === "heads" && chosenTile(number, head)) return go({ view: "threads" }, true);
            select({ layer: number, head, heads: [head] });
          },
          ondblclick: () => state.view === "heads" && go({ view: "threads" }, true),
        }, canvas, make("small", {}, caption(number, head))));
      }
    }
    parts.push(make("section", { className: "kind", style: { width: `${ROW_NAME + columns * (tile + GAP)}px`, "max-width": "100%" } },
      make("h2", {}, KINDS[kind][0], make("span", {}, single && KINDS[kind][2] ? KINDS[kind][2] : KINDS[kind][1])), grid));
  }
  return make("div", { className: "kinds", style: { "grid-template-columns": `repeat(${across}, auto)` } }, parts,
    (extra && (kinds.length % across || kinds.length === 1) && extra(size)) || []);
}

const ROW_NAME = 28, GAP = 8, BETWEEN = 32;

// How many kinds stand beside each other, and how large a tile is: the largest that shows all of
// them at once, else the kinds below each other.
function arranged(kinds) {
  const stage = byId("stage");
  const width = stage.clientWidth, height = window.innerHeight - stage.getBoundingClientRect().top - window.scrollY - 20 - headRoom;
  const columns = kinds.map((rows) => Math.max(...rows.map((row) => row.layer.heads)));
  let best = { tile: 0, across: 1 };
  for (let across = 1; across <= kinds.length; across++) {
    let least = 150, high = 0, count = 0;
    const widest = Array.from({ length: across }, (_, place) => Math.max(...columns.filter((_, n) => n % across === place)));
    const cells = widest.reduce((sum, of) => sum + of, 0);
    least = Math.min(least, (width - (across - 1) * BETWEEN - across * ROW_NAME - cells * GAP) / cells);
    for (let n = 0; n < kinds.length; n += across) {
      count += Math.max(...kinds.slice(n, n + across).map((rows) => rows.length));
      high += 66;
    }
    const tile = Math.floor(Math.min(least, (height - high) / count - 30));
    if (tile > best.tile) best = { tile, across };
  }
  if (best.tile < 46) best = { tile: Math.max(...columns) > 8 ? 72 : 88, across: 1 };
  return best;
}

const chosenTile = (layer, head) => state.layer === layer && state.head === head;

// Another head: the marks move, the pictures stay.
function select(changes) {
  go(changes);
  markDot();
  for (const tile of document.querySelectorAll("#stage .tile[data-layer]")) {
    const chosen = chosenTile(Number(tile.dataset.layer), Number(tile.dataset.head));
    tile.setAttribute("aria-current", String(chosen));
    tile.tabIndex = chosen ? 0 : -1;
    if (chosen && tile.closest(".grid").contains(document.activeElement)) tile.focus();
    else if (chosen && document.activeElement?.classList.contains("tile")) tile.focus();
  }
}

function showHeads() {
  headRoom = 0;
  const example = payload.examples[state.example];
  const layers = example.layers.map((_, number) => layerOf(state.example, number));
  const measured = layers.map((layer) => Array.from({ length: layer.heads }, (_, head) => measuresOf(layer, head)));
  const single = Object.keys(example.sequences).length === 1;
  fill(byId("stage"), headGrid(layers, single, (canvas, number, head) => {
    const layer = layers[number];
    paint(canvas, weightsOf(layer, head), layer.queries, layer.keys, Math.sqrt);
  }, (number, head) => {
    const role = roleOf(measured[number][head]);
    return role.best ? `${role.name} ${role.best.value.toFixed(2).replace("0.", ".")}` : role.name;
  }, (size) => scatter(layers, measured, size)));
  showHeadPanel();
}

function showHeadPanel() {
  const layer = layerOf(state.example, state.layer);
  const measures = measuresOf(layer, state.head);
  fill(byId("panel"),
    summaryList(),
    payload.summary.length ? make("hr") : null,
    make("h2", {}, `${layerName(layer)}, head ${state.head}`),
    make("p", {}, sentenceOf(layer, measures)),
    make("div", { className: "bars" }, measures.looks.flatMap(({ name, value, even }) => [
      make("span", {}, name),
      make("span", { className: "bar", title: `even weights: ${even.toFixed(3)}` },
        make("i", { style: { width: `${100 * value}%` } }), make("b", { style: { left: `${100 * even}%` } })),
      make("span", { className: "number" }, value.toFixed(3)),
    ])),
    make("p", { className: "faint number" },
      `entropy ${measures.entropy.toFixed(2)} nats · keys ${measures.spread.toFixed(1)} of ` +
      `${measures.allowed.toFixed(1)} · ${layer.self ? `distance ${measures.distance.toFixed(1)} · ` : ""}` +
      `mass on no kept edge ${measures.rest < 5e-7 ? "0" : measures.rest.toExponential(1)}`),
    make("div", { className: "actions" },
      make("button", { type: "button", onclick: () => go({ view: "threads" }, true) }, "Threads"),
      make("button", { type: "button", onclick: () => go({ view: "matrix" }, true) }, "Matrix")),
    make("hr"),
    rampLegend("weight, square-root scale"),
    make("p", { className: "faint" }, "In each tile, rows are ", make("span", { className: "query" }, "queries"),
      ", who looks, and columns are ", make("span", { className: "key" }, "keys"), ", who is looked at. ",
      "A mark on a bar: what evenly spread weights would give."),
    hint(["← ↑ → ↓", "move"], ["Enter", "threads"], ["m", "matrix"], ["[ ]", "example"]));
  say(`${layerName(layer)}, head ${state.head}. ${sentenceOf(layer, measures)}`);
}

function summaryList() {
  if (!payload.summary.length) return null;
  return make("dl", { className: "summary" }, payload.summary.map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", { className: value.length > 14 ? "long" : "" }, value))));
}

function moveInHeads(dx, dy) {
  const tiles = [...document.querySelectorAll("#stage .tile[data-layer]")];
  const now = tiles.findIndex((tile) => tile.getAttribute("aria-current") === "true");
  if (now < 0) return;
  if (dx) {
    const next = tiles[Math.min(Math.max(now + dx, 0), tiles.length - 1)];
    return select({ layer: Number(next.dataset.layer), head: Number(next.dataset.head), heads: [Number(next.dataset.head)] });
  }
  // Up and down: the nearest tile of another row, as it lies on the screen.
  const here = tiles[now].getBoundingClientRect();
  let best = null;
  for (const tile of tiles) {
    const box = tile.getBoundingClientRect(), down = (box.top - here.top) * dy;
    if (down < 8) continue;
    const far = down * 4 + Math.abs(box.left - here.left);
    if (!best || far < best.far) best = { far, tile };
  }
  if (best) {
    const head = Number(best.tile.dataset.head);
    select({ layer: Number(best.tile.dataset.layer), head, heads: [head] });
    best.tile.scrollIntoView({ block: "nearest" });
  }
}
