// The switches that act on more than one head: cuts between heads, held patterns, orders.

import { choice, children, h, put, radios } from "./dom.js";
import { headNames } from "./settings.js";

const LIMIT = { 0: "direct path only", 1: "paths through at most 1 head" };

/** changed((settings) => ...) is called with what to change. */
export function switches(changed) {
  const from = choice("What this writes", [], () => {}), to = choice("is not read by", [], () => {});
  const kind = choice("in its", [["K", "keys"], ["Q", "queries"], ["V", "values"]], () => {});
  const cut = h("button", { type: "button", onclick: () => changed((s) => {
    for (const a of named(from.select.value, 0)) for (const b of named(to.select.value, 1)) {
      if (a[1] < b[1] && !s.cuts.some((one) => String(one) === String([a, b, kind.select.value]))) s.cuts.push([a, b, kind.select.value]);
    }
  }) }, "Cut");
  const cuts = h("ul", { class: "lv-cuts", "aria-label": "Cuts" });
  const freeze = choice("Patterns", [
    ["none", "computed as usual"], ["own", "held as the intact model has them here"], ["other", "held as on another text"],
  ], (value) => changed((s) => { s.freeze = value; }));
  const other = h("textarea", { rows: "2", spellcheck: "false", dir: "auto", oninput: () => changed((s) => { s.other = other.value; }) });
  const otherBox = h("label", { class: "lv-field lv-wide" }, h("span", {}, "The other text (at least as many tokens)"), other);
  const order = choice("Terms", [], (value) => changed((s) => { s.order = value === "" ? null : Number(value); }));
  const composing = h("fieldset", {}, h("legend", {}, "Composition"), h("div", { class: "lv-row" }, from, to, kind, cut), cuts);
  let config = null, all = [];

  const named = (value, side) => (value.startsWith("all") ? all.filter((name) => name[1] === value[3]) : [value]);
  const root = h("div", { class: "lv-switches" },
    h("p", { class: "lv-note" }, "Each head's own switch is under its picture: on, zero (it writes nothing), mean (it writes its mean over this text)."),
    composing, h("fieldset", {}, h("legend", {}, "Patterns and paths"), h("div", { class: "lv-row" }, freeze, order), otherBox));

  function fit(given) {
    if (JSON.stringify(given) === JSON.stringify(config)) return;
    config = given;
    all = headNames(config);
    const fill = (select, options) => select.replaceChildren(...options.map(([value, text]) => h("option", { value }, text)));
    const layers = [...Array(config.n_layers).keys()];
    const options = (some) => some.flatMap((l) => [[`all${l}`, `all of layer ${l}`], ...all.filter((name) => name[1] === String(l)).map((name) => [name, name])]);
    fill(from.select, options(layers.slice(0, -1)));
    fill(to.select, options(layers.slice(1)));
    fill(order.select, [["", "all of them"], ...layers.map((k) => [String(k), LIMIT[k] ?? `paths through at most ${k} heads`])]);
  }

  return {
    root,
    show(s, given) {
      fit(given);
      composing.disabled = config.n_layers < 2;
      freeze.select.disabled = order.select.disabled = config.n_layers < 1;
      freeze.select.value = s.freeze;
      order.select.value = s.order === null ? "" : String(s.order);
      otherBox.hidden = s.freeze !== "other";
      if (document.activeElement !== other) other.value = s.other;
      const groups = grouped(s.cuts, config);
      children(cuts, groups.length, () => h("li", {}, h("button", { type: "button" })), (item, i) => {
        const { label, members } = groups[i], button = item.firstChild;
        put(button, { text: `${label} ×`, "aria-label": `Undo the cut ${label}` });
        button.onclick = () => changed((settings) => {
          settings.cuts = settings.cuts.filter((one) => !members.includes(String(one)));
        });
      });
    },
  };
}

/** Cuts of a whole layer with a whole layer as one, others one by one. */
function grouped(cuts, { n_heads: H }) {
  const left = new Map(cuts.map((cut) => [String(cut), cut])), groups = [];
  const layers = new Map();
  for (const [a, b, kind] of cuts) {
    const key = `layer ${a[1]} –${kind}→ layer ${b[1]}`;
    layers.set(key, [...(layers.get(key) ?? []), String([a, b, kind])]);
  }
  for (const [label, members] of layers) {
    if (members.length < H * H) continue;
    groups.push({ label, members });
    members.forEach((member) => left.delete(member));
  }
  for (const [member, [a, b, kind]] of left) groups.push({ label: `${a} –${kind}→ ${b}`, members: [member] });
  return groups;
}
