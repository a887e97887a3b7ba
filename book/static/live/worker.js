// The engine's own thread: models and runs live here, answers go back as plain data.
//
// A question carries its number back. Long work stops when a newer question for the same slot waits.

import { Model } from "./model.js";
import { byLastHead, contributions } from "./paths.js";
import { logitRows, logitsAt, patternsOf, run, valueNorms } from "./run.js";
import { fitted, intact, wrong } from "./settings.js";
import { Tokenizer } from "./tokenizer.js";

const DATA = new URL("./data/", import.meta.url);
const newest = new Map(); // slot -> number of its latest question
const slots = new Map(); // slot -> { model, r }
const loaded = new Map(); // name -> promise
let listing, tokenizer;

/** A file, or an error that names it; a failed one is asked for anew the next time. */
async function fetched(name, read) {
  let response;
  try {
    response = await fetch(new URL(name, DATA));
  } catch {
    throw new Error(`${name} could not be downloaded: is the connection down?`);
  }
  if (!response.ok) throw new Error(`${name} could not be downloaded: the server answered ${response.status}`);
  if (!name.endsWith(".z")) return response[read]();
  try {
    return await new Response(response.body.pipeThrough(new DecompressionStream("deflate")))[read]();
  } catch {
    throw new Error(`${name} is damaged or was cut short`);
  }
}

function once(store, key, make) {
  if (!store.has(key)) store.set(key, make().catch((error) => {
    store.delete(key);
    throw error;
  }));
  return store.get(key);
}

const list = () => once(loaded, "models.json", () => fetched("models.json", "json"));

/** A moment of a model's training, such as "attn-only-2l@882"; one at a time is kept in memory. */
function snapshot(name) {
  const [of] = name.split("@"), moment = listing.moments[of]?.find((one) => one.name === name);
  if (!moment) return undefined;
  for (const other of loaded.keys()) if (other.includes("@") && other !== name) loaded.delete(other);
  return { ...listing.models.find((one) => one.name === of), ...moment, options: { runs: 2 } };
}

async function models(name) {
  listing = await list();
  const about = listing.models.find((one) => one.name === name) ?? snapshot(name);
  if (!about) throw new Error(`there is no model ${name} here, only ${listing.models.map((m) => m.name).join(", ")}`);
  const [model] = await Promise.all([
    once(loaded, name, async () => new Model(about, await fetched(about.file, "arrayBuffer"), about.options)),
    once(loaded, "tokenizer", async () => (tokenizer = new Tokenizer(await fetched(listing.tokenizer, "json")))),
  ]);
  return model;
}

/** The best `count` tokens after a position, and each of `also`, with logit and probability. */
function ranked(logits, count, also) {
  let top = -Infinity, sum = 0;
  for (const x of logits) if (x > top) top = x;
  for (const x of logits) sum += Math.exp(x - top);
  const best = [];
  for (let id = 0; id < logits.length; id++) {
    if (best.length < count || logits[id] > logits[best.at(-1)]) {
      const place = best.findIndex((other) => logits[other] < logits[id]);
      best.splice(place < 0 ? best.length : place, 0, id);
      if (best.length > count) best.pop();
    }
  }
  const total = top + Math.log(sum);
  const row = (id) => ({ id, token: tokenizer.shown(id), logit: logits[id], loss: total - logits[id], p: Math.exp(logits[id] - total) });
  return { best: best.map(row), also: also.map(row) };
}

/** The slot's last run; Error if its room has been given to another since. */
function held(slot) {
  const { model, r } = slots.get(slot) ?? {};
  if (!r || model.runs.get(slot) !== r) throw new Error("this figure's run was put aside for others: type to run it again");
  return { model, r };
}

function heldPatterns(model, name, ids, settings) {
  if (settings.freeze === "none") return {};
  if (settings.freeze === "own") return { frozen: run(model, `${name} intact`, ids, intact()) };
  const other = tokenizer.encode(settings.other, model.config.n_ctx).ids;
  if (other.length < ids.length) {
    return { note: `The other text has ${other.length} tokens, this one ${ids.length}: patterns are not held. Make the other text longer, or this one shorter.` };
  }
  return { frozen: run(model, "other", other, intact()) };
}

