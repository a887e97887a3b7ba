// Small live figures for chapters: one text, one task, the same engine as the playground.

import { nextTokens } from "./bars.js";
import { choice, fixed, h, later, put, signed } from "./dom.js";
import { ask, latest } from "./engine.js";
import { view } from "./patterns.js";
import { large } from "./draw.js";
import { fitted, headNames, headOf, intact, toParameters } from "./settings.js";
import { rowShades, strip } from "./strip.js";

/** The index of the largest entry. */
const top = (scores) => scores.indexOf(Math.max(...scores));

/** The heads a figure talks about, by the scores that training measured: none is named here. */
function cast({ prefix_matching: copies, previous_token: back, config }) {
  const induction = copies.flatMap((row, l) => row.flatMap((score, i) => (score >= 0.5 ? [`L${l}H${i}`] : [])));
  return { induction, previous: config.n_layers > 1 ? `L0H${top(back[0])}` : null };
}

// What each figure asks, with what it begins. `text` may be a function of the list of models.
const FIGURES = {
  copies: {
    title: "Live: type something twice",
    task: "Write anything, then begin it again, and watch where two heads look.",
    model: "attn-only-2l", text: "My grandmother kept seven blue teacups. My grandmother kept seven blue", pattern: true,
    heads: ({ induction }) => induction, twice: true,
  },
  pattern: {
    title: "Live: where does a head look?",
    task: "Choose a head and point at tokens. Each row of the picture is one token's question to those before it.",
    model: "attn-only-2l", text: (list) => list.demo, pattern: true, heads: (_, config) => headNames(config),
  },
  trigrams: {
    title: "Live: skip-trigrams at work",
    task: "Take heads out one by one and see which of the likeliest next tokens they were responsible for.",
    model: "attn-only-1l", text: "class Set:\n    def add(self", heads: (_, config) => headNames(config), off: (_, config) => headNames(config),
  },
  induction: {
    title: "Live: take the mechanism apart",
    task: "Random pieces of words, twice. Switch off the head that looks back, or the induction heads, and see what the second copy costs.",
    model: "attn-only-2l", words: { count: 12, times: 2, seed: 7 }, pattern: true, shade: "loss",
    heads: ({ induction }) => induction, off: ({ induction, previous }) => [previous, ...induction],
  },
  training: {
    title: "Live: the same text, earlier in training",
    task: "Move the slider through training, or change the text: when does the second copy become cheaper than the first?",
    model: "attn-only-2l", words: { count: 12, times: 2, seed: 7 }, pattern: true, shade: "loss", moments: true,
    heads: ({ induction, previous }) => [...induction, previous],
  },
  orders: {
    title: "Live: how many heads may a path pass?",
    task: "Keep the direct path alone, or add the paths through one head, and see what becomes of the prediction.",
    model: "attn-only-2l", text: (list) => list.demo, shade: "loss", orders: true, heads: () => [],
  },
};

