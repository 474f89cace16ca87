// The state, which is the URL; the keys; and which view is on the stage.

const VIEWS = { heads: ["Heads", showHeads], threads: ["Threads", showThreads], matrix: ["Matrix", showMatrix] };
if (history_) VIEWS.training = ["Training", showTraining];

const state = { view: "heads", example: 0, layer: 0, head: 0, heads: [0], query: null, key: null, locked: false, step: 0, scale: "square-root", sinks: false };

function address() {
  const part = new URLSearchParams({ view: state.view, example: state.example, layer: state.layer, head: state.heads.join(".") });
  if (state.heads[0] !== state.head) part.set("main", state.head);
  if (state.query !== null && (state.locked || state.view === "matrix")) part.set("query", state.query);
  if (state.key !== null && (state.locked || state.view === "matrix")) part.set("key", state.key);
  if (state.view === "training") part.set("step", state.step);
  if (state.scale !== "square-root") part.set("scale", state.scale);
  if (state.sinks) part.set("sinks", "hidden");
  return "#" + part;
}

// The state that an address names, as far as there is such a thing.
function read() {
  const part = new URLSearchParams(location.hash.slice(1));
  const whole = (name, most, otherwise) => {
    const value = part.get(name) === null ? NaN : Number(part.get(name));
    return Number.isInteger(value) && value >= 0 && value < most ? value : otherwise;
  };
  state.view = Object.hasOwn(VIEWS, part.get("view")) ? part.get("view") : "heads";
  state.example = whole("example", payload.examples.length, 0);
  const layers = state.view === "training" ? history_.layers : payload.examples[state.example].layers;
  state.layer = whole("layer", layers.length, 0);
  const [heads, queries, keys] = layers[state.layer].shape;
  const named = (part.get("head") ?? "").split(".").map(Number).filter((head) => Number.isInteger(head) && head >= 0 && head < heads);
  state.heads = named.length ? [...new Set(named)] : [0];
  state.head = whole("main", heads, state.heads[0]);
  state.query = whole("query", queries, null);
  state.key = whole("key", keys, null);
  state.locked = state.query !== null || state.key !== null;
  state.step = history_ ? whole("step", history_.steps.length, state.view === "training" ? 0 : history_.steps.length - 1) : 0;
  state.scale = Object.hasOwn(SCALES, part.get("scale")) ? part.get("scale") : "square-root";
  state.sinks = part.get("sinks") === "hidden";
}

let waiting = 0;

// Change the state; `push`: as a step that Back undoes, drawn anew.
function go(changes, push = false) {
  Object.assign(state, changes);
  if (push) {
    if ("view" in changes && changes.view !== "matrix" && !state.locked) state.query = state.key = null;
    history.pushState(null, "", address());
    return render();
  }
  // The address follows when the hand rests: browsers limit how often it may change.
  clearTimeout(waiting);
  waiting = setTimeout(() => history.replaceState(null, "", address()), 250);
  if (state.view === "heads" && ("head" in changes || "layer" in changes)) showHeadPanel();
  if (state.view === "training" && ("head" in changes || "layer" in changes) && drawn) showTrainingPanel();
}

function say(text) {
  byId("said").textContent = text;
}

function render() {
  stop();
  byId("views").replaceChildren(...Object.entries(VIEWS).map(([view, [name]]) => make("a", {
    href: "#view=" + view, "aria-current": view === state.view ? "page" : null,
    onclick: (event) => { event.preventDefault(); open_(view); },
  }, name)));
  choose();
  VIEWS[state.view][1]();
}

function open_(view) {
  if (view === state.view) return;
  // The layers of a history and of an example are two lists: the same layer is found by its name.
  const from = state.view === "training" ? history_.layers : payload.examples[state.example].layers;
  const to = view === "training" ? history_.layers : payload.examples[state.example].layers;
  const name = from[state.layer].name;
  const layer = Math.max(to.findIndex((other) => other.name === name), 0);
  const head = Math.min(state.head, to[layer].shape[0] - 1);
  go({ view, layer, head, heads: view === "threads" ? state.heads.filter((h) => h < to[layer].shape[0]) : [head] }, true);
}

