// The tables of the playground: the largest weights in numbers, and two settings side by side.

import { table } from "./bars.js";
import { fixed, h, signed } from "./dom.js";
import { view } from "./patterns.js";

/** Where every head looks from one token, and the largest weights of one head; opened() once unfolded. */
export function weightTables(opened) {
  const lookTable = table(["Head", "Most", "Second", "Third"]), headTable = table(["Destination", "Source", "Weight"]);
  const root = h("details", { class: "lv-tables", ontoggle: opened }, h("summary", {}, "The largest weights as tables"), lookTable.root, headTable.root);

  function show(answer, at, active, weighted) {
    if (!root.open) return;
    const { n_layers: L, n_heads: H } = answer.config, n = answer.tokens.length;
    const rows = [];
    for (let l = 0; l < L; l++) for (let head = 0; head < H; head++) {
      const { weights } = view(answer, l, head, weighted);
      const order = [...Array(at + 1).keys()].sort((a, b) => weights[at * n + b] - weights[at * n + a]).slice(0, 3);
      rows.push([`L${l}H${head}`, ...[0, 1, 2].map((i) => (order[i] === undefined ? "" : `${answer.tokens[order[i]]} (${order[i]}) ${fixed(weights[at * n + order[i]])}`))]);
    }
    lookTable.show(`Where each head looks from ${answer.tokens[at]}, token ${at}`, rows);
    if (!active) return headTable.show("This model has no heads", []);
    const { weights } = view(answer, active[0], active[1], weighted);
    const largest = [...weights.keys()].filter((i) => weights[i] > 0).sort((a, b) => weights[b] - weights[a]).slice(0, 20);
    headTable.show(`The largest weights of L${active[0]}H${active[1]}`, largest.map((i) => [
      `${answer.tokens[Math.floor(i / n)]} (${Math.floor(i / n)})`, `${answer.tokens[i % n]} (${i % n})`, fixed(weights[i])]));
  }

  return { root, show };
}

/** Losses, logits and probabilities of setting A, of setting B, and their difference. */
export function differenceTable() {
  const rows = table(["Quantity", "A", "B", "B − A"]);

  function show(answers, looks, losses) {
    if (!looks.A || !looks.B || !answers.A || !answers.B) return;
    const row = (title, value, digits = 3) => {
      const [a, b] = ["A", "B"].map(value);
      const text = (x) => (x === null || x === undefined ? "–" : fixed(x, digits));
      return [title, text(a), text(b), a === null || b === null || a === undefined || b === undefined ? "–" : signed(b - a, digits)];
    };
    const token = looks.A.truth ?? looks.A.target, of = (set) => [looks[set].truth, looks[set].target, ...looks[set].best].find((one) => one?.id === token.id);
    const here = answers.A.tokens[looks.A.at];
    rows.show(`After ${here}, about ${token.token}${looks.A.truth ? ", the token that follows" : ", the likeliest in A"}`, [
      row(`logit of ${token.token}`, (set) => of(set)?.logit),
      row("its loss, nats", (set) => of(set)?.loss),
      row("its probability", (set) => of(set)?.p),
      row("mean loss of the text, nats", (set) => losses[set]?.mean ?? null),
    ]);
  }

  return { root: rows.root, show };
}
