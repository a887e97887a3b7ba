// One forward pass with its switches, every intermediate value kept.
//
// A run is kept under a name. When the next one differs from it only from some token on, what lies
// before is right already, for every position depends on earlier ones alone, and stays.

import { up } from "./model.js";
import { headOf } from "./settings.js";

/** The room of the run called `name`: its own, a new one, or the one that was used longest ago. */
function roomFor(model, name) {
  let r = model.runs.get(name);
  if (!r && model.runs.size < model.most) r = room(model);
  if (!r) {
    const [oldest, place] = model.runs.entries().next().value;
    model.runs.delete(oldest);
    r = { ...place, ids: [], key: null };
  }
  model.runs.delete(name); // and to the end: the newest
  model.runs.set(name, r);
  return r;
}

function room(model) {
  const { d_model: d, d_head: f, n_heads: H, n_layers: L } = model.config, R = model.rows;
  const layers = (make) => Array.from({ length: L }, (_, l) => make(l));
  const heads = () => model.take(R * H * f), stream = () => model.take(R * d);
  return {
    ids: [], key: null,
    resid: Array.from({ length: L + 1 }, stream), final: stream(),
    q: layers(heads), k: layers(heads), v: layers(heads), z: layers(heads),
    pattern: layers(() => model.take(H * R * R)),
    orders: Array.from({ length: L + 1 }, stream),
    zOrder: layers(() => Array.from({ length: L + 1 }, heads)),
  };
}

/**
 * The run called `name` of these token ids. `reference` is the intact run of the same ids, needed
 * when a head is switched to its mean; `frozen` the run whose patterns are used, if any.
 */
export function run(model, name, ids, settings, { reference = null, frozen = null } = {}) {
  const { config: c, memory: M, scratch } = model;
  const { d_model: d, d_head: f, n_heads: H, n_layers: L } = c, wide = H * f, R = model.rows;
  if (ids.length < 1 || ids.length > c.n_ctx) throw new Error(`needs 1 to ${c.n_ctx} tokens, got ${ids.length}`);
  if (frozen && frozen.ids.length < ids.length) {
    throw new Error(`patterns of ${frozen.ids.length} tokens cannot be held over ${ids.length}`);
  }
  const r = roomFor(model, name), n = ids.length;

  const key = JSON.stringify([settings.off, settings.cuts, settings.order, frozen?.ids.slice(0, settings.freeze === "other" ? R : 0)]) + settings.freeze;
  const usesMeans = Object.values(settings.off).includes("mean");
  let same = 0;
  if (r.key === key && !usesMeans) while (same < n && same < r.ids.length && r.ids[same] === ids[same]) same++;
  if (same === n && r.ids.length === n) return r;
  const first = same & ~3, last = up(n, 4), rows = last - first;
  Object.assign(r, { ids: ids.slice(), key: null, settings, frozen });

  const off = {}, cuts = {};
  for (const [head, kind] of Object.entries(settings.off)) {
    const [layer, h] = headOf(head, c);
    (off[layer] ??= []).push([h, kind]);
  }
  for (const [from, to, kind] of settings.cuts) {
    const [layer, h] = headOf(to, c);
    (cuts[layer + kind] ??= []).push([headOf(from, c), h]);
  }
  const clear = (place, width) => M.fill(0, place + first * width, place + last * width);

  /** out = stream · W, less what cut heads wrote into it; written[layer] holds those heads' z. */
  function project(W, layer, kind, stream, out, written) {
    clear(out, wide);
    model.product(stream + first * d, d, W[layer], out + first * wide, wide, rows);
    for (const [[from, a], h] of cuts[layer + kind] ?? []) {
      const { write } = scratch;
      clear(write, d);
      model.product(written[from] + first * wide + a * f, wide, model.W_O[from], write + first * d, d, rows, { top: a * f, rows: f });
      for (let i = write + first * d; i < write + last * d; i++) M[i] = -M[i];
      model.product(write + first * d, d, W[layer], out + first * wide + h * f, wide, rows, { left: h * f, columns: f });
    }
  }

  function attend(layer) {
    const placed = scratch.placed;
    for (let i = first * d; i < last * d; i++) M[placed + i] = M[r.resid[layer] + i] + M[model.W_pos + i];
    project(model.W_Q, layer, "Q", placed, r.q[layer], r.z);
    project(model.W_K, layer, "K", placed, r.k[layer], r.z);
    const square = r.pattern[layer], scale = 1 / Math.sqrt(f);
    for (let h = 0; h < H; h++) {
      const A = square + h * R * R;
      if (frozen) {
        const B = frozen.pattern[layer] + h * R * R;
        for (let i = first; i < n; i++) M.copyWithin(A + i * R, B + i * R, B + (i + 1) * R);
        continue;
      }
      for (let s = 0; s < up(n, 8); s++) { // keys as columns, in panels
        for (let i = 0; i < f; i++) M[scratch.keys + ((s >> 3) * f + i) * 8 + (s & 7)] = M[r.k[layer] + s * wide + h * f + i];
      }
      M.fill(0, A + first * R, A + last * R);
      for (let i = first; i < last; i += 32) {
        const some = Math.min(32, last - i);
        model.mul(r.q[layer] + i * wide + h * f, wide, scratch.keys, f * 8, A + i * R, R, some, f, up(i + some, 8) >> 3);
      }
      for (let i = first; i < n; i++) softmax(A + i * R, i + 1, up((i & ~31) + 32, 8), scale);
    }
  }

  function softmax(place, length, filled, scale) {
    let top = -Infinity, sum = 0;
    for (let i = place; i < place + length; i++) if (M[i] > top) top = M[i];
    for (let i = place; i < place + length; i++) sum += M[i] = Math.exp((M[i] - top) * scale);
    for (let i = place; i < place + length; i++) M[i] /= sum;
    M.fill(0, place + length, place + Math.min(filled, R));
  }

  /** z = pattern · values of every head, the values read from `stream`; switched-off heads replaced. */
  function move(layer, stream, v, z, written, order = null) {
    project(model.W_V, layer, "V", stream, v, written);
    clear(z, wide);
    for (let h = 0; h < H; h++) {
      const change = off[layer]?.find(([head]) => head === h)?.[1];
      if (change === "zero" || (change === "mean" && order > 0)) continue;
      if (change === "mean") {
        replaceByMean(layer, h, z);
        continue;
      }
      for (let s = 0; s < up(n, 4); s++) {
        for (let i = 0; i < f; i++) M[scratch.values + ((i >> 3) * R + s) * 8 + (i & 7)] = M[v + s * wide + h * f + i];
      }
      const A = r.pattern[layer] + h * R * R;
      for (let i = first; i < last; i += 32) {
        const some = Math.min(32, last - i);
        model.mul(A + i * R, R, scratch.values, R * 8, z + i * wide + h * f, wide, some, Math.min(i + some, up(n, 4)), f >> 3);
      }
    }
  }

  /** The mean over positions of what the head moves in the intact run of this text. */
  function replaceByMean(layer, h, z) {
    if (!reference || reference.ids.length !== n) throw new Error("a mean needs the intact run of the same text");
    for (let i = h * f; i < (h + 1) * f; i++) {
      let sum = 0;
      for (let s = 0; s < n; s++) sum += M[reference.z[layer] + s * wide + i];
      for (let s = 0; s < n; s++) M[z + s * wide + i] = sum / n;
    }
  }

  for (let i = first; i < n; i++) M.copyWithin(r.resid[0] + i * d, model.W_E + ids[i] * d, model.W_E + (ids[i] + 1) * d);
  for (let layer = 0; layer < L; layer++) {
    attend(layer);
    move(layer, r.resid[layer], r.v[layer], r.z[layer], r.z);
    M.copyWithin(r.resid[layer + 1] + first * d, r.resid[layer] + first * d, r.resid[layer] + last * d);
    model.product(r.z[layer] + first * wide, wide, model.W_O[layer], r.resid[layer + 1] + first * d, d, rows);
  }
  const whole = settings.order === null ? [r.resid[L]] : byOrder();
  clear(r.final, d);
  for (const part of whole) for (let i = first * d; i < last * d; i++) M[r.final + i] += M[part + i];

  /** The stream split by how many heads a term passed, patterns held: orders 0 to settings.order. */
  function byOrder() {
    for (const stream of r.orders) clear(stream, d);
    M.copyWithin(r.orders[0] + first * d, r.resid[0] + first * d, r.resid[0] + last * d);
    for (let layer = 0; layer < L; layer++) {
      for (let o = Math.min(layer, settings.order - 1); o >= 0; o--) {
        const z = r.zOrder[layer][o];
        // What stands in orders[o] was written by heads that read order o - 1.
        move(layer, r.orders[o], scratch.value, z, o ? r.zOrder.map((all) => all[o - 1]) : nothing(), o);
        model.product(z + first * wide, wide, model.W_O[layer], r.orders[o + 1] + first * d, d, rows);
      }
    }
    return r.orders.slice(0, settings.order + 1);
  }

  function nothing() {
    const place = r.zOrder[0][L];
    clear(place, wide);
    return Array(L).fill(place);
  }

  r.key = key;
  return r;
}

