// The playground: a text, a model, switches, and what they do to patterns and predictions.

import { nextTokens, pathRows, signedBars, table } from "./bars.js";
import { choice, fixed, h, later, put, radios, signed } from "./dom.js";
import { download, pngBlob, svg, svgBlob } from "./draw.js";
import { ask, latest } from "./engine.js";
import { layerPanel, view } from "./patterns.js";
import { PRESETS } from "./presets.js";
import { fromParameters, headNames, headOf, intact, isIntact, toParameters } from "./settings.js";
import { rowShades, strip } from "./strip.js";
import { switches } from "./switches.js";

const SETS = ["A", "B"];

/** The page's state out of a link's fragment, or null where there is none. */
function fromLink() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (!given.has("text")) return null;
  const read = (prefix) => ({ model: given.get(`${prefix}model`), settings: fromParameters(given, prefix) });
  const at = given.get("at"), target = given.get("target");
  return {
    text: given.get("text").slice(0, 20000),
    sets: { A: read(""), B: given.get("b.model") ? read("b.") : null },
    at: /^\d+$/.test(at ?? "") ? Number(at) : null,
    target: /^\d+$/.test(target ?? "") ? Number(target) : null,
    heads: (given.get("heads") ?? "").split(",").filter(Boolean),
    weighted: given.get("weighted") === "1",
  };
}

