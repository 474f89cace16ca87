// One head as a matrix: tokens on both axes, the value under the pointer, zoom around it.

let sheet = null; // what is on the stage: {layer, canvas, source, cell, x, y, left, top}

function showMatrix() {
  const layer = layerOf(state.example, state.layer);
  const box = make("div", { className: "matrix" });
  const canvas = make("canvas", { tabIndex: 0, role: "img", "aria-label":
    `Weights of ${layerName(layer)}, head ${state.head}: ${layer.queries} queries by ${layer.keys} keys. Arrow keys move, the panel says the value.` });
  box.append(canvas, make("div", { className: "tools" },
    make("button", { type: "button", title: "Zoom in (+)", "aria-label": "Zoom in", onclick: () => zoom(1.4) }, "+"),
    make("button", { type: "button", title: "Zoom out (−)", "aria-label": "Zoom out", onclick: () => zoom(1 / 1.4) }, "−"),
    make("button", { type: "button", title: "The whole (0)", "aria-label": "Show the whole matrix", onclick: () => { fit(); drawMatrix(); } }, "whole")));
  fill(byId("stage"), box);
  sheet = { layer, canvas, box, source: document.createElement("canvas"), labels: null };
  paintCells();
  fit();
  listen(canvas);
  drawMatrix();
  showMatrixPanel();
}

// Each cell a pixel; the canvas scales them up without smoothing.
function paintCells() {
  const { layer, source } = sheet;
  const weights = weightsOf(layer, state.head), table = colours().weight, to = SCALES[state.scale].to;
  source.width = Math.max(layer.keys, 1);
  source.height = Math.max(layer.queries, 1);
  const context = source.getContext("2d");
  const image = context.createImageData(source.width, source.height);
  for (let n = 0; n < weights.length; n++) {
    const at = 3 * Math.round(255 * Math.min(Math.max(to(weights[n]), 0), 1));
    image.data.set([table[at], table[at + 1], table[at + 2], 255], 4 * n);
  }
  context.putImageData(image, 0, 0);
}

const FONT = "system-ui, 'Noto Sans', 'DejaVu Sans', sans-serif";
const LABEL = `12px ${FONT}`;
const TOKENS_FROM = 10; // pixels of a cell from which tokens, not positions, name it

// Room for labels, and the size of a cell: as large as fits into `wide` by `room` pixels.
function layOut(sheet, wide, room, most = 44) {
  const { layer, canvas } = sheet;
  const context = canvas.getContext("2d");
  context.font = LABEL;
  const longest = (tokens) => Math.min(Math.max(...tokens.slice(0, 200).map((token) => context.measureText(visible(token, 14)).width), 20), 110);
  sheet.left = Math.max(longest(layer.queryTokens) + 18, 64);
  sheet.wide = wide;
  const across = longest(layer.keyTokens);
  // Characters stand upright over their columns, words lean, or stand on end where it is narrow.
  const words = layer.keyTokens.some((token) => visible(token, 14).length > 2);
  const sized = (angle) => {
    const rise = Math.sin(angle) * across, run = Math.cos(angle) * across;
    sheet.angle = angle;
    sheet.top = 34 + (words ? rise + 10 : 18);
    return Math.min((wide - sheet.left - (words ? run : 0) - 14) / Math.max(layer.keys, 1), (room - sheet.top - 16) / Math.max(layer.queries, 1), most);
  };
  let cell = sized(Math.PI / 4);
  if (words && cell < 17) cell = sized(Math.PI / 2);
  sheet.least = sheet.cell = Math.max(cell, 0.05);
  sheet.high = sheet.top + sheet.cell * layer.queries + 16;
  sheet.x = sheet.y = 0;
}

function fit() {
  const { box } = sheet;
  const room = Math.max(window.innerHeight - box.getBoundingClientRect().top - window.scrollY - 24, 360);
  layOut(sheet, box.clientWidth || 600, room);
  sheet.high = Math.max(sheet.high + 40, 240); // the buttons stand below the matrix
}

const drawMatrix = () => drawSheet(sheet, state.query, state.key);