/** Logits after position `at`, as a view that the next call overwrites. */
export function logitsAt(model, r, at) {
  return logitRows(model, r, at, 1).subarray(0, model.config.d_vocab);
}

/** Logits of `count` positions from `from`, at most 32, row after row; overwritten by the next call. */
export function logitRows(model, r, from, count) {
  const { d_model: d, d_vocab: v } = model.config, M = model.memory, out = model.scratch.logits;
  const start = Math.max(0, Math.min(from, model.rows - up(count, 4)));
  const rows = up(from - start + count, 4);
  M.fill(0, out, out + rows * v);
  model.product(r.final + start * d, d, model.W_U, out, v, rows);
  return M.subarray(out + (from - start) * v, out + (from - start + count) * v);
}

/** Length of the value that each head fetches from each source: layer -> Float32Array (head, src). */
export function valueNorms(model, r) {
  const { n_heads: H, d_head: f } = model.config, n = r.ids.length;
  return r.v.map((v) => {
    const out = new Float32Array(H * n);
    for (let h = 0; h < H; h++) {
      for (let s = 0; s < n; s++) {
        let sum = 0;
        for (let i = 0; i < f; i++) sum += model.memory[v + (s * H + h) * f + i] ** 2;
        out[h * n + s] = Math.sqrt(sum);
      }
    }
    return out;
  });
}

/** A run's patterns of one layer, tightly packed: Float32Array (head, dest, src). */
export function patternsOf(model, r, layer) {
  const { n_heads: H } = model.config, n = r.ids.length, R = model.rows;
  const out = new Float32Array(H * n * n);
  for (let h = 0; h < H; h++) {
    for (let i = 0; i < n; i++) {
      const from = r.pattern[layer] + (h * R + i) * R;
      out.set(model.memory.subarray(from, from + n), (h * n + i) * n);
    }
  }
  return out;
}
