// A training run: a handle to drag from the random birth to the trained matrices.

const history_ = payload.history;
let clock = null, drawn = null;

function historyLayer(number) {
  const raw = history_.layers[number];
  if (!raw.decoded) {
    const [heads, queries, keys] = raw.shape;
    raw.decoded = {
      kind: raw.kind, index: raw.index, name: raw.name, heads, queries, keys,
      queryTokens: history_.sequences[raw.queries] ?? [], keyTokens: history_.sequences[raw.keys] ?? [],
      weights: raw.weights ? bytes(raw.weights) : null,
      products: raw.products ? new Int8Array(bytes(raw.products).buffer) : null,
      size: raw.product_size, scale: raw.product_scale,
      measures: ["norm", "effective_rank", "symmetry"].filter((name) => raw[name]).map((name) => [name, raw[name]]),
    };
  }
  return raw.decoded;
}

// The probe's weights of a head at a snapshot, 0..1 on the square-root scale.
function probeWeights(layer, head, step) {
  const size = layer.queries * layer.keys;
  const start = (step * layer.heads + head) * size;
  return layer.weights.subarray(start, start + size);
}

function showTraining() {
  stop();
  headRoom = 185;
  const layers = history_.layers.map((_, number) => historyLayer(number));
  if (state.layer >= layers.length) go({ layer: 0, head: 0, heads: [0] });
  const single = Object.keys(history_.sequences).length === 1;
  const tiles = [];
  const probe = make("canvas", { role: "img", id: "probe" });
  const section = make("section", { className: "kind probe" }, make("h2", { id: "probe-name" }), probe);
  // In the place that the grid leaves free, where it is large enough, or below it.
  const beside = (size) => (size.free > 330 ? section : null);
  const grid = headGrid(layers, single, (canvas, number, head) => tiles.push({ canvas, number, head }), () => "", beside);
  fill(byId("stage"), timeline(), grid, section.isConnected || grid.contains(section) ? null : section);
  drawn = { layers, tiles, probe, source: document.createElement("canvas") };
  showStep();
}

function showStep() {
  const { layers, tiles } = drawn;
  for (const { canvas, number, head } of tiles) {
    const layer = layers[number];
    if (layer.weights) paint(canvas, probeWeights(layer, head, state.step), layer.queries, layer.keys, (u) => u / 255);
    const role = layer.measures.find(([name]) => name === "symmetry");
    canvas.nextSibling.textContent = role ? `sym ${signed(role[1][state.step][head])}` : "";
  }
  const steps = history_.steps, place = state.step;
  const what = steps[place] === 0 ? "random matrices" : place === steps.length - 1 ? "trained" : "";
  byId("now").textContent = `step ${grouped(steps[place])}${what ? `: ${what}` : ""}`;
  byId("slider").value = place;
  byId("slider").setAttribute("aria-valuetext", `step ${steps[place]} ${what}`);
  const x = timeX(steps[place]);
  byId("hand").setAttribute("x1", x);
  byId("hand").setAttribute("x2", x);
  const dot = byId("dot"), loss = lossAt(place);
  dot.setAttribute("visibility", loss === null ? "hidden" : "visible");
  if (loss !== null) {
    dot.setAttribute("cx", x);
    dot.setAttribute("cy", lossY(loss));
  }
  showTrainingPanel();
}

const signed = (value) => (value === null ? "–" : Math.abs(value) < 0.005 ? "0" : (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2).replace("0.", "."));

// Training slows down: equal distances for equal factors, after a linear beginning.
const WIDE = 1000, HIGH = 92;
function timeX(step) {
  const steps = history_.steps, first = steps.find((other) => other > 0) ?? 1;
  const far = (s) => (s <= first ? s / first : 1 + Math.log2(s / first));
  return (far(step) / Math.max(far(lastStep()), 1e-9)) * WIDE;
}
const lastStep = () => Math.max(...history_.steps, ...Object.values(history_.curves).map((c) => c.at(-1)?.[0] ?? 0));

