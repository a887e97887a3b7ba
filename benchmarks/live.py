"""How long a reader of the live pages waits: `python benchmarks/live.py [--write FILE]`.

On the built book (`make book`), in headless Chromium, per text length: from the event of a keystroke
to the drawn pattern, when the last token changes (what lies before is kept) and when the first does
(all is computed again), in the page and in the worker alone; with WebAssembly SIMD and without. Also
the bytes (of the live figure, and of the page with its theme) and seconds until the first result. Medians over REPEATS; another program on the same core
makes them larger, so the load of the machine is recorded with them.
"""

import argparse
import functools
import http.server
import json
import os
import platform
import shutil
import statistics
import threading
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
REPEATS = 15
LENGTHS = (32, 128, 256)

# Types into the playground and waits for the frame after its tokens and patterns have changed.
KEYSTROKE = """async ([texts]) => {
  const box = document.querySelector("#lv-text"), strip = document.querySelector(".lv-strip");
  const status = document.querySelector(".lv-status"), page = [], worker = [];
  for (const text of texts) {
    const drawn = new Promise((resolve) => {
      const watcher = new MutationObserver(() => { watcher.disconnect(); requestAnimationFrame(() => setTimeout(resolve)); });
      watcher.observe(strip, { subtree: true, childList: true, characterData: true });
    });
    const start = performance.now();
    box.value = text;
    box.dispatchEvent(new Event("input"));
    await drawn;
    page.push(performance.now() - start);
    worker.push(Number(/(\\d+) ms/.exec(status.textContent)[1]));
    await new Promise((resolve) => setTimeout(resolve, 400));
  }
  return { page: page.slice(1), worker: worker.slice(1), tokens: strip.querySelectorAll("[role=option]").length };
}"""

# The forward pass alone, without what is kept of the last one.
FORWARD = """async ([file, about, length, simd, repeats]) => {
  const { Model } = await import(`${location.origin}/_static/live/model.js`);
  const { run, logitsAt } = await import(`${location.origin}/_static/live/run.js`);
  const { intact } = await import(`${location.origin}/_static/live/settings.js`);
  const model = new Model(about, await (await fetch(`/_static/live/data/${file}`)).arrayBuffer(), { simd });
  const times = [];
  for (let i = 0; i <= repeats; i++) {
    const ids = Array.from({ length }, (_, j) => (j * 37 + i * 101) % about.config.d_vocab);
    const start = performance.now();
    logitsAt(model, run(model, "x", ids, intact()), length - 1);
    times.push(performance.now() - start);
  }
  return { simd: model.simd, times: times.slice(1) };
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


def texts(tokens: int, first: bool) -> list[str]:
    """Texts of so many tokens, start token included, that differ in the last token or in the first."""
    words = [" the", " of", " and", " in", " to", " a", " is", " was"]
    middle = "".join(words[i % 7] for i in range(tokens - 2))
    changes = [words[i % 8] for i in range(REPEATS + 1)]
    return [change + middle if first else middle + change for change in changes]


def measured(html: Path) -> dict:
    """All numbers, in milliseconds, bytes and seconds."""
    if not (html / "book/playground.html").exists():
        raise SystemExit(f"expected the built book in {html}, found none: run `make book` first")
    handler = functools.partial(Quiet, directory=str(html))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    browser_path = next(path for name in BROWSERS if (path := shutil.which(name)))
    result: dict = {"repeats": REPEATS, "load_before": os.getloadavg()[0]}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"]
        )
        page, sizes = browser.new_page(), []
        page.set_default_timeout(120_000)
        page.on("response", lambda response: sizes.append(response))
        started = time.monotonic()
        page.goto(f"{address}/book/playground.html")
        page.wait_for_selector(".lv-host[data-state=ready]")
        result["first_result_seconds"] = time.monotonic() - started
        length_of = {r.url: int(r.headers.get("content-length", 0)) for r in list(sizes)}
        result["first_result_bytes"] = sum(length_of.values())
        live = [length for url, length in length_of.items() if "/_static/live/" in url]
        result["first_result_live_bytes"] = sum(live)
        result["chromium"] = browser.version
        for length in LENGTHS:
            for change in ("last", "first"):
                got = page.evaluate(KEYSTROKE, [texts(length, change == "first")])
                assert got["tokens"] == length, got["tokens"]
                for where in ("page", "worker"):
                    median = statistics.median(got[where])
                    result[f"keystroke_{length}_{change}_{where}_ms"] = round(median, 1)
        models = json.loads((html / "_static/live/data/models.json").read_text())["models"]
        about = next(model for model in models if model["name"] == "attn-only-2l")
        for simd in (True, False):
            for length in LENGTHS:
                question = [about["file"], about, length, simd, REPEATS]
                got = page.evaluate(FORWARD, question)
                assert got["simd"] == simd
                name = f"forward_{length}_{'wasm' if simd else 'javascript'}_ms"
                result[name] = round(statistics.median(got["times"]), 1)
                result[name.replace("_ms", "_best_ms")] = round(min(got["times"]), 1)
        browser.close()
    server.shutdown()
    result["load_after"] = os.getloadavg()[0]
    return result | {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--html", type=Path, default=ROOT / "_build/html")
    parser.add_argument("--write", type=Path, help="rewrite this result file (JSON)")
    options = parser.parse_args()
    result = measured(options.html)
    for name, value in result.items():
        print(f"{name}: {value}")
    if options.write:
        fresh = options.write.with_suffix(".new")
        fresh.write_text(json.dumps(result, indent=1) + "\n")
        fresh.replace(options.write)


if __name__ == "__main__":
    main()
