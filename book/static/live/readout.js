// What the playground says about one token: the strip above, and beside it predictions and contributions.

import { pathRows } from "./bars.js";
import { fixed, put } from "./dom.js";
import { view } from "./patterns.js";
import { headNames } from "./settings.js";
import { rowShades } from "./strip.js";

/** The tokens, shaded by what one head looks at from `at`, or by their losses, once there are any. */
export function showStrip({ tokens, legend }, { answer, at, active, losses: found, shade, weighted }) {
  const n = answer.tokens.length;
  if (shade === "loss") {
    const most = found ? Math.max(1, ...found) : 1;
    tokens.show({ tokens: answer.tokens, at, shades: found ? answer.tokens.map((_, i) => (i ? found[i - 1] / most : null)) : null,
      words: (i) => (i && found?.[i - 1] !== undefined ? `loss ${fixed(found[i - 1])}` : null) });
    put(legend, { text: found ? `Bright: tokens the model did not expect. The largest loss is ${fixed(most)} nats.` : "Losses are being computed …" });
    return;
  }
  const shown = active ? view(answer, active[0], active[1], weighted) : null;
  tokens.show({ tokens: answer.tokens, at, ...(shown ? rowShades(shown.weights, n, at, shown.scale) : { shades: null }) });
  put(legend, { text: shown ? `Bright: what L${active[0]}H${active[1]} looks at from ${answer.tokens[at]}${weighted ? ", times the length of the value" : ""}. Point at a token, or use the arrow keys.` : "This model has no heads: it sees one token at a time." });
}

/** The likeliest next tokens of `found`, and what raises one of them: `own`, by last head or by path. */
export function showNext({ nextTitle, next, barsTitle, bars, barsNote }, { answer, found, own, by }) {
  put(nextTitle, { text: `After ${answer.tokens[Math.min(found.at, answer.tokens.length - 1)]}` });
  next.show(found);
  const fits = own && own.at === found.at && own.target === found.target.id;
  put(barsTitle, { text: `What raises ${found.target.token}` });
  const rows = !own ? [] : by === "path" ? pathRows(own.terms) : headRows(own, answer.config);
  bars.show(rows);
  bars.root.toggleAttribute("data-stale", !fits);
  put(barsNote, { text: own ? `Contributions to its logit, in nats; they sum to ${fixed(own.sum)}. Patterns are taken as they are.` : "Contributions are being computed …" });
}

function headRows(own, config) {
  const values = new Map(own.heads.map(({ head, value }) => [head, value]));
  return ["direct", ...headNames(config)].map((head) => ({ name: head === "direct" ? "direct path" : head, value: values.get(head) ?? 0, muted: !values.has(head) }));
}
