// What each path adds to one token's logit at one position, the patterns being given.
//
// A path is read backwards. Every head on it turns the weights over positions into those weights
// times its pattern, and the direction that is looked for into W_V W_O times that direction; what
// remains at the end is a weighted sum over tokens of embedding times direction.
// Source: Elhage et al. 2021, Path Expansion of Logits; pathsum.paths.path_terms lists the same terms.

/**
 * [{ path: ["L0H3", "L1H6"], value }], earliest head first; [] is the direct path. A head that is
 * switched to its mean starts paths of its own, marked by `mean: "L0H3"`. Values sum to the logit.
 */
export function contributions(model, r, at, token) {
  const { n_heads: H, n_layers: L, d_model: d, d_head: f } = model.config;
  const { memory: M, rows: R } = model, n = at + 1, { settings } = r;
  const most = settings.order ?? L, found = [];
  const isCut = new Set(settings.cuts.filter(([, , kind]) => kind === "V").map(([from, to]) => `${from} ${to}`));

  const embedded = (weights, direction) => {
    let total = 0;
    for (let s = 0; s < n; s++) {
      if (weights[s] === 0) continue;
      let dot = 0;
      const row = model.W_E + r.ids[s] * d;
      for (let i = 0; i < d; i++) dot += M[row + i] * direction[i];
      total += weights[s] * dot;
    }
    return total;
  };
  const meanWrite = (layer, h, direction) => { // every position holds the same mean
    const read = model.times(model.W_O[layer], direction, { top: h * f, rows: f });
    let sum = 0;
    for (let i = 0; i < f; i++) sum += read[i] * M[r.z[layer] + h * f + i];
    return sum;
  };

  function back(weights, direction, below, path) {
    found.push({ path, value: embedded(weights, direction) });
    if (path.length >= most) return;
    for (let layer = 0; layer < below; layer++) {
      for (let h = 0; h < H; h++) {
        const head = `L${layer}H${h}`;
        if (settings.off[head] === "zero" || isCut.has(`${head} ${path[0]}`)) continue;
        if (settings.off[head] === "mean") {
          const sum = weights.reduce((a, b) => a + b, 0);
          found.push({ path, mean: head, value: sum * meanWrite(layer, h, direction) });
          continue;
        }
        const read = model.times(model.W_O[layer], direction, { top: h * f, rows: f });
        const earlier = model.times(model.W_V[layer], read, { left: h * f, columns: f });
        const moved = new Float64Array(n), A = r.pattern[layer] + h * R * R;
        for (let t = 0; t < n; t++) {
          if (weights[t] !== 0) for (let s = 0; s <= t; s++) moved[s] += weights[t] * M[A + t * R + s];
        }
        back(moved, earlier, layer, [head, ...path]);
      }
    }
  }

  const here = new Float64Array(n);
  here[at] = 1;
  back(here, model.unembedding(token), L, []);
  return found;
}

/** The same values summed by the last head before the logits: [{ head: "L1H6" or "direct", value }]. */
export function byLastHead(terms) {
  const sums = new Map();
  for (const { path, mean, value } of terms) {
    const head = path.at(-1) ?? mean ?? "direct";
    sums.set(head, (sums.get(head) ?? 0) + value);
  }
  return [...sums].map(([head, value]) => ({ head, value }));
}