// A snapshot's own loss is of one batch, a curve's are averages: where there is a curve, only it is drawn.
function lossAt(place) {
  const curve = Object.values(history_.curves).find((points) => points.length);
  if (!curve) return history_.losses[place];
  const step = history_.steps[place], after = curve.findIndex(([other]) => other >= step);
  if (after < 0) return curve.at(-1)[1];
  if (curve[after][0] === step) return curve[after][1];
  if (!after) return null; // Nothing was reported yet.
  // On the line as it is drawn, between two reports.
  const [from, to] = [curve[after - 1], curve[after]], start = timeX(from[0]);
  return from[1] + ((to[1] - from[1]) * (timeX(step) - start)) / Math.max(timeX(to[0]) - start, 1e-9);
}
function lossRange() {
  const reported = Object.values(history_.curves).flat().map((point) => point[1]);
  const all = reported.length ? reported : history_.losses.filter((loss) => loss !== null);
  return all.length ? [Math.min(...all), Math.max(...all)] : null;
}
function lossY(loss) {
  const [low, high] = lossRange();
  return 8 + (HIGH - 28) * (1 - (loss - low) / Math.max(high - low, 1e-12));
}

function timeline() {
  const steps = history_.steps;
  const svg = make("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true", id: "curve" });
  for (const step of steps)
    svg.append(make("line", { class: "axis", x1: timeX(step), x2: timeX(step), y1: HIGH - 16, y2: HIGH - 10, "vector-effect": "non-scaling-stroke" }));
  svg.append(make("line", { class: "axis", x1: 0, x2: WIDE, y1: HIGH - 16, y2: HIGH - 16, "vector-effect": "non-scaling-stroke" }));
  const curves = Object.entries(history_.curves);
  const points = history_.losses.map((loss, place) => [steps[place], loss]).filter(([, loss]) => loss !== null);
  if (!curves.length && points.length > 1) curves.push(["loss", points]);
  curves.forEach(([, curve], number) => svg.append(make("path", {
    class: number ? "curve second" : "curve", "vector-effect": "non-scaling-stroke",
    d: curve.map(([step, loss], n) => `${n ? "L" : "M"}${timeX(step).toFixed(1)} ${lossY(loss).toFixed(1)}`).join(""),
  })));
  svg.append(make("line", { id: "hand", class: "now", y1: 0, y2: HIGH - 10, "vector-effect": "non-scaling-stroke" }));
  svg.append(make("circle", { id: "dot", class: "dot", r: 4 }));
  const drag = (event) => {
    const box = svg.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * WIDE;
    let best = 0;
    steps.forEach((step, place) => { if (Math.abs(timeX(step) - x) < Math.abs(timeX(steps[best]) - x)) best = place; });
    toStep(best);
  };
  svg.addEventListener("pointerdown", (event) => { stop(); svg.setPointerCapture(event.pointerId); drag(event); });
  svg.addEventListener("pointermove", (event) => event.buttons && drag(event));
  const range = lossRange();
  return make("div", { className: "time" },
    range ? make("p", { className: "faint" }, curves.map(([name], number) =>
      make("span", { className: number ? "key" : "" }, `${number ? " · " : ""}${name}`)), ` from ${three(range[1])} down to ${three(range[0])}`) : null,
    svg,
    make("div", { className: "controls" },
      make("button", { type: "button", className: "play", id: "play", title: "Play (Space)", onclick: play }, "▶ Play"),
      make("input", { type: "range", id: "slider", min: 0, max: steps.length - 1, step: 1, "aria-label": "Snapshot of the training",
        oninput: (event) => { stop(); toStep(Number(event.target.value)); } }),
      make("output", { id: "now" }),
      make("label", { className: "faint" }, "speed ", make("select", { id: "speed", onchange: () => { if (clock) { stop(); play(); } } },
        ["1", "2", "4", "8", "16"].map((speed) => make("option", { value: speed, selected: speed === "2" }, `${speed}×`))))));
}

function toStep(place) {
  if (place === state.step) return;
  go({ step: place });
  showStep();
}

function play() {
  if (clock) return stop();
  if (state.step >= history_.steps.length - 1) toStep(0);
  byId("play").textContent = "❚❚ Pause";
  clock = setInterval(() => {
    if (state.step >= history_.steps.length - 1) return stop();
    toStep(state.step + 1);
  }, 1200 / Number(byId("speed").value));
}

function stop() {
  clearInterval(clock);
  clock = null;
  if (byId("play")) byId("play").textContent = "▶ Play";
}

// The chosen head's weights on the probe, with its tokens, as they were at this step.
function showProbe(layer) {
  const { probe, source } = drawn, { head, step } = state;
  if (!layer.weights) return;
  fill(byId("probe-name"), `${layerName(layer)}, head ${head}`, make("span", {}, `weights of the probe at step ${grouped(history_.steps[step])}`));
  probe.setAttribute("aria-label", byId("probe-name").textContent);
  paint(source, probeWeights(layer, head, step), layer.queries, layer.keys, (u) => u / 255);
  const sheet = { layer, canvas: probe, source };
  layOut(sheet, Math.max(probe.parentNode.clientWidth, 240), 460, 26);
  drawSheet(sheet);
}

