// The weights of one shipped model, unpacked from its checkpoint file into one shared memory.
//
// The file is the package's own (safetensors): fp16 for a finished model, whole numbers of 8 bits with
// fp16 scales for a snapshot of its training. Every number is made a float exactly.

import { kernel } from "./kernel.js";

export const up = (n, to) => Math.ceil(n / to) * to;

const KINDS = { F16: Uint16Array, I8: Int8Array };

/** The tensors of a safetensors file: name -> { shape, raw: Uint16Array | Int8Array }. Error if cut short. */
export function tensors(buffer) {
  const view = new DataView(buffer);
  const length = buffer.byteLength > 8 ? Number(view.getBigUint64(0, true)) : Infinity;
  if (8 + length > buffer.byteLength) throw new Error("the model's file is cut short or is no model");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const found = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    if (!KINDS[dtype]) throw new Error(`${name} must be fp16 (F16) or 8 bits with a scale (I8), got ${dtype}`);
    if (8 + length + to > buffer.byteLength) throw new Error("the model's file is cut short");
    found[name] = { shape, raw: new KINDS[dtype](buffer.slice(8 + length + from, 8 + length + to)) };
  }
  return found;
}

/** Every fp16 number as a float, by its 16 bits. */
function halves() {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const exponent = (bits >> 10) & 31, fraction = bits & 1023, sign = bits >> 15 ? -1 : 1;
    const size = exponent === 0 ? fraction * 2 ** -24
      : exponent === 31 ? (fraction ? NaN : Infinity)
        : (1 + fraction / 1024) * 2 ** (exponent - 15);
    table[bits] = sign * size;
  }
  return table;
}

/** Whole numbers times their scales; a scale's axis of size 1 is shared along that axis. */
function scaled({ shape, raw }, scale) {
  const out = new Float32Array(raw.length);
  for (let i = 0; i < raw.length; i++) {
    let rest = i, place = 0, stride = 1;
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      const at = rest % shape[axis];
      rest = (rest - at) / shape[axis];
      if (scale.shape[axis] > 1) place += at * stride;
      stride *= scale.shape[axis];
    }
    out[i] = raw[i] * scale.values[place];
  }
  return out;
}

/** Error unless this engine computes exactly what the package computes for such a model. */
export function check(config, name) {
  const refuse = (what) => {
    throw new Error(`${name} cannot run in the page: ${what}; take one of the attention-only models without it`);
  };
  if (config.norm) refuse(`it has LayerNorm (norm=${config.norm})`);
  if (config.smear) refuse("it has smeared keys");
  for (const field of ["d_model", "d_head", "d_vocab"]) {
    if (config[field] % 8) refuse(`${field}=${config[field]} is no multiple of 8`);
  }
}

