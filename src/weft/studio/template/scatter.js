// The heads by two measures: how many keys they look at, and how far away those are.

function scatter(layers, measured, size) {
  const wide = Math.max(size.columns * (size.tile + 8), 220), high = Math.min(Math.max(size.rows * (size.tile + 30), 160), 340);
  const left = 34, foot = 34;
  const points = layers.flatMap((layer, number) => measured[number].map((measures, head) => ({ layer, number, head, measures })));
  const mostX = Math.max(...points.map((point) => point.measures.entropy), 0.1) * 1.06;
  const mostY = Math.max(...points.map((point) => point.measures.away), 0.02) * 1.08;
  const x = (value) => left + (value / mostX) * (wide - left - 8), y = (value) => (high - foot) * (1 - value / mostY) + 6;
  const svg = make("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", style: { "max-width": `${wide}px` },
    "aria-label": "Heads by entropy and distance from the diagonal" });
  for (let nats = 0; nats <= mostX; nats++)
    svg.append(make("line", { class: "grid-line", x1: x(nats), x2: x(nats), y1: 6, y2: y(0) }), text(x(nats), y(0) + 14, String(nats), "middle"));
  const step = mostY > 0.3 ? 0.1 : mostY > 0.12 ? 0.05 : 0.02;
  for (let away = 0; away <= mostY; away += step)
    svg.append(make("line", { class: "grid-line", x1: left, x2: wide - 8, y1: y(away), y2: y(away) }), text(left - 6, y(away) + 4, `${Math.round(100 * away)} %`, "end"));
  svg.append(text(wide - 8, y(0) + 28, "entropy, nats →", "end"));
  for (const { layer, number, head, measures } of points) {
    const dot = make("circle", { class: `dot-${layer.kind}`, cx: x(measures.entropy), cy: y(measures.away), r: 5, "data-layer": number, "data-head": head },
      make("title", {}, `${layerName(layer)}, head ${head}`));
    dot.addEventListener("pointerenter", () => select({ layer: number, head, heads: [head] }));
    dot.addEventListener("click", () => go({ view: "threads" }, true));
    svg.append(dot);
  }
  svg.append(make("text", { class: "now-label", id: "dot-name" }));
  requestAnimationFrame(markDot);
  const kinds = [...new Set(layers.map((layer) => layer.kind))];
  return make("section", { className: "kind scatter", style: { width: `${wide}px`, "max-width": "100%" } },
    make("h2", {}, "Heads by measure", make("span", {}, "↑ distance from the diagonal")), svg,
    make("p", { className: "legend" }, kinds.map((kind) => make("span", {}, make("i", { className: `dot-${kind}` }), KINDS[kind][0].toLowerCase()))));
}

function text(x, y, content, anchor) {
  return make("text", { x, y, "text-anchor": anchor }, content);
}

// The dot of the chosen head stands out, with its name beside it.
function markDot() {
  const name = byId("dot-name");
  if (!name) return;
  for (const dot of document.querySelectorAll(".scatter circle")) {
    const chosen = chosenTile(Number(dot.dataset.layer), Number(dot.dataset.head));
    dot.classList.toggle("chosen", chosen);
    if (!chosen) continue;
    const right = dot.cx.baseVal.value > dot.ownerSVGElement.viewBox.baseVal.width * 0.7;
    name.setAttribute("x", dot.cx.baseVal.value + (right ? -9 : 9));
    name.setAttribute("y", dot.cy.baseVal.value + 4);
    name.setAttribute("text-anchor", right ? "end" : "start");
    name.textContent = `L${layerOf(state.example, state.layer).index} H${state.head}`;
  }
}
