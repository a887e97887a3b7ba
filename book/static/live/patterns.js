// One panel per layer: all its heads small, each with its switch, and one of them large.

import { children, fixed, h, later, put } from "./dom.js";
import { large, layout, pixels } from "./draw.js";

const NEXT = { undefined: "zero", zero: "mean", mean: undefined };
const SAYS = { undefined: "on", zero: "zero", mean: "mean" };

/** The (dest, src) weights of one head out of an answer, and the value drawn brightest. */
export function view(answer, layer, head, weighted) {
  const n = answer.tokens.length, all = answer.patterns[layer];
  const pattern = all.subarray(head * n * n, (head + 1) * n * n);
  if (!weighted) return { weights: pattern, n, scale: 1, tokens: answer.tokens };
  const lengths = answer.norms[layer], weights = Float32Array.from(pattern, (a, i) => a * lengths[head * n + (i % n)]);
  let scale = 1e-9; // the largest in this layer, so that heads can be compared
  for (let i = 0; i < all.length; i++) {
    const moved = all[i] * lengths[Math.floor(i / (n * n)) * n + (i % n)];
    if (moved > scale) scale = moved;
  }
  return { weights, n, scale, tokens: answer.tokens };
}

/** pick(layer, head), flip(name, kind), pointed(row or null), chosen(row) */
export function layerPanel(layer, { pick, flip, pointed, chosen }) {
  const title = h("h2", { class: "lv-title" }), note = h("p", { class: "lv-note" });
  const larges = h("div", { class: "lv-larges" }), small = h("div", { class: "lv-heads" });
  const root = h("section", { class: "lv-layer", "aria-label": `Layer ${layer}` }, title, larges, small);
  let shown = {};

  const makeHead = (head) => {
    const name = `L${layer}H${head}`;
    return h("div", { class: "lv-head" },
      h("button", { type: "button", class: "lv-pick", onclick: () => pick(layer, head) },
        h("canvas", { "aria-hidden": "true" }), h("span", {}, name)),
      h("button", { type: "button", class: "lv-switch", onclick: () => flip(name, NEXT[shown.off?.[name]]) }));
  };

  const makeLarge = () => {
    const canvas = h("canvas", { class: "lv-large", role: "img", "aria-label": "Pattern of a head: drawn when the model is here" });
    const figure = h("figure", {}, h("figcaption"), canvas, h("p", { class: "lv-readout", "aria-hidden": "true" }));
    const cellAt = (event) => {
      const box = canvas.getBoundingClientRect(), { margin, cell } = layout(box.width, figure.view?.n ?? 1);
      const row = Math.floor((event.clientY - box.top - 2) / cell), column = Math.floor((event.clientX - box.left - margin) / cell);
      return figure.view && row >= 0 && row < figure.view.n && column >= 0 && column < figure.view.n ? [row, column] : [null, null];
    };
    canvas.addEventListener("pointermove", (event) => {
      const [row, column] = cellAt(event);
      figure.column = column;
      pointed(row);
      readout(figure, row, column);
    });
    canvas.addEventListener("pointerleave", () => {
      figure.column = null;
      pointed(null);
      readout(figure, null, null);
    });
    canvas.addEventListener("click", (event) => {
      const [row] = cellAt(event);
      if (row !== null) chosen(row);
    });
    new ResizeObserver(() => redraw(figure)).observe(canvas);
    return figure;
  };
  const readout = (figure, row, column) => {
    const { view: v } = figure;
    const inside = row !== null && column <= row;
    put(figure.lastChild, { text: !v || row === null ? "" : inside ? `${v.tokens[row]} → ${v.tokens[column]}: ${fixed(v.weights[row * v.n + column])}` : `${v.tokens[column]} comes after ${v.tokens[row]}` });
  };
  const redraw = (figure) => figure.view && large(figure.children[1], { ...figure.view, column: figure.column ?? null });
  const drawSmall = later(0, () => {
    const { answer, weighted } = shown;
    if (answer) for (let i = 0; i < small.children.length; i++) {
      const v = view(answer, layer, i, weighted);
      pixels(small.children[i].querySelector("canvas"), v.weights, v.n, v.scale);
    }
  });

  return {
    root, larges,
    /** answers: [{ label, answer }] side by side, the first the one that switches act on. */
    show({ answers, answer, head, weighted, row, off, frozen }) {
      const name = `L${layer}H${head}`, fresh = shown.answer !== answer || shown.weighted !== weighted;
      shown = { answer, weighted, off };
      put(title, { text: `Layer ${layer}` });
      const there = answers.filter((one) => one.answer.patterns[layer]);
      children(larges, there.length, makeLarge, (figure, i) => {
        const { label, answer: own } = there[i];
        figure.view = { ...view(own, layer, head, weighted), row };
        put(figure.firstChild, { text: `${name}${label ? `, ${label}` : ""}` });
        put(figure.children[1], { "aria-label": `Pattern of head ${name}${label ? `, ${label}` : ""}: destinations down, sources across, brighter is more. The table below lists its largest weights.` });
        redraw(figure);
      });
      children(small, answer.patterns[layer] ? answer.config.n_heads : 0, makeHead, (box, i) => {
        const own = `L${layer}H${i}`, kind = off[own];
        put(box, { "data-off": kind ?? null });
        put(box.firstChild, { "aria-pressed": i === head, "aria-label": `${own}: show its pattern large` });
        put(box.lastChild, { text: SAYS[kind], "aria-label": `${own} writes: ${SAYS[kind]}; change to ${SAYS[NEXT[kind]]}` });
      });
      if (fresh) drawSmall();
    },
    redraw: () => [...larges.children].forEach(redraw),
  };
}
