// The tokens as the model reads them: a list to point at, the start token always in sight.

import { children, fixed, h, put } from "./dom.js";
import { css, ink, viridis } from "./draw.js";

/**
 * `chosen(index)` is called when a token is chosen, `pointed(index or null)` while one is pointed at.
 * show({ tokens, at, shades, words }): `shades` holds a number from 0 to 1, or null, per token;
 * `words(i)` says a token's number in words, for its tooltip.
 */
export function strip(label, { chosen, pointed = () => {} }) {
  const options = [];
  const first = h("div", { class: "lv-first", role: "presentation" }), rest = h("div", { class: "lv-rest", role: "presentation" });
  const root = h("div", { class: "lv-strip", role: "listbox", "aria-label": label }, first, rest);
  const make = () => h("span", { class: "lv-token", role: "option" });
  let at = 0;

  const indexOf = (target) => options.indexOf(target.closest?.(".lv-token"));
  const choose = (index, focus) => {
    if (index < 0 || index >= options.length) return;
    if (focus) options[index].focus({ preventScroll: false });
    chosen(index);
  };
  root.addEventListener("click", (event) => choose(indexOf(event.target), true));
  root.addEventListener("pointerover", (event) => {
    const index = indexOf(event.target);
    if (index >= 0) pointed(index);
  });
  root.addEventListener("pointerleave", () => pointed(null));
  root.addEventListener("keydown", (event) => {
    const here = indexOf(document.activeElement), lines = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const goal = lines ? neighbour(here, lines) : { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: options.length - 1 }[event.key];
    if (goal === undefined) return;
    event.preventDefault();
    choose(goal, true);
  });

  /** The token above or below: the nearest in the nearest other line. */
  function neighbour(here, direction) {
    const from = options[here]?.getBoundingClientRect();
    if (!from) return -1;
    let best = -1, least = Infinity;
    options.forEach((option, i) => {
      const box = option.getBoundingClientRect(), down = (box.top - from.top) * direction;
      const far = down > 4 ? down * 1000 + Math.abs(box.left - from.left) : Infinity;
      if (far < least) [best, least] = [i, far];
    });
    return best;
  }

  return {
    root,
    show({ tokens, at: chosenAt, shades, words }) {
      at = chosenAt;
      children(first, Math.min(1, tokens.length), make, () => {});
      children(rest, Math.max(0, tokens.length - 1), make, () => {});
      options.splice(0, Infinity, ...first.children, ...rest.children);
      options.forEach((option, i) => {
        const shade = shades ? shades[i] : null, color = shade === null || shade === undefined ? null : viridis(shade);
        const title = words?.(i) ?? null;
        put(option, {
          text: tokens[i], "aria-selected": i === at, tabindex: i === at ? 0 : -1, title,
          "aria-label": title ? `${i}: ${tokens[i]}, ${title}` : `${i}: ${tokens[i]}`,
          style: color ? `background:${css(color)};color:${ink(color)}` : null,
          "data-after": shades && i > at ? "" : null,
        });
      });
    },
  };
}

/** Shades and words for what a head's destination row says. */
export function rowShades(weights, n, at, scale) {
  return {
    shades: Array.from({ length: n }, (_, s) => (s <= at ? weights[at * n + s] / scale : null)),
    words: (s) => (s <= at ? fixed(weights[at * n + s]) : "comes later"),
  };
}
