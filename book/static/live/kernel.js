// The one product everything is made of, C += A·B, four rows by eight columns at a time.
//
// With WebAssembly SIMD the few instructions below are assembled here, when the page opens: there
// is no binary to build or to trust. Where a browser has no SIMD, the same loops run as JavaScript.
//
// A is row-major. B is packed in panels of eight columns: panel p holds, row after row, columns 8p
// to 8p + 7. All places and strides count floats in one shared memory; rows come in fours.

const PAGE = 65536;
const FOUR = [0, 1, 2, 3];

const unsigned = (n) => (n < 128 ? [n] : [(n & 127) | 128, ...unsigned(n >>> 7)]);
const section = (id, ...parts) => {
  const body = parts.flat(Infinity);
  return [id, ...unsigned(body.length), ...body];
};
const text = (name) => [name.length, ...new TextEncoder().encode(name)];

/** The bytes of a module with one function, mul(a, lda, b, panel, c, ldc, rows, depth, panels), in bytes. */
function assembled() {
  const I32 = 0x7f, V128 = 0x7b;
  const [a, lda, b, panel, c, ldc, rows, depth, panels] = Array(9).keys();
  const [row, ap, bp, cp, end, lda2, lda3, lastRow, lastPanel] = Array.from({ length: 9 }, (_, i) => 9 + i);
  const sum = (r, half) => 18 + 2 * r + half; // eight accumulators
  const [b0, b1, x] = [26, 27, 28];
  const get = (i) => [0x20, i], set = (i) => [0x21, i];
  const number = (n) => [0x41, n], add = [0x6a], times = [0x6c], shiftLeft = (n) => [...number(n), 0x74];
  const load = (offset) => [0xfd, 0x00, 2, offset], splat = [0xfd, 0x09, 2, 0], store = (offset) => [0xfd, 0x0b, 2, offset];
  const vectorAdd = [0xfd, 0xe4, 0x01], vectorTimes = [0xfd, 0xe6, 0x01];
  const loop = (...body) => [0x03, 0x40, ...body, 0x0b];
  const again = (i, last) => [get(i), get(last), 0x49, 0x0d, 0]; // while i < last
  const advance = (i, by) => [get(i), ...by, add, set(i)];
  const rowOf = [[], [get(lda), add], [get(lda2), add], [get(lda3), add]];
  const eachC = (use) => [get(c), get(row), get(ldc), times, add, set(cp),
    FOUR.map((r) => [use(r), r < 3 ? advance(cp, [get(ldc)]) : []])];
  const body = [
    get(lda), shiftLeft(1), set(lda2), get(lda2), get(lda), add, set(lda3),
    get(b), get(panels), get(panel), times, add, set(lastPanel),
    loop(
      number(0), set(row),
      loop(
        eachC((r) => [get(cp), load(0), set(sum(r, 0)), get(cp), load(16), set(sum(r, 1))]),
        get(a), get(row), get(lda), times, add, set(ap),
        get(b), set(bp), get(b), get(depth), shiftLeft(5), add, set(end),
        loop(
          get(bp), load(0), set(b0), get(bp), load(16), set(b1),
          FOUR.map((r) => [
            get(ap), rowOf[r], splat, set(x),
            get(sum(r, 0)), get(x), get(b0), vectorTimes, vectorAdd, set(sum(r, 0)),
            get(sum(r, 1)), get(x), get(b1), vectorTimes, vectorAdd, set(sum(r, 1)),
          ]),
          advance(ap, [number(4)]), advance(bp, [number(32)]), again(bp, end),
        ),
        eachC((r) => [get(cp), get(sum(r, 0)), store(0), get(cp), get(sum(r, 1)), store(16)]),
        advance(row, [number(4)]), again(row, rows),
      ),
      advance(c, [number(32)]), advance(b, [get(panel)]), again(b, lastPanel),
    ),
    0x0b,
  ].flat(Infinity);
  const code = [2, 9, I32, 11, V128, ...body];
  return new Uint8Array([
    0, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
    ...section(1, [1, 0x60, 9, Array(9).fill(I32), 0]),
    ...section(2, [1, text("js"), text("memory"), 2, 0, 1]),
    ...section(3, [1, 0]),
    ...section(7, [1, text("mul"), 0, 0]),
    ...section(10, [1, unsigned(code.length), code]),
  ]);
}

/** The same function in JavaScript, for browsers without SIMD; places and strides in floats. */
function plain(M) {
  return (a, lda, b, panel, c, ldc, rows, depth, panels) => {
    for (let p = 0; p < panels; p++) {
      for (let i = 0; i < rows; i++) {
        for (let j = 0; j < 8; j += 2) {
          const at = c + i * ldc + 8 * p + j;
          let s = M[at], t = M[at + 1];
          for (let k = 0, x = a + i * lda, y = b + p * panel + j; k < depth; k++, x++, y += 8) {
            s += M[x] * M[y];
            t += M[x] * M[y + 1];
          }
          M[at] = s;
          M[at + 1] = t;
        }
      }
    }
  };
}

/** { memory: Float32Array of `floats`, mul, simd } */
export function kernel(floats, wanted = true) {
  const pages = Math.ceil((floats * 4) / PAGE);
  if (wanted && typeof WebAssembly === "object") {
    try {
      const memory = new WebAssembly.Memory({ initial: pages });
      const instance = new WebAssembly.Instance(new WebAssembly.Module(assembled()), { js: { memory } });
      const inner = instance.exports.mul;
      const mul = (a, lda, b, panel, c, ldc, rows, depth, panels) =>
        inner(4 * a, 4 * lda, 4 * b, 4 * panel, 4 * c, 4 * ldc, rows, depth, panels);
      return { memory: new Float32Array(memory.buffer), mul, simd: true };
    } catch (error) {
      if (!(error instanceof WebAssembly.CompileError)) throw error;
    }
  }
  const memory = new Float32Array(floats);
  return { memory, mul: plain(memory), simd: false };
}
