// What a reader may switch, as plain data, and its way into a link and back.
//
//   off    { "L1H6": "zero" | "mean" }       heads that write nothing, or their mean over this text
//   cuts   [["L0H3", "L1H6", "K"], ...]      what the second head's queries, keys or values don't read
//   freeze "none" | "own" | "other"          patterns as they are, of the intact model, of another text
//   order  null | 0 | 1 | ...                all terms, or only those through at most so many heads

const HEAD = /^L(\d)H(\d{1,2})$/;

export const intact = () => ({ off: {}, cuts: [], freeze: "none", other: "", order: null });

export const isIntact = (s) =>
  !Object.keys(s.off).length && !s.cuts.length && s.freeze === "none" && s.order === null;

/** [layer, head] of "L1H6"; null if it is no head of a model with this configuration. */
export function headOf(name, config) {
  const found = HEAD.exec(name);
  const [layer, head] = found ? [Number(found[1]), Number(found[2])] : [Infinity, 0];
  return layer < config.n_layers && head < config.n_heads ? [layer, head] : null;
}

export const headNames = (config) =>
  Array.from({ length: config.n_layers }, (_, l) => Array.from({ length: config.n_heads }, (_, h) => `L${l}H${h}`)).flat();

/** The settings without what this model has not: heads, orders, cuts between them. */
export function fitted(s, config) {
  const there = (name) => headOf(name, config);
  return {
    off: Object.fromEntries(Object.entries(s.off).filter(([name]) => there(name))),
    cuts: s.cuts.filter(([from, to]) => there(from) && there(to)),
    freeze: config.n_layers ? s.freeze : "none",
    other: s.other,
    order: s.order !== null && s.order < config.n_layers ? s.order : null,
  };
}

/** Error in words, or "" for settings that mean something. */
export function wrong(s) {
  const kinds = Object.values(s.off).find((kind) => kind !== "zero" && kind !== "mean");
  if (kinds !== undefined) return `a head is switched off to "zero" or "mean", got ${kinds}`;
  for (const [from, to, kind] of s.cuts) {
    const [a, b] = [HEAD.exec(from), HEAD.exec(to)];
    if (!a || !b || !["Q", "K", "V"].includes(kind)) return `a cut is two heads and Q, K or V, got ${from}, ${to}, ${kind}`;
    if (Number(a[1]) >= Number(b[1])) return `${to} cannot read what ${from} writes: choose a head of an earlier layer first`;
  }
  return "";
}

/** Settings as the part of a link after a prefix, all values text. */
export function toParameters(s, prefix, into) {
  const heads = (kind) => Object.keys(s.off).filter((name) => s.off[name] === kind).join(",");
  const write = (key, value) => value && into.set(prefix + key, value);
  write("zero", heads("zero"));
  write("mean", heads("mean"));
  write("cut", s.cuts.map(([from, to, kind]) => `${from}${kind}${to}`).join(","));
  write("freeze", s.freeze === "none" ? "" : s.freeze);
  write("other", s.freeze === "other" ? s.other : "");
  write("order", s.order === null ? "" : String(s.order));
}

/** The settings a link carries; whatever in it means nothing is left out. */
export function fromParameters(parameters, prefix) {
  const s = intact(), read = (key) => parameters.get(prefix + key) ?? "";
  for (const kind of ["zero", "mean"]) {
    for (const name of read(kind).split(",")) if (HEAD.test(name)) s.off[name] = kind;
  }
  s.cuts = read("cut").split(",").map((part) => /^(L\dH\d{1,2})([QKV])(L\dH\d{1,2})$/.exec(part)).filter(Boolean)
    .map(([, from, kind, to]) => [from, to, kind]).filter((cut) => !wrong({ off: {}, cuts: [cut] }));
  if (["own", "other"].includes(read("freeze"))) s.freeze = read("freeze");
  s.other = read("other").slice(0, 4000);
  if (/^\d$/.test(read("order"))) s.order = Number(read("order"));
  return s;
}
