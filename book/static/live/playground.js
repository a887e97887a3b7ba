// The playground: a text, a model, switches, and what they do to patterns and predictions.

import { fixed, h, later, put } from "./dom.js";
import { download, pngBlob, svg, svgBlob } from "./draw.js";
import { ask } from "./engine.js";
import { layout } from "./layout.js";
import { fromLink, toLink } from "./link.js";
import { layerPanel, view } from "./patterns.js";
import { PRESETS } from "./presets.js";
import { questions, SETS } from "./questions.js";
import { showNext, showStrip } from "./readout.js";
import { headOf, intact, isIntact } from "./settings.js";

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
  for (const name of linked?.heads ?? []) {
    const found = headOf(name, { n_layers: 9, n_heads: 99 });
    if (!found) continue;
    state.heads[found[0]] = found[1];
    state.active = found;
  }

  const choose = (at) => change({ at, target: null }, look, render);
  const parts = layout({
    models: names.map((name) => [name, `${name} (loss ${fixed(about(name).heldout_loss)})`]),
    status,
    acts: {
      typed: (text) => change({ text, at: null, target: null }, refresh),
      preset: usePreset,
      model: (name) => edit((set) => { set.model = name; }),
      chosen: choose,
      pointed: point,
      weighted: (weighted) => change({ weighted }, remember, render),
      shade: (shade) => change({ shade }, render),
      target: (target) => change({ target }, look),
      by: (by) => change({ by }, render),
      compare: (wanted) => {
        state.sets.B = wanted ? structuredClone(state.sets.A) : null;
        change({ editing: wanted ? "B" : "A" }, refresh);
      },
      editing: (editing) => change({ editing }, render),
      switched: (act) => edit((set) => act(set.settings)),
      reset: () => edit((set) => { set.settings = intact(); }),
      share: shareLink,
      save: savePicture,
      unfolded: render,
    },
  });
  const panels = new Map();
  host.replaceChildren(parts.root);
  parts.text.value = state.text;

  function point(pointed) {
    if (state.pointed !== pointed) change({ pointed }, render);
  }

  function change(values, ...then) {
    Object.assign(state, values);
    then.forEach((act) => act());
  }

  function edit(act) {
    act(state.sets[state.editing]);
    refresh();
  }

  // ---- questions and answers ----

  const used = () => SETS.filter((set) => state.sets[set]);
  const current = () => (answers[state.editing] ? state.editing : "A");
  const main = () => answers[current()];
  const { answers, looks, paths, losses, asking, forget } = questions({
    used, changed: render, failed: trouble, asked: () => speak(),
    ran: (answer, { targetText }) => {
      if (targetText) state.target = answer.target.id;
      host.dataset.state = "ready";
      say("");
    },
  });

  function refresh(targetText = null) {
    for (const set of SETS) {
      if (!state.sets[set]) {
        forget(set);
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
    parts.preset.select.value = "";
    if (chosen.model && names.includes(chosen.model)) state.sets[state.editing].model = chosen.model;
    try {
      state.text = chosen.demo ? list.demo : chosen.text ?? (await ask("words", { model: best, ...chosen.words, seed: Math.floor(Math.random() * 2 ** 31) }));
    } catch (error) {
      return trouble(error);
    }
    Object.assign(state, { at: null, target: null });
    parts.text.value = state.text;
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
  remember.now = () => history.replaceState(history.state, "", `#${toLink(state)}`);

  async function shareLink() {
    remember.now();
    try {
      await navigator.clipboard.writeText(location.href);
      say("The link is copied.");
    } catch {
      say("The link to this state is in the address bar.");
    }
  }

  const speak = later(700, () => {
    const found = looks[current()];
    if (!found) return;
    put(parts.spoken, { text: `After ${main().tokens[found.at]}: most likely ${found.best.slice(0, 3).map(({ token, p }) => `${token} ${fixed(100 * p, 0)} per cent`).join(", ")}.` });
  });

  // ---- what is shown ----

  function renderControls() {
    const { settings, model: name } = state.sets[state.editing];
    parts.model.select.value = name;
    parts.weighted.show(String(state.weighted));
    parts.shade.show(state.shade);
    parts.by.show(state.by);
    parts.editing.show(state.editing);
    parts.compare.checked = Boolean(state.sets.B);
    parts.differenceBox.hidden = !state.sets.B;
    parts.controls.show(settings, about(name).config);
    parts.reset.disabled = isIntact(settings);
  }

  function render() {
    renderControls();
    const answer = main(), { settings } = state.sets[state.editing];
    if (!answer) return;

    const n = answer.tokens.length, at = Math.min(state.pointed ?? looks[current()].at, n - 1);
    const layers = Math.max(...used().map((set) => answers[set]?.config.n_layers ?? 0));
    const active = state.active && state.active[0] < answer.config.n_layers ? state.active : answer.config.n_layers ? [answer.config.n_layers - 1, headIn(answer.config.n_layers - 1)] : null;
    const found = looks[current()], own = paths[current()];
    showStrip(parts, { answer, at, active, losses: losses[current()]?.losses, shade: state.shade, weighted: state.weighted });
    showPanels(answer, layers, at, settings);
    showNext(parts, { answer, found, own, by: state.by });
    if (state.sets.B) parts.difference.show(answers, looks, losses);
    parts.tables.show(answer, at, active, state.weighted);
  }

  /** The head chosen in a layer, or the one that looks back most (layer 0) or finds copies most. */
  function headIn(layer) {
    if (state.heads[layer] !== undefined) return state.heads[layer];
    const { previous_token: back, prefix_matching: copies } = about(state.sets[state.editing].model);
    const scores = (layer === 0 && copies.length > 1 ? back : copies)[layer] ?? [0];
    return scores.indexOf(Math.max(...scores));
  }

  function showPanels(answer, layers, at, settings) {
    for (let layer = 0; layer < layers; layer++) {
      if (!panels.has(layer)) {
        panels.set(layer, layerPanel(layer, {
          pick: (l, head) => {
            state.heads[l] = head;
            change({ active: [l, head] }, remember, render);
          },
          flip: (name, kind) => edit(({ settings: { off } }) => {
            if (kind) off[name] = kind;
            else delete off[name];
          }),
          pointed: point,
          chosen: choose,
        }));
        parts.panelBox.append(panels.get(layer).root);
      }
      const shown = used().filter((set) => answers[set]);
      panels.get(layer).show({
        answers: shown.map((set) => ({ label: state.sets.B ? `setting ${set}` : "", answer: answers[set] })),
        answer, head: headIn(layer), weighted: state.weighted, row: at, off: settings.off,
      });
    }
    for (const [layer, { root }] of panels) root.hidden = layer >= layers;
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