function choose() {
  const examples = payload.examples;
  if (state.view === "training") {
    const texts = Object.values(history_.sequences).map((tokens) => tokens.map((t) => visible(t)).join(tokens.join("").length > 2 * tokens.length ? " " : "").replaceAll("␣", " "));
    return fill(byId("chooser"), make("span", { className: "faint" }, "Probe"),
      make("bdi", { className: "token" }, texts.map((text) => text.slice(0, 90)).join(" → ")));
  }
  if (examples.length < 2)
    return fill(byId("chooser"), examples[0].name ? make("bdi", { className: "token" }, visible(examples[0].name, 120)) : null);
  fill(byId("chooser"),
    make("label", { className: "faint", htmlFor: "example" }, "Example"),
    make("select", { id: "example", onchange: (event) => toExample(Number(event.target.value)) },
      examples.map((example, number) => make("option", { value: number, selected: number === state.example }, visible(example.name, 90)))),
    make("button", { type: "button", className: "plain", title: "Example before ([)", "aria-label": "Example before", onclick: () => toExample(state.example - 1) }, "‹"),
    make("button", { type: "button", className: "plain", title: "Example after (])", "aria-label": "Example after", onclick: () => toExample(state.example + 1) }, "›"),
    make("span", { className: "faint number" }, `${state.example + 1} of ${examples.length}`));
}

function toExample(number) {
  const example = (number + payload.examples.length) % payload.examples.length;
  const layers = payload.examples[example].layers;
  const layer = Math.min(state.layer, layers.length - 1), most = layers[layer].shape[0] - 1;
  go({ example, layer, head: Math.min(state.head, most), heads: state.heads.map((head) => Math.min(head, most)), query: null, key: null, locked: false });
  render();
}

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  const field = event.target.closest("input, select, textarea");
  if (field && !(field.type === "range" && event.key === " ")) return;
  const { key } = event;
  const move = MOVES[key];
  const done = (act) => { event.preventDefault(); act(); };
  if (key === "?") return done(help);
  if (key === "[" || key === "]") return done(() => state.view !== "training" && toExample(state.example + (key === "]" ? 1 : -1)));
  if (key === "Escape") {
    if (state.view === "threads" && state.locked) return done(() => look({}, false));
    if (state.view !== "heads") return done(() => open_("heads"));
    return;
  }
  if (key === "h") return done(() => open_("heads"));
  if (key === "t") return done(() => open_("threads"));
  if (key === "m") return done(() => open_("matrix"));
  if (key === "r" && VIEWS.training) return done(() => open_("training"));
  if (state.view === "heads") {
    if (move) return done(() => moveInHeads(...move));
    if (key === "Enter" && (event.target.closest(".tile") || event.target === document.body || event.target === byId("stage"))) return done(() => go({ view: "threads" }, true));
  } else if (state.view === "threads") {
    if (move) return done(() => moveInThreads(...move));
    if (key === "s") return done(() => { go({ sinks: !state.sinks }); render(); });
    if (/^[0-9]$/.test(key) && Number(key) < woven.layer.heads) return done(() => toggle(Number(key), event.shiftKey));
  } else if (state.view === "matrix") {
    if (move) return done(() => moveInMatrix(...move));
    if (key === "+" || key === "=") return done(() => zoom(1.4));
    if (key === "-") return done(() => zoom(1 / 1.4));
    if (key === "0") return done(() => { fit(); drawMatrix(); });
    if (key === "l") return done(changeScale);
  } else if (state.view === "training") {
    const last = history_.steps.length - 1;
    if (move?.[0]) return done(() => { stop(); toStep(Math.min(Math.max(state.step + move[0], 0), last)); });
    if (move?.[1]) return done(() => moveInHeads(...move));
    if (key === " " && !event.target.closest("button")) return done(play);
    if (key === "Home" || key === "End") return done(() => toStep(key === "Home" ? 0 : last));
  }
});

function help() {
  const rows = [
    ["h t m r", "heads, threads, matrix, training"], ["← ↑ → ↓", "move: heads, tokens, cells, snapshots"],
    ["Enter", "deeper"], ["Esc", "back"], ["[ ]", "example before, after"], ["0 … 9", "that head; with Shift, several (threads)"],
    ["s", "hide the first and last token (threads)"], ["+ − 0", "zoom; the whole (matrix)"], ["l", "scale of the colours (matrix)"],
    ["Space", "play (training)"], ["?", "this"]];
  fill(byId("keys"), make("h2", {}, make("strong", {}, "Keys")),
    make("dl", {}, rows.flatMap(([key, what]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, what)])),
    make("button", { type: "button", className: "plain", onclick: () => byId("keys").close() }, "Close"));
  byId("keys").showModal();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
setTheme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => { setTheme(dark.matches ? "dark" : "light"); render(); });
byId("theme").addEventListener("click", () => { setTheme(theme() === "dark" ? "light" : "dark"); render(); });
byId("help").addEventListener("click", help);
addEventListener("popstate", () => { read(); render(); });
let resized = 0;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(render, 120); });
read();
render();