const answers = {
  async models() {
    return list();
  },

  /** Random words of one token each, the whole repeated `times` times; the seed decides. */
  async words({ model: name, count, times, seed }) {
    await models(name);
    const words = tokenizer.bytes.map((raw) => new TextDecoder().decode(raw)).filter((text) => /^ [a-z]{3,}$/.test(text));
    const chosen = Array.from({ length: count }, () => {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0; // a linear congruential generator
      return words[Math.floor((seed / 2 ** 32) * words.length)];
    });
    return Array(times).fill(chosen.join("")).join("");
  },

  async run({ slot, model: name, text, ids: given, settings: asked, at, target: id, targetText, best = 10 }) {
    const model = await models(name), { config } = model;
    if (wrong(asked)) throw new Error(wrong(asked));
    const settings = fitted(asked, config);
    const read = given ? { ids: given, cut: false, rest: 0 } : tokenizer.encode(text, config.n_ctx);
    const { ids } = read;
    const target = targetText ? tokenizer.encode(targetText).ids[1] : id < config.d_vocab ? id : null;
    const started = performance.now();
    const { frozen, note = "" } = heldPatterns(model, slot, ids, settings);
    const used = note ? { ...settings, freeze: "none" } : settings;
    const reference = Object.values(used.off).includes("mean") ? run(model, `${slot} intact`, ids, intact()) : null;
    const r = run(model, slot, ids, used, { reference, frozen });
    slots.set(slot, { model, r });
    const layers = [...Array(config.n_layers).keys()];
    return {
      name, config, settings: used, note, ids, cut: read.cut, rest: read.rest, simd: model.simd,
      tokens: ids.map((id) => tokenizer.shown(id)),
      patterns: layers.map((l) => patternsOf(model, r, l)), norms: valueNorms(model, r),
      ...answers.look({ slot, at, target, best }),
      ms: performance.now() - started,
    };
  },

  /** What comes after one position: the likeliest tokens, the true one, the chosen one. */
  look({ slot, at, target, best = 10 }) {
    const { model, r } = held(slot), n = r.ids.length;
    const position = at === null || at === undefined || at >= n ? n - 1 : at;
    const truth = position + 1 < n ? r.ids[position + 1] : null;
    const logits = logitsAt(model, r, position);
    const { best: list, also } = ranked(logits, best, [truth, target].filter((id) => id !== null && id !== undefined));
    const aim = also.find((one) => one.id === target) ?? also.find((one) => one.id === truth) ?? list[0];
    return { at: position, best: list, truth: also.find((one) => one.id === truth) ?? null, target: aim };
  },

  paths({ slot, at, target }) {
    const { model, r } = held(slot);
    const terms = contributions(model, r, at, target);
    return { at, target, heads: byLastHead(terms), terms, sum: terms.reduce((sum, { value }) => sum + value, 0) };
  },

  /** Loss of every token but the first, in nats; null when a newer question for the slot came. */
  async losses({ slot, number }) {
    const { model, r } = held(slot), n = r.ids.length, v = model.config.d_vocab;
    const losses = new Float32Array(Math.max(0, n - 1));
    for (let from = 0; from < n - 1; from += 16) {
      const count = Math.min(16, n - 1 - from), rows = logitRows(model, r, from, count);
      for (let i = 0; i < count; i++) {
        const logits = rows.subarray(i * v, (i + 1) * v);
        let top = -Infinity, sum = 0;
        for (let j = 0; j < v; j++) if (logits[j] > top) top = logits[j];
        for (let j = 0; j < v; j++) sum += Math.exp(logits[j] - top);
        losses[from + i] = top + Math.log(sum) - logits[r.ids[from + i + 1]];
      }
      await new Promise((resolve) => setTimeout(resolve));
      if (newest.get(slot) > number || slots.get(slot).r.key !== r.key) return null;
    }
    return { name: model.name, losses, mean: losses.length ? losses.reduce((a, b) => a + b, 0) / losses.length : null };
  },
};

self.onmessage = async ({ data }) => {
  const { number, kind, slot } = data;
  if (kind === "run") newest.set(slot, number);
  try {
    const answer = await answers[kind](data);
    const handed = [...(answer?.patterns ?? []), ...(answer?.norms ?? [])].map(({ buffer }) => buffer);
    self.postMessage({ number, answer }, handed);
  } catch (error) {
    self.postMessage({ number, error: error.message });
  }
};