// The part of a matrix that is in the window, with its axes; the chosen cell is framed.
function drawSheet(sheet, query = null, key = null) {
  const { layer, canvas, source, cell, left, top, wide, high } = sheet;
  const dpr = window.devicePixelRatio || 1;
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink"), faint = style.getPropertyValue("--faint");
  const cool = style.getPropertyValue("--query"), warm = style.getPropertyValue("--key"), line = style.getPropertyValue("--line");
  canvas.width = wide * dpr;
  canvas.height = high * dpr;
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${high}px`;
  const zoomed = cell > sheet.least * 1.01;
  canvas.classList.toggle("zoomed", zoomed);
  const limitX = Math.max(layer.keys * cell - (wide - left), 0), limitY = Math.max(layer.queries * cell - (high - top), 0);
  sheet.x = Math.min(Math.max(sheet.x, 0), limitX);
  sheet.y = Math.min(Math.max(sheet.y, 0), limitY);
  const context = canvas.getContext("2d");
  context.scale(dpr, dpr);
  context.font = LABEL;
  context.textBaseline = "middle";

  const width = Math.min(layer.keys * cell, wide - left), height = Math.min(layer.queries * cell, high - top);
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  context.imageSmoothingEnabled = false;
  context.drawImage(source, left - sheet.x, top - sheet.y, layer.keys * cell, layer.queries * cell);
  if (cell >= 14) {
    context.strokeStyle = line;
    context.globalAlpha = 0.55;
    context.lineWidth = 0.5;
    context.beginPath();
    for (let j = Math.floor(sheet.x / cell); j * cell - sheet.x <= width; j++) {
      context.moveTo(left + j * cell - sheet.x, top);
      context.lineTo(left + j * cell - sheet.x, top + height);
    }
    for (let i = Math.floor(sheet.y / cell); i * cell - sheet.y <= height; i++) {
      context.moveTo(left, top + i * cell - sheet.y);
      context.lineTo(left + width, top + i * cell - sheet.y);
    }
    context.stroke();
    context.globalAlpha = 1;
  }
  if (query !== null && key !== null) {
    const x = left + key * cell - sheet.x, y = top + query * cell - sheet.y, size = Math.max(cell, 5);
    context.lineWidth = 3;
    context.strokeStyle = style.getPropertyValue("--card");
    context.strokeRect(x, y, size, size);
    context.lineWidth = 1.6;
    context.strokeStyle = ink;
    context.strokeRect(x, y, size, size);
  }
  context.restore();

  const named = cell >= TOKENS_FROM, step = named ? 1 : niceStep(46 / cell);
  context.font = `${named ? Math.min(12, Math.max(cell - 1, 9)) : 11}px ${FONT}`;
  const label = (token, place) => (named ? visible(token, 14) : String(place));
  context.textAlign = "right";
  for (let i = Math.ceil(sheet.y / cell / step) * step; i < layer.queries; i += step) {
    const y = top + (i + 0.5) * cell - sheet.y;
    if (y > top + height) break;
    if (y < top) continue;
    context.fillStyle = i === query ? cool : faint;
    context.fillText(label(layer.queryTokens[i], i), left - 7, y, left - 12);
  }
  for (let j = Math.ceil(sheet.x / cell / step) * step; j < layer.keys; j += step) {
    const x = left + (j + 0.5) * cell - sheet.x, text = label(layer.keyTokens[j], j);
    if (x > left + width) break;
    if (x < left) continue;
    context.fillStyle = j === key ? warm : faint;
    context.save();
    context.translate(x, top - 7);
    const upright = !named || text.length <= (sheet.angle < 1.5 ? 2 : 1);
    context.textAlign = upright ? "center" : "left";
    if (!upright) context.rotate(-sheet.angle);
    context.fillText(text, 0, upright ? -5 : 0);
    context.restore();
  }
  context.textAlign = "left";
  context.font = LABEL;
  context.fillStyle = cool;
  context.fillText("queries ↓", 14, 18);
  context.fillStyle = warm;
  context.fillText("keys →", Math.max(left, 82), 18);
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= least) ?? 10 * power;
}

function zoom(by, at) {
  const { cell, least, left, top, wide, high } = sheet;
  const next = Math.min(Math.max(cell * by, least), 64);
  const px = (at?.x ?? left + (wide - left) / 2) - left, py = (at?.y ?? top + (high - top) / 2) - top;
  sheet.x = ((sheet.x + px) / cell) * next - px;
  sheet.y = ((sheet.y + py) / cell) * next - py;
  sheet.cell = next;
  drawMatrix();
}

function listen(canvas) {
  let held = null;
  const at = (event) => {
    const { left, top, cell, x, y, layer } = sheet;
    const key = Math.floor((event.offsetX - left + x) / cell), query = Math.floor((event.offsetY - top + y) / cell);
    const inside = event.offsetX >= left && event.offsetY >= top && query >= 0 && query < layer.queries && key >= 0 && key < layer.keys;
    return inside ? { query, key } : null;
  };
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, y: event.clientY, from: [sheet.x, sheet.y] };
    if (sheet.cell > sheet.least * 1.01) canvas.setPointerCapture(event.pointerId);
    const cell = at(event);
    if (cell) pointAt(cell);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (held && event.buttons && sheet.cell > sheet.least * 1.01) {
      sheet.x = held.from[0] - (event.clientX - held.x);
      sheet.y = held.from[1] - (event.clientY - held.y);
      return drawMatrix();
    }
    const cell = at(event);
    if (cell && (cell.query !== state.query || cell.key !== state.key)) pointAt(cell);
  });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && sheet.cell <= sheet.least * 1.01 && event.deltaY > 0) return; // the page scrolls
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 300), { x: event.offsetX, y: event.offsetY });
  }, { passive: false });
}

function pointAt({ query, key }) {
  go({ query, key });
  drawMatrix();
  showMatrixPanel();
}

function moveInMatrix(dx, dy) {
  const { layer, cell, left, top, wide, high } = sheet;
  const clamp = (value, most) => Math.min(Math.max(value, 0), most - 1);
  const from = state.query === null || state.key === null ? { query: 0, key: 0 } : { query: state.query + dy, key: state.key + dx };
  const query = clamp(from.query, layer.queries), key = clamp(from.key, layer.keys);
  // Keep the cell within the window.
  sheet.x = Math.min(Math.max(sheet.x, (key + 1) * cell - (wide - left)), key * cell);
  sheet.y = Math.min(Math.max(sheet.y, (query + 1) * cell - (high - top)), query * cell);
  pointAt({ query, key });
}

function showMatrixPanel() {
  const { layer } = sheet;
  const { query, key, head } = state;
  const parts = [
    make("h2", {}, `${layerName(layer)}, head ${head}`),
    make("div", { className: "actions" },
      make("button", { type: "button", title: "Head before", "aria-label": "Head before", disabled: head === 0, onclick: () => changeHead(-1) }, "←"),
      make("button", { type: "button", title: "Head after", "aria-label": "Head after", disabled: head === layer.heads - 1, onclick: () => changeHead(1) }, "→"),
      make("button", { type: "button", title: "Scale of the colours (l)", onclick: changeScale }, state.scale),
      make("button", { type: "button", onclick: () => go({ view: "threads" }, true) }, "Threads")),
    rampLegend(`weight, ${state.scale}`, state.scale, colours().weight, [state.scale === "logarithmic" ? "≤ .0001" : "0", `weight, ${state.scale}`, "1"]),
    make("hr"),
  ];
  if (query !== null && key !== null && query < layer.queries && key < layer.keys) {
    const row = head * layer.queries + query, edges = edgesOf(layer, head, query);
    const edge = edges.find((other) => other.key === key);
    const hidden = !edge && layer.count[row] <= edges.length;
    const value = edge ? (edge.weight >= 1e-4 ? edge.weight.toFixed(6) : edge.weight.toExponential(3)) : hidden ? "hidden" : `< ${three(edges.at(-1)?.weight ?? 0)}`;
    parts.push(
      make("div", { className: "pair" }, tokenSpan(layer.queryTokens[query], "query"), make("span", {}, "→"), tokenSpan(layer.keyTokens[key], "key")),
      make("div", { className: "value" }, value),
      make("p", { className: "faint number" }, edge
        ? `score ${Number.isFinite(edge.score) ? minus(edge.score, 3) : "very low"} · rank ${edge.rank} of ${layer.count[row]} in its row`
        : hidden ? "The mask lets this query not look at this key." : `Not among the ${edges.length} kept edges of its row.`),
      make("p", { className: "faint number" }, `query ${query}: entropy ${layer.entropy[row].toFixed(3)} nats, log-sum-exp ${minus(layer.lse[row], 3)}`));
    say(`${visible(layer.queryTokens[query])} to ${visible(layer.keyTokens[key])}: ${value}`);
  } else {
    parts.push(make("p", { className: "faint" }, "Point at a cell, or move with the arrow keys, for its exact weight and score."));
  }
  parts.push(make("hr"), hint(["← ↑ → ↓", "cell"], ["+ −", "zoom"], ["0", "whole"], ["l", "scale"], ["t", "threads"], ["Esc", "back"]));
  fill(byId("panel"), parts);
}

function changeHead(by) {
  const head = Math.min(Math.max(state.head + by, 0), sheet.layer.heads - 1);
  go({ head, heads: [head] });
  paintCells();
  drawMatrix();
  showMatrixPanel();
}

function changeScale() {
  const names = Object.keys(SCALES);
  go({ scale: names[(names.indexOf(state.scale) + 1) % names.length] });
  paintCells();
  drawMatrix();
  showMatrixPanel();
}
