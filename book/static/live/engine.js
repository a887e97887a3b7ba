// The page's side of the engine: questions go to a worker, answers come back as promises.

let worker, waiting = new Map(), count = 0;

function start() {
  worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  worker.onmessage = ({ data: { number, answer, error } }) => {
    const { resolve, reject } = waiting.get(number);
    waiting.delete(number);
    if (error === undefined) resolve(answer);
    else reject(new Error(error));
  };
  worker.onerror = (event) => { // its script did not load, or it broke: all that wait must know
    event.preventDefault();
    const all = [...waiting.values()];
    waiting.clear();
    worker.terminate();
    worker = null;
    for (const { reject } of all) reject(new Error(event.message || "the engine's script could not be downloaded"));
  };
}

/** The worker's answer to one question; `kind` is a name in its table of answers. */
export function ask(kind, question = {}) {
  if (!worker) start();
  const number = ++count;
  return new Promise((resolve, reject) => {
    waiting.set(number, { resolve, reject });
    worker.postMessage({ ...question, kind, number });
  });
}

/**
 * A function that asks with the newest question only: one is under way, one waits, the ones
 * between are dropped. `use(answer, question)` never sees an answer older than one it has seen.
 */
export function latest(kind, use, fail) {
  let busy = false, next = null;
  return async function request(question) {
    next = question;
    if (busy) return;
    busy = true;
    while (next) {
      const now = next;
      next = null;
      try {
        const answer = await ask(kind, now);
        if (answer) use(answer, now);
      } catch (error) {
        fail(error, now);
      }
    }
    busy = false;
  };
}