export async function playground(host) {
  const status = h("p", { class: "lv-status", role: "status" }, "Loading the list of models …");
  host.replaceChildren(h("div", { class: "lv" }, status));
  let list;
  for (;;) {
    try {
      list = await ask("models");
      break;
    } catch (error) {
      await new Promise((retry) => status.replaceChildren(`${error.message} `, h("button", { type: "button", onclick: retry }, "Try again")));
      status.replaceChildren("Loading the list of models …");
    }
  }
  const names = list.models.map(({ name }) => name), about = (name) => list.models.find((one) => one.name === name);
  const best = names.includes("attn-only-2l") ? "attn-only-2l" : names.at(-1);

  const linked = fromLink();
  const state = {
    text: linked?.text ?? list.demo, at: linked?.at ?? null, target: linked?.target ?? null,
    sets: linked?.sets ?? { A: { model: best, settings: intact() }, B: null },
    editing: "A", weighted: linked?.weighted ?? false, shade: "attention", by: "head",
    heads: {}, active: null, pointed: null,
  };
  for (const set of SETS) if (state.sets[set] && !names.includes(state.sets[set].model)) state.sets[set].model = best;
  for (const name of linked?.heads ?? []) pickName(name);
  const answers = {}, looks = {}, paths = {}, losses = {};

  function pickName(name) {
    const found = headOf(name, { n_layers: 9, n_heads: 99 });
    if (found) {
      state.heads[found[0]] = found[1];
      state.active = found;
    }
  }

  // ---- the parts ----

  const text = h("textarea", { id: "lv-text", rows: "4", spellcheck: "false", dir: "auto", oninput: () => {
    Object.assign(state, { text: text.value, at: null, target: null });
    refresh();
  } });
  const preset = choice("Example", [["", "choose …"], ...Object.entries(PRESETS).map(([key, { title }]) => [key, title])], usePreset);
  const model = choice("Model", names.map((name) => [name, `${name} (loss ${fixed(about(name).heldout_loss)})`]), (value) => {
    state.sets[state.editing].model = value;
    refresh();
  });
  const tokens = strip("Tokens; choose the one that looks", {
    chosen: (at) => {
      Object.assign(state, { at, target: null });
      look();
      render();
    },
    pointed: (at) => {
      if (state.pointed === at) return;
      state.pointed = at;
      render();
    },
  });
  const legend = h("p", { class: "lv-legend" });
  const weighted = radios("Show", "lv-weighted", [["false", "attention"], ["true", "attention × length of value"]], (value) => {
    state.weighted = value === "true";
    remember();
    render();
  });
  const shade = radios("Shade tokens by", "lv-shade", [["attention", "the pattern"], ["loss", "their loss"]], (value) => {
    state.shade = value;
    render();
  });
  const panels = new Map(), panelBox = h("div", { class: "lv-panels" });
  const nextTitle = h("h2", { class: "lv-title" }), next = nextTokens((id) => {
    state.target = id;
    look();
  });
  const barsTitle = h("h2", { class: "lv-title" }), bars = signedBars("Contributions to the logit"), barsNote = h("p", { class: "lv-note" });
  const by = radios("By", "lv-by", [["head", "last head"], ["path", "path"]], (value) => {
    state.by = value;
    render();
  });
  const compare = h("input", { type: "checkbox", onchange: () => {
    state.sets.B = compare.checked ? structuredClone(state.sets.A) : null;
    state.editing = compare.checked ? "B" : "A";
    refresh();
  } });
  const editing = radios("The switches and the model above set", "lv-editing", SETS.map((set) => [set, `setting ${set}`]), (value) => {
    state.editing = value;
    render();
  });
  const difference = table(["Quantity", "A", "B", "B − A"]), differenceBox = h("div", { class: "lv-compared" }, editing, difference.root);
  const controls = switches((change) => {
    change(state.sets[state.editing].settings);
    refresh();
  });
  const share = h("button", { type: "button", onclick: async () => {
    remember.now();
    try {
      await navigator.clipboard.writeText(location.href);
      say("The link is copied.");
    } catch {
      say("The link to this state is in the address bar.");
    }
  } }, "Copy link");
  const save = (kind) => h("button", { type: "button", onclick: () => savePicture(kind) }, `Save ${kind.toUpperCase()}`);
  const reset = h("button", { type: "button", onclick: () => {
    state.sets[state.editing].settings = intact();
    refresh();
  } }, "All switches back");
  const lookTable = table(["Head", "Most", "Second", "Third"]), headTable = table(["Destination", "Source", "Weight"]);
  const tables = h("details", { class: "lv-tables", ontoggle: () => render() }, h("summary", {}, "The largest weights as tables"), lookTable.root, headTable.root);
  const spoken = h("p", { class: "lv-spoken", "aria-live": "polite" });

  host.replaceChildren(h("div", { class: "lv" },
    h("div", { class: "lv-bar-top" }, preset, model, h("div", { class: "lv-buttons" }, share, save("svg"), save("png"))),
    h("label", { class: "lv-label", for: "lv-text" }, "Your text"), text, status,
    h("div", { class: "lv-row" }, weighted, shade), tokens.root, legend,
    h("div", { class: "lv-columns" }, panelBox,
      h("div", { class: "lv-side" },
        h("section", { "aria-label": "Next token" }, nextTitle, next.root),
        h("section", { "aria-label": "Contributions" }, barsTitle, by, bars.root, barsNote))),
    h("section", { class: "lv-controls", "aria-label": "Switches" },
      h("div", { class: "lv-row" }, h("h2", { class: "lv-title" }, "Switches"), reset, h("label", { class: "lv-check" }, compare, "Compare two settings")),
      differenceBox, controls.root),
    tables, spoken));
  text.value = state.text;

  // ---- questions and answers ----

  const used = () => SETS.filter((set) => state.sets[set]);
  const current = () => (answers[state.editing] ? state.editing : "A");
  const main = () => answers[current()];
  const asking = {};
  for (const set of SETS) {
    const fail = (error) => trouble(error);
    asking[set] = {
      run: latest("run", (answer, { targetText }) => {
        if (targetText) state.target = answer.target.id;
        answers[set] = answer;
        looks[set] = answer;
        delete losses[set];
        host.dataset.state = "ready";
        say("");
        render();
        deepen();
      }, fail),
      look: latest("look", (answer) => {
        looks[set] = answer;
        render();
        deepen();
      }, fail),
      paths: latest("paths", (answer) => {
        paths[set] = answer;
        render();
      }, () => {}),
      losses: latest("losses", (answer) => {
        losses[set] = answer;
        render();
      }, () => {}),
    };
  }

  const deepen = later(120, () => {
    for (const set of used()) {
      const found = looks[set];
      if (!found) continue;
      asking[set].paths({ slot: set, at: found.at, target: found.target.id });
      if (!losses[set]) asking[set].losses({ slot: set });
    }
    speak();
  });

  function refresh(targetText = null) {
    for (const set of SETS) {
      if (!state.sets[set]) {
        delete answers[set], delete looks[set], delete losses[set], delete paths[set];
        continue;
      }
      const { model: name, settings } = state.sets[set];
      if (!answers[set]) say(`Loading ${name}, ${fixed(about(name).bytes / 1e6, 1)} MB …`);
      asking[set].run({ slot: set, model: name, text: state.text, settings: structuredClone(settings), at: state.at, target: state.target, targetText });
    }
    remember();
    renderControls();
  }

  function look() {
    for (const set of used()) if (answers[set]) asking[set].look({ slot: set, at: state.at, target: state.target });
    remember();
  }

  async function usePreset(key) {
    const chosen = PRESETS[key];
    if (!chosen) return;
    preset.select.value = "";
    if (chosen.model && names.includes(chosen.model)) state.sets[state.editing].model = chosen.model;
    try {
      state.text = chosen.demo ? list.demo : chosen.text ?? (await ask("words", { model: best, ...chosen.words, seed: Math.floor(Math.random() * 2 ** 31) }));
    } catch (error) {
      return trouble(error);
    }
    Object.assign(state, { at: null, target: null });
    text.value = state.text;
    refresh(chosen.target);
  }

  function trouble(error) {
    status.replaceChildren(`${error.message} `, h("button", { type: "button", onclick: () => refresh() }, "Try again"));
    status.dataset.trouble = "";
    host.dataset.state = "failed";
  }

  function say(message) {
    delete status.dataset.trouble;
    const answer = main(), context = answer?.config.n_ctx;
    const cut = answer?.cut ? ` The model reads ${context} tokens: the last ${answer.rest.toLocaleString("en")} characters are left out.` : "";
    const note = answer?.note ? ` ${answer.note}` : "";
    const size = answer ? `${answer.tokens.length} of ${context} tokens, ${fixed(answer.ms, 0)} ms.` : "";
    put(status, { text: message || `${size}${cut}${note}`, "data-note": answer?.cut || answer?.note ? "" : null });
  }

  const remember = later(400, () => remember.now());
  remember.now = () => {
    const link = new URLSearchParams({ text: state.text });
    for (const [set, prefix] of [["A", ""], ["B", "b."]]) {
      if (!state.sets[set]) continue;
      link.set(`${prefix}model`, state.sets[set].model);
      toParameters(state.sets[set].settings, prefix, link);
    }
    if (state.at !== null) link.set("at", state.at);
    if (state.target !== null) link.set("target", state.target);
    if (state.active) link.set("heads", Object.entries(state.heads).map(([l, head]) => `L${l}H${head}`).join(","));
    if (state.weighted) link.set("weighted", "1");
    history.replaceState(history.state, "", `#${link}`);
  };

  const speak = later(700, () => {
    const found = looks[current()];
    if (!found) return;
    put(spoken, { text: `After ${main().tokens[found.at]}: most likely ${found.best.slice(0, 3).map(({ token, p }) => `${token} ${fixed(100 * p, 0)} per cent`).join(", ")}.` });
  });

  // ---- what is shown ----

  function renderControls() {
    const { settings, model: name } = state.sets[state.editing];
    model.select.value = name;
    weighted.show(String(state.weighted));
    shade.show(state.shade);
    by.show(state.by);
    editing.show(state.editing);
    compare.checked = Boolean(state.sets.B);
    differenceBox.hidden = !state.sets.B;
    controls.show(settings, about(name).config);
    reset.disabled = isIntact(settings);
  }

  function render() {
    renderControls();
    const answer = main(), { settings } = state.sets[state.editing];
    if (!answer) return;

    const n = answer.tokens.length, at = Math.min(state.pointed ?? looks[current()].at, n - 1);
    const layers = Math.max(...used().map((set) => answers[set]?.config.n_layers ?? 0));
    const active = state.active && state.active[0] < answer.config.n_layers ? state.active : answer.config.n_layers ? [answer.config.n_layers - 1, headIn(answer.config.n_layers - 1)] : null;
    showStrip(answer, at, active);
    showPanels(answer, layers, at, settings);
    showNext(answer);
    showDifference();
    if (tables.open) showTables(answer, at, active);
  }

  /** The head chosen in a layer, or the one that looks back most (layer 0) or finds copies most. */
  function headIn(layer) {
    if (state.heads[layer] !== undefined) return state.heads[layer];
    const { previous_token: back, prefix_matching: copies } = about(state.sets[state.editing].model);
    const scores = (layer === 0 && copies.length > 1 ? back : copies)[layer] ?? [0];
    return scores.indexOf(Math.max(...scores));
  }

  function showStrip(answer, at, active) {
    const n = answer.tokens.length, found = losses[current()]?.losses;
    if (state.shade === "loss") {
      const most = found ? Math.max(1, ...found) : 1;
      tokens.show({ tokens: answer.tokens, at, shades: found ? answer.tokens.map((_, i) => (i ? found[i - 1] / most : null)) : null,
        words: (i) => (i && found?.[i - 1] !== undefined ? `loss ${fixed(found[i - 1])}` : null) });
      put(legend, { text: found ? `Bright: tokens the model did not expect. The largest loss is ${fixed(most)} nats.` : "Losses are being computed …" });
      return;
    }
    const shown = active ? view(answer, active[0], active[1], state.weighted) : null;
    tokens.show({ tokens: answer.tokens, at, ...(shown ? rowShades(shown.weights, n, at, shown.scale) : { shades: null }) });
    put(legend, { text: shown ? `Bright: what L${active[0]}H${active[1]} looks at from ${answer.tokens[at]}${state.weighted ? ", times the length of the value" : ""}. Point at a token, or use the arrow keys.` : "This model has no heads: it sees one token at a time." });
  }

  function showPanels(answer, layers, at, settings) {
    for (let layer = 0; layer < layers; layer++) {
      if (!panels.has(layer)) {
        panels.set(layer, layerPanel(layer, {
          pick: (l, head) => {
            state.heads[l] = head;
            state.active = [l, head];
            remember();
            render();
          },
          flip: (name, kind) => {
            const { off } = state.sets[state.editing].settings;
            if (kind) off[name] = kind;
            else delete off[name];
            refresh();
          },
          pointed: (row) => {
            if (state.pointed === row) return;
            state.pointed = row;
            render();
          },
          chosen: (row) => {
            Object.assign(state, { at: row, target: null });
            look();
            render();
          },
        }));
        panelBox.append(panels.get(layer).root);
      }
      const shown = used().filter((set) => answers[set]);
      panels.get(layer).show({
        answers: shown.map((set) => ({ label: state.sets.B ? `setting ${set}` : "", answer: answers[set] })),
        answer, head: headIn(layer), weighted: state.weighted, row: at, off: settings.off,
      });
    }
    for (const [layer, { root }] of panels) root.hidden = layer >= layers;
  }

  function showNext(answer) {
    const found = looks[current()], own = paths[current()];
    put(nextTitle, { text: `After ${answer.tokens[Math.min(found.at, answer.tokens.length - 1)]}` });
    next.show(found);
    const fits = own && own.at === found.at && own.target === found.target.id;
    put(barsTitle, { text: `What raises ${found.target.token}` });
    const rows = !own ? [] : state.by === "path" ? pathRows(own.terms) : headRows(own, answer.config);
    bars.show(rows);
    bars.root.toggleAttribute("data-stale", !fits);
    put(barsNote, { text: own ? `Contributions to its logit, in nats; they sum to ${fixed(own.sum)}. Patterns are taken as they are.` : "Contributions are being computed …" });
  }

  function headRows(own, config) {
    const values = new Map(own.heads.map(({ head, value }) => [head, value]));
    return ["direct", ...headNames(config)].map((head) => ({ name: head === "direct" ? "direct path" : head, value: values.get(head) ?? 0, muted: !values.has(head) }));
  }

  function showDifference() {
    if (!state.sets.B || !looks.A || !looks.B || !answers.A || !answers.B) return;
    const row = (title, value, digits = 3) => {
      const [a, b] = SETS.map(value);
      const text = (x) => (x === null || x === undefined ? "–" : fixed(x, digits));
      return [title, text(a), text(b), a === null || b === null || a === undefined || b === undefined ? "–" : signed(b - a, digits)];
    };
    const token = looks.A.truth ?? looks.A.target, of = (set) => [looks[set].truth, looks[set].target, ...looks[set].best].find((one) => one?.id === token.id);
    const here = answers.A.tokens[looks.A.at];
    difference.show(`After ${here}, about ${token.token}${looks.A.truth ? ", the token that follows" : ", the likeliest in A"}`, [
      row(`logit of ${token.token}`, (set) => of(set)?.logit),
      row("its loss, nats", (set) => of(set)?.loss),
      row("its probability", (set) => of(set)?.p),
      row("mean loss of the text, nats", (set) => losses[set]?.mean ?? null),
    ]);
  }

  function showTables(answer, at, active) {
    const { n_layers: L, n_heads: H } = answer.config, n = answer.tokens.length;
    const rows = [];
    for (let l = 0; l < L; l++) for (let head = 0; head < H; head++) {
      const { weights } = view(answer, l, head, state.weighted);
      const order = [...Array(at + 1).keys()].sort((a, b) => weights[at * n + b] - weights[at * n + a]).slice(0, 3);
      rows.push([`L${l}H${head}`, ...[0, 1, 2].map((i) => (order[i] === undefined ? "" : `${answer.tokens[order[i]]} (${order[i]}) ${fixed(weights[at * n + order[i]])}`))]);
    }
    lookTable.show(`Where each head looks from ${answer.tokens[at]}, token ${at}`, rows);
    if (!active) return headTable.show("This model has no heads", []);
    const { weights } = view(answer, active[0], active[1], state.weighted);
    const largest = [...weights.keys()].filter((i) => weights[i] > 0).sort((a, b) => weights[b] - weights[a]).slice(0, 20);
    headTable.show(`The largest weights of L${active[0]}H${active[1]}`, largest.map((i) => [
      `${answer.tokens[Math.floor(i / n)]} (${Math.floor(i / n)})`, `${answer.tokens[i % n]} (${i % n})`, fixed(weights[i])]));
  }

  async function savePicture(kind) {
    const answer = main();
    if (!answer?.config.n_layers) return say("This model has no pattern to save.");
    const shown = [...Array(answer.config.n_layers).keys()].map((layer) => {
      const head = headIn(layer);
      return { title: `L${layer}H${head}${state.weighted ? ", attention × length of value" : ", attention"}`, ...view(answer, layer, head, state.weighted) };
    });
    const picture = svg(shown, `${answer.name}; destinations down, sources across. Transformer Circuits, Executed`);
    download(kind === "svg" ? svgBlob(picture) : await pngBlob(picture), `patterns-${answer.name}.${kind}`);
  }

  new MutationObserver(() => panels.forEach((panel) => panel.redraw())).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  refresh();
}