export async function figure(host, kind) {
  const plan = FIGURES[kind];
  if (!plan) throw new Error(`there is no live figure ${kind}, only ${Object.keys(FIGURES).join(", ")}`);
  const slot = `figure ${kind}`, list = await ask("models");
  const about = list.models.find(({ name }) => name === plan.model);
  if (!about) throw new Error(`the model ${plan.model} is not in this build`);
  const moments = plan.moments ? [...list.moments[plan.model], { ...about, tokens: null }] : [about];
  const { config } = about, roles = cast(about), heads = plan.heads(roles, config).filter(Boolean);
  const state = { at: null, pointed: null, target: null, settings: intact(), head: heads[0] ?? null, moment: 0 };
  let answer, look, losses, before;

  const text = h("textarea", { rows: "2", spellcheck: "false", dir: "auto", "aria-label": "Your text", oninput: () => {
    Object.assign(state, { at: null, target: null });
    refresh();
  } });
  const status = h("p", { class: "lv-status", role: "status" });
  const finding = h("p", { class: "lv-finding", "aria-live": "polite" });
  const tokens = strip("Tokens; choose the one that looks", {
    chosen: (at) => {
      Object.assign(state, { at, target: null });
      asking.look({ slot, at });
      render();
    },
    pointed: (at) => {
      if (state.pointed === at) return;
      state.pointed = at;
      render();
    },
  });
  const next = nextTokens((id) => {
    state.target = id;
    asking.look({ slot, at: state.at, target: id });
  });
  const nextTitle = h("p", { class: "lv-title" });
  const headChoice = heads.length > 1 && (plan.pattern || plan.off)
    ? choice("Head", heads.map((name) => [name, name]), (name) => {
      state.head = name;
      render();
    }) : null;
  const canvas = plan.pattern ? h("canvas", { class: "lv-large", role: "img", "aria-label": "Pattern of a head: drawn when the model is here" }) : null;
  const toggles = (plan.off?.(roles, config) ?? []).filter(Boolean).map((name) =>
    h("button", { type: "button", class: "lv-toggle", "aria-pressed": "true", "data-head": name, onclick: () => {
      if (state.settings.off[name]) delete state.settings.off[name];
      else state.settings.off[name] = "zero";
      refresh();
    } }, `${name} on`));
  const order = plan.orders ? choice("Keep", [["", "all paths"], ...[...Array(config.n_layers).keys()].map((k) => [String(k), k ? `paths through at most ${k} head${k > 1 ? "s" : ""}` : "the direct path only"])], (value) => {
    state.settings.order = value === "" ? null : Number(value);
    refresh();
  }) : null;
  const twice = plan.twice ? h("button", { type: "button", onclick: () => {
    text.value = `${text.value.trim()} ${text.value.trim()}`;
    text.dispatchEvent(new Event("input"));
  } }, "Say it twice") : null;
  const more = h("a", { href: "#" }, "Open in the playground");
  const when = (i) => (moments[i].tokens === null ? "the finished model" : `after ${fixed(moments[i].tokens / 1e6, 1)} million tokens`);
  const moment = moments.length > 1 ? h("input", { type: "range", min: "0", max: String(moments.length - 1), step: "1", value: "0", oninput: () => {
    state.moment = Number(moment.value);
    refresh();
  } }) : null;
  const momentWords = h("output", {});

  host.replaceChildren(h("section", { class: "lv lv-card", "aria-label": plan.title },
    h("p", { class: "lv-title" }, plan.title), h("p", { class: "lv-task" }, plan.task),
    text, status,
    moment ? h("label", { class: "lv-moment" }, h("span", {}, "Moment"), moment, momentWords) : null,
    headChoice || order || twice || toggles.length ? h("div", { class: "lv-row" }, twice, headChoice, order, toggles.length ? h("div", { class: "lv-buttons", role: "group", "aria-label": "Heads that write" }, toggles) : null) : null,
    tokens.root, finding,
    h("div", { class: canvas ? "lv-pairs" : "" }, canvas ? h("div", {}, canvas) : null, h("div", {}, nextTitle, next.root)),
    h("p", { class: "lv-foot" }, h("span", {}, moment ? `${plan.model} at ${moments.length} moments, ${fixed(moments[0].bytes / 1e6, 1)} MB each, runs in this page` : `${plan.model}, ${fixed(about.bytes / 1e6, 1)} MB, runs in this page`), more)));

  const fail = (error) => {
    status.dataset.trouble = "";
    status.replaceChildren(`${error.message} `, h("button", { type: "button", onclick: refresh }, "Try again"));
    host.dataset.state = "failed";
  };
  const asking = {
    run: latest("run", (found) => {
      answer = look = found;
      host.dataset.state = "ready";
      delete status.dataset.trouble;
      put(status, { text: `${found.tokens.length} of ${config.n_ctx} tokens.${found.cut ? ` The last ${found.rest.toLocaleString("en")} characters are left out.` : ""}` });
      render();
      if (plan.shade === "loss") deepen();
    }, fail),
    look: latest("look", (found) => {
      look = found;
      render();
    }, fail),
    losses: latest("losses", (found) => {
      losses = found;
      const plain = !Object.keys(state.settings.off).length && state.settings.order === null;
      if (plain) before = { text: text.value, mean: found.mean };
      render();
    }, () => {}),
  };
  const deepen = later(60, () => asking.losses({ slot }));

  function refresh() {
    const { name, bytes } = moments[state.moment];
    if (answer?.name !== name) put(status, { text: `Loading ${name}, ${fixed(bytes / 1e6, 1)} MB …` });
    if (moment) {
      put(moment, { "aria-valuetext": when(state.moment) });
      put(momentWords, { text: when(state.moment) });
    }
    const settings = fitted(structuredClone(state.settings), config);
    asking.run({ slot, model: name, text: text.value, settings, at: state.at, target: state.target });
    toggles.forEach((button) => {
      const off = state.settings.off[button.dataset.head];
      put(button, { text: `${button.dataset.head} ${off ? "off" : "on"}`, "aria-pressed": !off });
    });
  }

  function render() {
    if (!answer) return;
    const n = answer.tokens.length, at = Math.min(state.pointed ?? look.at, n - 1);
    const [layer, head] = headOf(state.head ?? "", config) ?? [];
    const shown = state.head ? view(answer, layer, head, false) : null;
    const most = losses ? Math.max(1, ...losses.losses) : 1, fits = losses?.losses.length === n - 1 && losses.name === answer.name;
    if (plan.shade === "loss") {
      tokens.show({ tokens: answer.tokens, at, shades: fits ? answer.tokens.map((_, i) => (i ? losses.losses[i - 1] / most : null)) : null,
        words: (i) => (i && fits ? `loss ${fixed(losses.losses[i - 1])} nats` : null) });
    } else tokens.show({ tokens: answer.tokens, at, ...(shown ? rowShades(shown.weights, n, at, 1) : { shades: null }) });
    if (canvas && shown) {
      put(canvas, { "aria-label": `Pattern of head ${state.head}: destinations down, sources across, brighter is more` });
      large(canvas, { ...shown, row: at, column: null });
    }
    put(nextTitle, { text: `After ${answer.tokens[Math.min(look.at, n - 1)]}` });
    next.show(look);
    put(finding, { text: plan.shade === "loss" ? lossWords(fits) : lookWords(at, shown) });
    const link = new URLSearchParams({ text: text.value, model: plan.model });
    toParameters(state.settings, "", link);
    if (state.head) link.set("heads", state.head);
    more.href = new URL(`../../book/playground.html#${link}`, import.meta.url).href;
  }

  function lookWords(at, shown) {
    if (!shown) return "";
    const row = shown.weights.subarray(at * shown.n, at * shown.n + at + 1), source = top([...row]);
    return `From ${answer.tokens[at]}, ${state.head} looks most at ${answer.tokens[source]} (${fixed(row[source])})${source > 0 ? `, which came after ${answer.tokens[source - 1]}` : ", where it rests"}.`;
  }

  function lossWords(fits) {
    if (!fits) return "";
    if (moment) {
      const half = Math.ceil(losses.losses.length / 2), mean = (part) => fixed(part.reduce((a, b) => a + b, 0) / Math.max(1, part.length));
      return `${when(moments.findIndex(({ name }) => name === answer.name)).replace(/^./, (c) => c.toUpperCase())}: ${mean(losses.losses.subarray(0, half))} nats per token in the first half of the text, ${mean(losses.losses.subarray(half))} in the second.`;
    }
    const changed = before && before.text === text.value && before.mean !== losses.mean ? ` (intact: ${fixed(before.mean)}, ${signed(losses.mean - before.mean)})` : "";
    return `Mean loss ${fixed(losses.mean)} nats per token${changed}. Bright tokens are those it did not expect.`;
  }

  if (canvas) new ResizeObserver(() => render()).observe(canvas);
  new MutationObserver(() => render()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  if (plan.words) {
    text.value = await ask("words", { model: plan.model, ...plan.words });
  } else text.value = typeof plan.text === "function" ? plan.text(list) : plan.text;
  refresh();
}
