// The share link: text, models, switches and choices, in the fragment of the page's address.

import { fromParameters, toParameters } from "./settings.js";

/** The page's state out of a link's fragment, or null where there is none. */
export function fromLink() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (!given.has("text")) return null;
  const read = (prefix) => ({ model: given.get(`${prefix}model`), settings: fromParameters(given, prefix) });
  const at = given.get("at"), target = given.get("target");
  return {
    text: given.get("text").slice(0, 20000),
    sets: { A: read(""), B: given.get("b.model") ? read("b.") : null },
    at: /^\d+$/.test(at ?? "") ? Number(at) : null,
    target: /^\d+$/.test(target ?? "") ? Number(target) : null,
    heads: (given.get("heads") ?? "").split(",").filter(Boolean),
    weighted: given.get("weighted") === "1",
  };
}

/** What goes behind the "#" to restore a state. */
export function toLink(state) {
  const link = new URLSearchParams({ text: state.text });
  for (const [set, prefix] of [["A", ""], ["B", "b."]]) {
    if (!state.sets[set]) continue;
    link.set(`${prefix}model`, state.sets[set].model);
    toParameters(state.sets[set].settings, prefix, link);
  }
  if (state.at !== null) link.set("at", state.at);
  if (state.target !== null) link.set("target", state.target);
  if (state.active) link.set("heads", Object.entries(state.heads).map(([l, head]) => `L${l}H${head}`).join(","));
  if (state.weighted) link.set("weighted", "1");
  return String(link);
}