const MEASURES = { norm: "norm", effective_rank: "effective rank", symmetry: "symmetry" };

function showTrainingPanel() {
  const layer = drawn.layers[state.layer];
  const { head, step } = state;
  const figures = [];
  showProbe(layer);
  if (layer.products) {
    const canvas = make("canvas", { role: "img", "aria-label": "W_Q W_K transposed" });
    const size = layer.size * layer.size, start = (step * layer.heads + head) * size;
    paint(canvas, Float32Array.from(layer.products.subarray(start, start + size)), layer.size, layer.size, (u) => 0.5 + (Math.sign(u) * (u / 127) ** 2) / 2, colours().difference);
    figures.push(make("figure", {}, canvas, make("figcaption", {}, "W_Q W_Kᵀ, blue −, red +")), changePicture(layer, head, step));
  }
  fill(byId("panel"),
    summaryList(),
    payload.summary.length ? make("hr") : null,
    make("h2", {}, `${layerName(layer)}, head ${head}`),
    make("p", {}, step === 0 && history_.steps[0] === 0
      ? "W_Q, W_K, W_V and W_O as they were drawn at random: nothing is learned yet."
      : trainingSentence(layer, head, step)),
    make("div", { className: "pictures" }, figures),
    layer.measures.length ? make("div", { className: "sparks" }, layer.measures.flatMap(([name, values]) => spark(name, values, head, step))) : null,
    make("p", { className: "faint" }, "Measures are of W_Q W_Kᵀ: how large it is, how many directions it uses, and how symmetric it is (+1 symmetric, 0 random, −1 antisymmetric)."),
    make("hr"),
    rampLegend("weight, square-root scale"),
    hint(["← →", "snapshot"], ["Space", "play"], ["Home End", "birth, end"], ["Tab", "heads"]));
}

// How far W_Q W_K^T is from its birth, against the furthest that it goes.
function changePicture(layer, head, step) {
  const size = layer.size * layer.size;
  const values = (at) => layer.products.subarray((at * layer.heads + head) * size, (at * layer.heads + head + 1) * size);
  const real = (u) => Math.sign(u) * (u / 127) ** 2; // as it was quantised
  const birth = values(0), last = values(history_.steps.length - 1), now = values(step);
  let most = 1e-6;
  for (let n = 0; n < size; n++) most = Math.max(most, Math.abs(real(last[n]) - real(birth[n])));
  const canvas = make("canvas", { role: "img", "aria-label": "Change of W_Q W_K transposed since the first snapshot" });
  paint(canvas, Float32Array.from(now, (u, n) => real(u) - real(birth[n])), layer.size, layer.size, (change) => 0.5 + change / most / 2, colours().difference);
  return make("figure", {}, canvas, make("figcaption", {}, "its change since birth"));
}

function trainingSentence(layer, head, step) {
  const change = layer.measures.map(([name, values]) =>
    `${MEASURES[name]} ${number(values[0][head])} → ${number(values[step][head])}`);
  return change.length ? `Since the random birth: ${change.join(", ")}.` : `Snapshot ${step} of ${history_.steps.length - 1}.`;
}

const number = (value) => (value === null ? "–" : Math.abs(value) >= 100 ? value.toFixed(0) : minus(value, Math.abs(value) >= 10 ? 1 : 2));

function spark(name, values, head, step) {
  const line = values.map((heads) => heads[head] ?? 0);
  const low = Math.min(...line), high = Math.max(...line), steps = history_.steps;
  const y = (value) => 3 + 28 * (1 - (value - low) / Math.max(high - low, 1e-9));
  const svg = make("svg", { viewBox: `0 0 ${WIDE} 34`, preserveAspectRatio: "none", "aria-hidden": "true" },
    make("path", { class: "curve", d: line.map((value, n) => `${n ? "L" : "M"}${timeX(steps[n]).toFixed(1)} ${y(value).toFixed(1)}`).join("") }),
    make("line", { class: "now", x1: timeX(steps[step]), x2: timeX(steps[step]), y1: 0, y2: 34, "vector-effect": "non-scaling-stroke" }));
  return [make("span", {}, MEASURES[name]), svg, make("span", { className: "number" }, number(line[step]))];
}
