// Byte-level BPE, as pathsum.tokenizer does it: text is split into words, each word's bytes are
// merged pair by pair in the order in which the pairs were learnt. The start token, id 0, comes
// first in what a model reads and never out of text.

export const START = "<start>";

// GPT-2's words. White space is Unicode's own: JavaScript's \s would count U+FEFF and miss U+0085.
const WORDS =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const VISIBLE = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍" };
// What Python's str.isprintable refuses: other, separators, unassigned.
const UNPRINTABLE = /[\p{C}\p{Z}]/u;

/** The printable symbol that stands for each byte in the tokenizer's file. */
function symbols() {
  const table = [];
  let next = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    table.push(String.fromCodePoint(printable ? byte : next++));
  }
  return table;
}

const hex = (bytes) => [...bytes].map((b) => `0x${b.toString(16).toUpperCase().padStart(2, "0")}`);

export class Tokenizer {
  /** From the parsed tokenizer.json. Error if it is not a plain byte-level BPE with <start> at 0. */
  constructor(file) {
    const { vocab, merges, type } = file.model;
    if (type !== "BPE" || vocab[START] !== 0 || file.normalizer || !file.pre_tokenizer?.use_regex) {
      throw new Error("expected a byte-level BPE tokenizer file whose token 0 is <start>");
    }
    this.vocab = new Map(Object.entries(vocab));
    this.size = this.vocab.size;
    this.ranks = new Map(merges.map((pair, rank) => [Array.isArray(pair) ? pair.join(" ") : pair, rank]));
    this.symbols = symbols();
    const bytes = new Map(this.symbols.map((symbol, byte) => [symbol, byte]));
    this.bytes = [];
    for (const [token, id] of this.vocab) {
      this.bytes[id] = id === 0 ? new Uint8Array() : Uint8Array.from([...token].map((c) => bytes.get(c)));
    }
    this.known = new Map();
  }

  /** Ids of a text, start token first, at most `most` of them; `rest` says how many UTF-16 units are left. */
  encode(text, most = Infinity) {
    const ids = [0];
    let read = 0;
    for (const { 0: word, index } of text.matchAll(WORDS)) {
      if (ids.length >= most) break;
      ids.push(...this.word(word));
      read = index + word.length;
    }
    const over = ids.length > most;
    return { ids: over ? ids.slice(0, most) : ids, cut: over || read < text.length, rest: text.length - read };
  }

  word(word) {
    const found = this.known.get(word);
    if (found) return found;
    let parts = Array.from(new TextEncoder().encode(word), (byte) => this.symbols[byte]);
    while (parts.length > 1) {
      let best = Infinity;
      for (let i = 1; i < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i - 1]} ${parts[i]}`);
        if (rank < best) best = rank;
      }
      if (best === Infinity) break;
      const merged = [];
      for (let i = 0; i < parts.length; i++) {
        const joins = i + 1 < parts.length && this.ranks.get(`${parts[i]} ${parts[i + 1]}`) === best;
        merged.push(joins ? parts[i] + parts[++i] : parts[i]);
      }
      parts = merged;
    }
    const ids = parts.map((part) => this.vocab.get(part));
    if (this.known.size > 20000) this.known.clear();
    this.known.set(word, ids);
    return ids;
  }

  /** How a token is shown: space ·, newline ↵, bytes that are no whole character 0xNN. */
  shown(id) {
    if (id === 0) return START;
    const raw = this.bytes[id];
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(raw);
    } catch {
      return [...raw].map((b) => (b > 32 && b < 127 ? String.fromCharCode(b) : hex([b])[0])).join("");
    }
    return [...text]
      .map((c) => VISIBLE[c] ?? (UNPRINTABLE.test(c) ? hex(new TextEncoder().encode(c)).join("") : c))
      .join("");
  }

  /** The text of ids; start tokens give nothing. */
  decode(ids) {
    const all = ids.flatMap((id) => [...this.bytes[id]]);
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(all));
  }
}
