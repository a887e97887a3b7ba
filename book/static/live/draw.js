// The book's colours, and attention patterns drawn in them.
//
// Attention is viridis from 0 to 1, destinations go down, sources across, as in every figure.

const VIRIDIS = "440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c 1fa088 28ae80 3fbc73 5ec962 84d44b addc30 d8e219 fde725"
  .split(" ").map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));

/** [r, g, b] of a value between 0 and 1. */
export function viridis(value) {
  const x = Math.max(0, Math.min(1, value)) * (VIRIDIS.length - 1), i = Math.min(VIRIDIS.length - 2, Math.floor(x));
  return VIRIDIS[i].map((a, c) => Math.round(a + (x - i) * (VIRIDIS[i + 1][c] - a)));
}

export const css = ([r, g, b]) => `rgb(${r}, ${g}, ${b})`;

/** Black or white, whichever is read more easily on this colour. */
export function ink([r, g, b]) {
  const linear = (c) => ((c / 255 + 0.055) / 1.055) ** 2.4;
  const light = 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  return (light + 0.05) ** 2 > 0.05 * 1.05 ? "#000" : "#fff";
}

const TABLE = Uint32Array.from({ length: 256 }, (_, i) => {
  const [r, g, b] = viridis(i / 255);
  return (255 << 24) | (b << 16) | (g << 8) | r;
});

/** The (n, n) weights as a canvas of one pixel each; `scale` is the value drawn brightest. */
export function pixels(canvas, weights, n, scale = 1) {
  if (canvas.width !== n) canvas.width = canvas.height = n;
  const context = canvas.getContext("2d"), image = context.createImageData(n, n);
  const out = new Uint32Array(image.data.buffer);
  for (let i = 0; i < out.length; i++) out[i] = TABLE[Math.min(255, Math.round((255 * weights[i]) / scale))];
  context.putImageData(image, 0, 0);
}

export const short = (token, most = 10) => ([...token].length > most ? `${[...token].slice(0, most - 1).join("")}…` : token);

/** Where the square of a large pattern lies in a drawing this wide: room for labels at left and below. */
export function layout(width, n) {
  const margin = Math.min(68, Math.round(width * 0.18)), side = width - margin - 4;
  return { margin, side, cell: side / n, labels: side / n >= 7.2 };
}

/** One head's pattern, large, with token labels where they fit and the chosen row outlined. */
export function large(canvas, view) {
  const width = canvas.clientWidth;
  if (!width) return;
  const ratio = devicePixelRatio || 1, style = getComputedStyle(canvas);
  canvas.width = canvas.height = Math.round(width * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const { weights, n, tokens, row, column, scale } = view, { margin, side, cell, labels } = layout(width, n);
  const small = (large.small ??= document.createElement("canvas"));
  pixels(small, weights, n, scale);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, margin, 2, side, side);
  context.fillStyle = style.color;
  context.textBaseline = "middle";
  context.textAlign = "right";
  const size = Math.max(7, Math.min(12, cell * 0.9)), font = style.fontFamily;
  const bold = (on) => (context.font = `${on ? 700 : 400} ${size}px ${font}`);
  const label = (i, x, y) => context.fillText(short(tokens[i]), x, y, margin - 6);
  for (let i = 0; i < n; i++) {
    if (!labels && i !== row && i !== 0) continue;
    bold(i === row);
    label(i, margin - 4, 2 + Math.max(size / 2, Math.min(side - size / 2, (i + 0.5) * cell)));
  }
  context.save();
  context.translate(margin, side + 6);
  context.rotate(-Math.PI / 2);
  for (let i = 0; i < n; i++) {
    if (!labels && i !== column && i !== 0) continue;
    bold(i === column);
    label(i, 0, Math.max(size / 2, Math.min(side - size / 2, (i + 0.5) * cell)));
  }
  context.restore();
  context.strokeStyle = "#fff";
  context.lineWidth = 1.5;
  if (row !== null && row !== undefined) context.strokeRect(margin, 2 + row * cell, Math.min(side, (row + 1) * cell), Math.max(2, cell));
}

/** The same as a vector picture: an <svg> element of its own, on white like the book's figures. */
export function svg(panels, caption) {
  const NS = "http://www.w3.org/2000/svg";
  const node = (name, attributes, ...inside) => {
    const e = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
    e.append(...inside);
    return e;
  };
  const width = 420, top = 26, step = width + 16;
  const root = node("svg", { xmlns: NS, width: step * panels.length, height: width + top + 24, "font-family": "DejaVu Sans, sans-serif" },
    node("rect", { width: "100%", height: "100%", fill: "#fff" }));
  panels.forEach(({ title, weights, n, tokens, scale }, place) => {
    const { margin, side, cell, labels } = layout(width, n), size = Math.max(5, Math.min(11, cell * 0.86));
    const group = node("g", { transform: `translate(${place * step} ${top})` },
      node("text", { x: margin, y: -8, "font-size": 13, fill: "#222" }, title),
      node("rect", { x: margin, y: 0, width: side, height: side, fill: css(viridis(0)) }));
    for (let i = 0; i < n; i++) {
      for (let j = 0; j <= i; j++) {
        const value = weights[i * n + j] / scale;
        if (value < 0.004) continue;
        group.append(node("rect", { x: (margin + j * cell).toFixed(2), y: (i * cell).toFixed(2), width: (cell + 0.05).toFixed(2), height: (cell + 0.05).toFixed(2), fill: css(viridis(value)) }));
      }
      if (!labels) continue;
      const at = (i + 0.5) * cell, text = (attributes) => node("text", { "font-size": size, fill: "#222", "text-anchor": "end", "dominant-baseline": "central", ...attributes }, short(tokens[i]));
      group.append(text({ x: margin - 4, y: at }), text({ transform: `translate(${margin + at} ${side + 4}) rotate(-90)` }));
    }
    root.append(group);
  });
  root.append(node("text", { x: 8, y: width + top + 14, "font-size": 11, fill: "#444" }, caption));
  return root;
}

/** Hands the reader a file. */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export const svgBlob = (root) => new Blob([new XMLSerializer().serializeToString(root)], { type: "image/svg+xml" });

/** The picture as PNG, twice as many pixels as its size says. */
export async function pngBlob(root) {
  const image = new Image(), address = URL.createObjectURL(svgBlob(root));
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * image.width;
  canvas.height = 2 * image.height;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