export class Model {
  /** From { name, config } and the file's bytes; `simd: false` keeps to plain JavaScript. */
  constructor({ name, config }, buffer, { simd = true, runs = 6 } = {}) {
    check(config, name);
    this.name = name;
    const c = (this.config = config);
    const { d_model: d, d_vocab: v, n_layers: L, n_heads: H, d_head: f } = c;
    const file = tensors(buffer);
    const shapes = {
      W_E: [v, d], W_U: [d, v],
      W_Q: [L, H, d, f], W_K: [L, H, d, f], W_V: [L, H, d, f], W_O: [L, H, f, d],
    };
    for (const [key, shape] of Object.entries(shapes)) {
      if (String(file[key]?.shape) !== String(shape)) {
        throw new Error(`${name}: ${key} must be (${shape}), got (${file[key]?.shape ?? "nothing"})`);
      }
    }
    this.rows = up(c.n_ctx, 8); // room for every position, in fours and eights
    const stream = this.rows * d, heads = this.rows * H * f, square = H * this.rows * this.rows;
    const oneRun = (L + 2) * stream + L * (4 * heads + square) + L * (L + 1) * heads + (L + 1) * stream;
    const scratch = 2 * stream + heads + 2 * this.rows * f + 32 * v + 1024;
    const { memory, mul, simd: fast } = kernel(2 * v * d + stream + 4 * L * d * H * f + scratch + runs * oneRun + 4096, simd);
    Object.assign(this, { memory, mul, simd: fast, runs: new Map(), most: runs, used: 0 });
    const table = halves();
    const floats = (half) => Float32Array.from(half, (bits) => table[bits]);
    const flat = (key) => {
      const scale = file[`${key}.scale`];
      return scale ? scaled(file[key], { shape: scale.shape, values: floats(scale.raw) }) : floats(file[key].raw);
    };

    this.W_E = this.take(v * d);
    memory.set(flat("W_E"), this.W_E);
    this.W_U = this.packed(flat("W_U"), d, v);
    this.W_pos = this.positions();
    for (const key of ["W_Q", "W_K", "W_V"]) {
      const all = flat(key); // (L, H, d, f) -> per layer (d, H f), all heads' columns side by side
      this[key] = Array.from({ length: L }, (_, l) => {
        const wide = new Float32Array(d * H * f);
        for (let h = 0; h < H; h++) {
          for (let i = 0; i < d; i++) {
            const from = ((l * H + h) * d + i) * f;
            wide.set(all.subarray(from, from + f), i * H * f + h * f);
          }
        }
        return this.packed(wide, d, H * f);
      });
    }
    const all = flat("W_O"); // (L, H, f, d) is per layer (H f, d) already
    this.W_O = Array.from({ length: L }, (_, l) => this.packed(all.subarray(l * H * f * d, (l + 1) * H * f * d), H * f, d));
    this.scratch = {
      placed: this.take(stream), write: this.take(stream), value: this.take(heads),
      keys: this.take(this.rows * f), values: this.take(this.rows * f), logits: this.take(32 * v),
    };
  }

  /** The place of `floats` unused floats. */
  take(floats) {
    const place = this.used;
    this.used = up(place + floats, 4);
    if (this.used > this.memory.length) throw new Error("the model's memory is used up");
    return place;
  }

  /** A (rows, columns) matrix, packed in panels of eight columns. */
  packed(values, rows, columns) {
    const place = this.take(rows * columns), M = this.memory;
    for (let i = 0; i < rows; i++) {
      for (let j = 0; j < columns; j++) {
        M[place + ((j >> 3) * rows + i) * 8 + (j & 7)] = values[i * columns + j];
      }
    }
    return { place, rows, columns };
  }

  /** C[c] += A[a] · B, of B `rows` from row `top` and `columns` from column `left`. */
  product(a, lda, B, c, ldc, n, { top = 0, rows = B.rows, left = 0, columns = B.columns } = {}) {
    const b = B.place + (left >> 3) * B.rows * 8 + top * 8;
    this.mul(a, lda, b, B.rows * 8, c, ldc, up(n, 4), rows, up(columns, 8) >> 3);
  }

  /** B[top : top + rows, left : left + columns] · vector, in double precision. */
  times(B, vector, { top = 0, rows = B.rows, left = 0, columns = B.columns } = {}) {
    const out = new Float64Array(rows), M = this.memory;
    for (let i = 0; i < rows; i++) {
      let sum = 0;
      for (let j = 0; j < columns; j++) {
        const column = left + j;
        sum += M[B.place + ((column >> 3) * B.rows + top + i) * 8 + (column & 7)] * vector[j];
      }
      out[i] = sum;
    }
    return out;
  }

  /** One column of W_U: the direction in the stream that raises this token's logit. */
  unembedding(token) {
    const { place, rows } = this.W_U;
    return Float64Array.from({ length: rows }, (_, i) => this.memory[place + ((token >> 3) * rows + i) * 8 + (token & 7)]);
  }

  positions() {
    const { n_ctx, d_model, position_amplitude: height, position_base: base } = this.config;
    const place = this.take(this.rows * d_model);
    for (let pos = 0; pos < n_ctx; pos++) {
      for (let i = 0; i < d_model; i++) {
        const angle = pos / base ** ((2 * (i >> 1)) / d_model);
        this.memory[place + pos * d_model + i] = height * (i % 2 ? Math.cos(angle) : Math.sin(angle));
      }
    }
    return place;
  }
}
