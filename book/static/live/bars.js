// Numbers as rows: probabilities of next tokens, signed contributions to a logit, the largest weights.

import { children, fixed, h, put, signed } from "./dom.js";

/** The likeliest next tokens, each a button that makes it the token asked about. */
export function nextTokens(onchoose) {
  const list = h("ol", { class: "lv-next" });
  const make = () => {
    const button = h("button", { type: "button", onclick: () => onchoose(Number(button.dataset.id)) },
      h("span", { class: "lv-name" }), h("span", { class: "lv-bar", "aria-hidden": "true" }, h("i")), h("span", { class: "lv-number" }));
    return h("li", {}, button);
  };
  return {
    root: list,
    show({ best, truth, target }) {
      const further = [truth, target].filter((one, i, all) => one && !best.some(({ id }) => id === one.id) && all.findIndex((other) => other?.id === one.id) === i);
      const rows = [...best.slice(0, best.length - further.length), ...further];
      children(list, rows.length, make, (item, i) => {
        const { id, token, p, logit } = rows[i], button = item.firstChild, [name, bar, number] = button.children;
        const marks = id === truth?.id ? " ✓" : "";
        put(button, { "data-id": id, "aria-pressed": id === target.id, title: `logit ${fixed(logit)}${marks ? "; follows in the text" : ""}` });
        put(name, { text: token + marks });
        put(bar.firstChild, { style: `width:${(100 * p).toFixed(1)}%` });
        put(number, { text: p < 0.0005 ? "<0.1%" : `${fixed(100 * p, 1)}%` });
      });
    },
  };
}

/** Signed numbers around a line: [{ name, value, muted }], purple above 0 and orange below. */
export function signedBars(label) {
  const list = h("ul", { class: "lv-signed", "aria-label": label });
  const make = () => h("li", {}, h("span", { class: "lv-name" }), h("span", { class: "lv-axis", "aria-hidden": "true" }, h("i")), h("span", { class: "lv-number" }));
  return {
    root: list,
    show(rows) {
      const most = Math.max(1e-9, ...rows.map(({ value }) => Math.abs(value)));
      children(list, rows.length, make, (item, i) => {
        const { name, value, muted } = rows[i], [title, axis, number] = item.children;
        const share = (50 * Math.abs(value)) / most;
        put(item, { "data-muted": muted ? "" : null });
        put(title, { text: name });
        put(axis.firstChild, { style: `width:${share.toFixed(1)}%;${value < 0 ? "right" : "left"}:50%`, "data-sign": value < 0 ? "-" : "+" });
        put(number, { text: signed(value) });
      });
    },
  };
}

/** The largest terms by path and the rest together, in as many rows whatever the text. */
export function pathRows(terms, most = 14) {
  const named = terms.map(({ path, mean, value }) => ({
    name: [...(mean ? [`mean of ${mean}`] : []), ...path].join(" → ") || "direct path", value,
  }));
  named.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const rest = named.slice(most);
  if (!rest.length) return named;
  const value = rest.reduce((sum, one) => sum + one.value, 0);
  return [...named.slice(0, most), { name: `${rest.length} others together`, value, muted: true }];
}

/** A table with a caption; rows are arrays of text. */
export function table(head) {
  const body = h("tbody"), caption = h("caption");
  const root = h("table", { class: "lv-table" }, caption, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))), body);
  return {
    root,
    show(title, rows) {
      put(caption, { text: title });
      children(body, rows.length, () => h("tr", {}, head.map((_, i) => h(i ? "td" : "th", i ? {} : { scope: "row" }))), (tr, i) =>
        rows[i].forEach((text, j) => put(tr.children[j], { text })));
    },
  };
}
