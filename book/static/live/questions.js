// What the playground asks of the engine for each of two settings, and the answers that are in.

import { later } from "./dom.js";
import { latest } from "./engine.js";

export const SETS = ["A", "B"];

/** used(): the settings in use; ran(answer, question) after a run, changed() after any answer, asked() once the slow ones are on their way. */
export function questions({ used, ran, changed, failed, asked }) {
  const answers = {}, looks = {}, paths = {}, losses = {}, asking = {};

  const keep = (kept, set, then = () => {}, trouble = () => {}) => [(answer) => {
    kept[set] = answer;
    changed();
    then();
  }, trouble];

  for (const set of SETS) {
    asking[set] = {
      run: latest("run", (answer, question) => {
        answers[set] = looks[set] = answer;
        delete losses[set];
        ran(answer, question);
        changed();
        deepen();
      }, failed),
      look: latest("look", ...keep(looks, set, () => deepen(), failed)),
      paths: latest("paths", ...keep(paths, set)),
      losses: latest("losses", ...keep(losses, set)),
    };
  }

  /** Contributions and losses take longer: they are asked for when nothing has changed for a while. */
  const deepen = later(120, () => {
    for (const set of used()) {
      const found = looks[set];
      if (!found) continue;
      asking[set].paths({ slot: set, at: found.at, target: found.target.id });
      if (!losses[set]) asking[set].losses({ slot: set });
    }
    asked();
  });

  const forget = (set) => [answers, looks, paths, losses].forEach((kept) => delete kept[set]);
  return { answers, looks, paths, losses, asking, forget };
}
