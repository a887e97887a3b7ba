// The parts of the playground and where they stand; what they do is handed in by name.

import { nextTokens, signedBars } from "./bars.js";
import { choice, h, radios } from "./dom.js";
import { PRESETS } from "./presets.js";
import { strip } from "./strip.js";
import { switches } from "./switches.js";
import { differenceTable, weightTables } from "./tables.js";

/** models: [[name, label], ...]; status: the line of messages; the others are called by the controls. */
export function layout({ models, status, acts }) {
  const text = h("textarea", { id: "lv-text", rows: "4", spellcheck: "false", dir: "auto", oninput: () => acts.typed(text.value) });
  const preset = choice("Example", [["", "choose …"], ...Object.entries(PRESETS).map(([key, { title }]) => [key, title])], acts.preset);
  const model = choice("Model", models, acts.model);
  const tokens = strip("Tokens; choose the one that looks", { chosen: acts.chosen, pointed: acts.pointed });
  const legend = h("p", { class: "lv-legend" });
  const weighted = radios("Show", "lv-weighted", [["false", "attention"], ["true", "attention × length of value"]], (value) => acts.weighted(value === "true"));
  const shade = radios("Shade tokens by", "lv-shade", [["attention", "the pattern"], ["loss", "their loss"]], acts.shade);
  const panelBox = h("div", { class: "lv-panels" });
  const nextTitle = h("h2", { class: "lv-title" }), next = nextTokens(acts.target);
  const barsTitle = h("h2", { class: "lv-title" }), bars = signedBars("Contributions to the logit"), barsNote = h("p", { class: "lv-note" });
  const by = radios("By", "lv-by", [["head", "last head"], ["path", "path"]], acts.by);
  const compare = h("input", { type: "checkbox", onchange: () => acts.compare(compare.checked) });
  const editing = radios("The switches and the model above set", "lv-editing", [["A", "setting A"], ["B", "setting B"]], acts.editing);
  const difference = differenceTable(), differenceBox = h("div", { class: "lv-compared" }, editing, difference.root);
  const controls = switches(acts.switched);
  const share = h("button", { type: "button", onclick: () => acts.share() }, "Copy link");
  const save = (kind) => h("button", { type: "button", onclick: () => acts.save(kind) }, `Save ${kind.toUpperCase()}`);
  const reset = h("button", { type: "button", onclick: () => acts.reset() }, "All switches back");
  const tables = weightTables(() => acts.unfolded());
  const spoken = h("p", { class: "lv-spoken", "aria-live": "polite" });

  const root = h("div", { class: "lv" },
    h("div", { class: "lv-bar-top" }, preset, model, h("div", { class: "lv-buttons" }, share, save("svg"), save("png"))),
    h("label", { class: "lv-label", for: "lv-text" }, "Your text"), text, status,
    h("div", { class: "lv-row" }, weighted, shade), tokens.root, legend,
    h("div", { class: "lv-columns" }, panelBox,
      h("div", { class: "lv-side" },
        h("section", { "aria-label": "Next token" }, nextTitle, next.root),
        h("section", { "aria-label": "Contributions" }, barsTitle, by, bars.root, barsNote))),
    h("section", { class: "lv-controls", "aria-label": "Switches" },
      h("div", { class: "lv-row" }, h("h2", { class: "lv-title" }, "Switches"), reset, h("label", { class: "lv-check" }, compare, "Compare two settings")),
      differenceBox, controls.root),
    tables.root, spoken);

  return {
    root, text, preset, model, tokens, legend, weighted, shade, panelBox, nextTitle, next, barsTitle, bars, barsNote,
    by, compare, editing, difference, differenceBox, controls, reset, tables, spoken,
  };
}
