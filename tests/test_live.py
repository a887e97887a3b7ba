"""The live figures in a real browser: the same numbers as the package, switch by switch."""

import base64
import functools
import http.server
import json
import random
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from test_book import QuietHandler, Visit
from torch.testing import assert_close

from pathsum import load_model, load_tokenizer
from pathsum.checkpoints import training_log
from pathsum.demo import DEMO_TEXT
from pathsum.evaluate import token_losses
from pathsum.heads import repeated_tokens, value_weighted
from pathsum.idealised import uncomposed_hook
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.patching import ablation_hook, both, frozen_hook
from pathsum.paths import order_terms, path_terms, patterns_of
from pathsum.snapshots import load_snapshot, snapshot_steps

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from live import lay_out, runs_in_page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CODE = "def add(self, a, b):\n    return self.total + a * b  # two\n\nclass Adder:\n"
SETTINGS = {"off": {}, "cuts": [], "freeze": "none", "other": "", "order": None}

# What the page computes, from the modules that its worker uses.
HELPERS = """
window.b64 = (floats) => {
  const bytes = new Uint8Array(floats.buffer, floats.byteOffset, floats.byteLength);
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(text);
};
window.load = async (name, options) => {
  const { Model } = await import("/live/model.js");
  const list = await (await fetch("/live/data/models.json")).json();
  const about = list.models.find((m) => m.name === name);
  return new Model(about, await (await fetch(`/live/data/${about.file}`)).arrayBuffer(), options);
};
window.everything = async (model, ids, settings, frozenIds) => {
  const { run, logitRows, patternsOf } = await import("/live/run.js");
  const { intact } = await import("/live/settings.js");
  const c = model.config, n = ids.length, M = model.memory;
  const reference = run(model, "reference", ids, intact());
  const frozen = frozenIds ? run(model, "frozen", frozenIds, intact()) : null;
  const r = run(model, "test", ids, settings, { reference, frozen });
  const logits = new Float32Array(n * c.d_vocab);
  for (let at = 0; at < n; at += 32) {
    logits.set(logitRows(model, r, at, Math.min(32, n - at)), at * c.d_vocab);
  }
  const results = [];
  for (let l = 0; l < c.n_layers; l++) for (let h = 0; h < c.n_heads; h++) {
    const out = model.scratch.write, wide = c.n_heads * c.d_head;
    M.fill(0, out, out + model.rows * c.d_model);
    model.product(r.z[l] + h * c.d_head, wide, model.W_O[l], out, c.d_model, n,
      { top: h * c.d_head, rows: c.d_head });
    results.push(b64(M.slice(out, out + n * c.d_model)));
  }
  return {
    logits: b64(logits), results,
    patterns: Array.from({ length: c.n_layers }, (_, l) => b64(patternsOf(model, r, l))),
  };
};
"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, while the block runs."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def engine(chromium, tmp_path_factory) -> Iterator[object]:
    """A page that has the engine's modules and the shipped models at hand, and nothing else."""
    site = lay_out(tmp_path_factory.mktemp("live") / "site")
    shutil.copytree(ROOT / "book/static/live", site / "live", dirs_exist_ok=True)
    (site / "index.html").write_text("<!doctype html><title>engine</title>")
    context, trouble = chromium.new_context(), []
    with served(site) as address:
        page = context.new_page()
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.goto(f"{address}/index.html")
        page.add_script_tag(content=HELPERS)
        yield page
        context.close()
    assert trouble == []


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


def numbers(text: str, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), "<f4").copy()).reshape(shape)


class InPage:
    """One model in the page; `values` gives what `cache` gives, from the page's engine."""

    def __init__(self, page, config: Config):
        """Of what stands in the page's `window.model`."""
        self.page, self.config = page, config

    @classmethod
    def shipped(cls, page, name: str, simd: bool = True):
        page.evaluate(
            "async ([name, o]) => { window.model = await load(name, o); }", [name, {"simd": simd}]
        )
        return cls(page, load_model(name).config)

    def values(self, ids: list[int], frozen: list[int] | None = None, **settings) -> dict:
        c, n = self.config, len(ids)
        got = self.page.evaluate(
            "([ids, settings, frozen]) => everything(model, ids, settings, frozen)",
            [ids, SETTINGS | settings, frozen],
        )
        found = {"logits": numbers(got["logits"], n, c.d_vocab)}
        for layer in range(c.n_layers):
            found[f"L{layer}.pattern"] = numbers(got["patterns"][layer], c.n_heads, n, n)
            heads = got["results"][layer * c.n_heads : (layer + 1) * c.n_heads]
            found[f"L{layer}.result"] = torch.stack([numbers(h, n, c.d_model) for h in heads])
        return found


@pytest.fixture(scope="module")
def two(engine) -> InPage:
    return InPage.shipped(engine, "attn-only-2l")


def same(got: dict, expected: dict) -> None:
    """Every value of the page equals the package's, to 1e-4."""
    for site, value in got.items():
        assert_close(value, expected[site][0], rtol=0, atol=1e-4, msg=lambda m, s=site: f"{s}: {m}")


def strings() -> list[str]:
    """At least 300 strings that a tokenizer may trip over."""
    random_ = random.Random(0)
    fixed = [
        "", " ", "  ", "a", " a", "a ", "\n", "\n\n", "\t", "\r\n", " \n ", "a\u00a0b", "a\u0085b",
        "\ufeffbom", "zero\u200bwidth", "it's they're I'll we've I'd I'm don't", "IT'S", "’s",
        "<start>", "<start><start>", "a<start>b", "</script>", "<b>&amp;</b>", "<!-- -->",
        "12345 6 78", "١٢٣ ४५६", "½ ² Ⅷ", "naïve café", "nai\u0308ve", "Straße ÆØÅ", "你好，世界", "日本語のテキスト",
        "한국어 문장", "привет мир", "שלום עולם", "مرحبا بالعالم", "עברית and English", "ไทย ไม่มีวรรค",
        "👍", "👩‍👩‍👧‍👦 family", "🇫🇷🇩🇪", "e\u0301\u0323", "\x00\x01\x7f", "\u2028\u2029", "a\u2003b", "\ud7ff\ue000",
        "def f(x):\n    return x\n", "for (int i = 0; i < n; ++i) {}\n", CODE, DEMO_TEXT, "a" * 200, " " * 77,
        "x\t\ty", "tab\tand  spaces   \n  end ", "\\n literal", "$E=mc^2$", "http://a.b/c?d=e&f=g#h",
    ]  # fmt: skip
    pools = [
        "abc '\n",
        "aeiou  stdl",
        "é漢👍\u0301 ",
        "אبمש 12",
        "{}()[];=+- \n\t",
        "\u00a0\u0085\u3000 \u180e\ufeffx",
    ]
    while len(fixed) < 260:
        pool = pools[len(fixed) % len(pools)]
        fixed.append("".join(random_.choice(pool) for _ in range(random_.randrange(1, 40))))
    while len(fixed) < 310:
        raw = bytes(random_.randrange(256) for _ in range(random_.randrange(1, 60)))
        fixed.append(raw.decode("latin-1" if len(fixed) % 2 else "utf-8", "replace"))
    sample = (ROOT / "src/pathsum/data/sample.txt").read_text(encoding="utf-8")
    for _ in range(20):
        at = random_.randrange(len(sample) - 500)
        fixed.append(sample[at : at + 500])
    return fixed


def test_the_tokenizer_gives_the_ids_and_the_shown_forms_of_the_package(engine, tokenizer):
    texts = strings()
    assert len(set(texts)) >= 300
    got = engine.evaluate(
        """async (texts) => {
          const { Tokenizer } = await import("/live/tokenizer.js");
          const list = await (await fetch("/live/data/models.json")).json();
          const t = new Tokenizer(await (await fetch(`/live/data/${list.tokenizer}`)).json());
          window.tokenizer = t;
          return texts.map((text) => { const { ids } = t.encode(text); return [ids, t.decode(ids)]; });
        }""",
        texts,
    )
    for text, (ids, back) in zip(texts, got):
        assert ids == tokenizer.encode(text).tolist(), repr(text)
        assert back == text
    shown = engine.evaluate(
        "Array.from({ length: tokenizer.size }, (_, id) => tokenizer.shown(id))"
    )
    assert shown == tokenizer.token_strings(range(tokenizer.d_vocab))


@pytest.mark.parametrize("simd", [True, False], ids=["wasm", "javascript"])
@pytest.mark.parametrize("name", ["attn-only-0l", "attn-only-1l", "attn-only-2l"])
def test_logits_patterns_and_head_outputs_equal_pytorchs(engine, tokenizer, name: str, simd: bool):
    model, page = load_model(name), InPage.shipped(engine, name, simd)
    assert engine.evaluate("model.simd") == simd
    rows = [tokenizer.encode(text) for text in ("", DEMO_TEXT, CODE)]
    if simd:
        rows.append(repeated_tokens(1, 85, 3, 4096, torch.Generator().manual_seed(1))[0])
    for ids in rows:
        same(page.values(ids.tolist()), cache(model, ids[None]))


def test_what_is_kept_from_the_last_run_changes_nothing(two, tokenizer):
    model = load_model("attn-only-2l")
    for text in (
        "The cat sat on the mat",
        "The cat sat on the hat and",
        "The cat",
        "A cat sat on the mat",
    ):
        ids = tokenizer.encode(text)
        same(two.values(ids.tolist()), cache(model, ids[None]))


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_a_head_switched_off_is_what_the_package_ablates(two, tokenizer, kind: str):
    model, tokens = load_model("attn-only-2l"), tokenizer.encode(DEMO_TEXT)[None]
    heads = [(0, 3), (0, 5), (1, 6)]
    expected = cache(model, tokens, ablation_hook(heads, kind, cache(model, tokens)))
    got = two.values(tokens[0].tolist(), off={f"L{a}H{b}": kind for a, b in heads})
    same(got, expected)
    assert (got["logits"] - cache(model, tokens)["logits"][0]).abs().max() > 0.1


def test_frozen_patterns_are_those_of_the_other_text(two, tokenizer):
    model = load_model("attn-only-2l")
    tokens = tokenizer.encode(DEMO_TEXT)[None]
    other = tokenizer.encode(CODE + CODE)
    held = patterns_of(model, other[None, : tokens.shape[1]])
    got = two.values(tokens[0].tolist(), other.tolist(), freeze="other")
    same(got, cache(model, tokens, frozen_hook(held)))
    off = ablation_hook([(0, 1), (1, 7)], "mean", cache(model, tokens))
    own = both(frozen_hook(patterns_of(model, tokens)), off)
    got = two.values(
        tokens[0].tolist(), tokens[0].tolist(), freeze="own", off={"L0H1": "mean", "L1H7": "mean"}
    )
    same(got, cache(model, tokens, own))


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_cutting_all_composition_of_a_kind_equals_the_packages_hook(two, tokenizer, kind: str):
    model, tokens = load_model("attn-only-2l"), tokenizer.encode(DEMO_TEXT)[None]
    cuts = [[f"L0H{a}", f"L1H{b}", kind] for a in range(8) for b in range(8)]
    expected = cache(model, tokens, uncomposed_hook(model, kind))
    same(two.values(tokens[0].tolist(), cuts=cuts), expected)


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_a_cut_between_two_heads_takes_one_heads_output_from_one_heads_reading(
    two, tokenizer, kind
):
    model, tokens = load_model("attn-only-2l"), tokenizer.encode(DEMO_TEXT)[None]
    written = cache(model, tokens)["L0.result"][:, 3]

    def cut(site, value):
        if site != f"L1.{kind.lower()}":
            return None
        value = value.clone()
        value[:, 6] -= written @ getattr(model, f"W_{kind}")[1, 6].detach()
        return value

    got = two.values(tokens[0].tolist(), cuts=[["L0H3", "L1H6", kind]])
    same(got, cache(model, tokens, cut))


@pytest.mark.parametrize("order", [0, 1])
def test_terms_up_to_an_order_are_the_packages(two, tokenizer, order: int):
    model, tokens = load_model("attn-only-2l"), tokenizer.encode(DEMO_TEXT)[None]
    kept = torch.ones(2, 8)
    kept[0, 2] = kept[1, 5] = 0
    stream = order_terms(model, tokens, kept=kept)[: order + 1].sum(0)
    off = {"L0H2": "zero", "L1H5": "zero"}
    ids = tokens[0].tolist()
    got = two.values(ids, ids, order=order, off=off, freeze="own")["logits"]
    assert_close(got, stream[0] @ model.W_U, rtol=0, atol=1e-4)


def contributions(two, ids: list[int], at: int, token: int, **settings) -> dict[tuple, float]:
    """Of every path in the page, by its heads; the start of a path in front if it is a mean."""
    found = two.page.evaluate(
        """async ([ids, at, token, settings]) => {
          const { contributions } = await import("/live/paths.js");
          const { run } = await import("/live/run.js");
          const { intact } = await import("/live/settings.js");
          const reference = run(model, "reference", ids, intact());
          return contributions(model, run(model, "test", ids, settings, { reference }), at, token);
        }""",
        [ids, at, token, SETTINGS | settings],
    )
    return {(t.get("mean", ""), *t["path"]): t["value"] for t in found}


def test_the_contribution_of_every_path_is_the_packages(two, tokenizer):
    model, tokens = load_model("attn-only-2l"), tokenizer.encode(DEMO_TEXT)[None]
    at, token = 17, 1234
    terms = path_terms(model, tokens)
    got = contributions(two, tokens[0].tolist(), at, token)
    assert len(got) == len(terms.paths) == 81
    for path in terms.paths:
        expected = float(terms.values[terms.paths.index(path), 0, at] @ model.W_U[:, token])
        assert abs(got["", *(f"L{a}H{b}" for a, b in path)] - expected) < 1e-4, path


@pytest.mark.parametrize(
    "settings",
    [
        {"off": {"L0H3": "mean", "L0H4": "zero", "L1H6": "mean"}},
        {"cuts": [["L0H3", "L1H6", "V"], ["L0H1", "L1H6", "K"]]},
        {"order": 1, "off": {"L0H3": "mean"}},
    ],
    ids=["heads", "cuts", "order"],
)
def test_contributions_sum_to_the_logit_under_every_switch(two, tokenizer, settings: dict):
    ids, at, token = tokenizer.encode(DEMO_TEXT).tolist(), 20, 99
    logits = two.values(ids, **settings)["logits"]
    total = sum(contributions(two, ids, at, token, **settings).values())
    assert abs(total - float(logits[at, token])) < 1e-4


def test_the_worker_answers_with_losses_and_value_weights_of_the_package(engine, tokenizer):
    model, ids = load_model("attn-only-2l"), tokenizer.encode(DEMO_TEXT)
    got = engine.evaluate(
        """async ([text, settings]) => {
          const { ask } = await import("/live/engine.js");
          const question = { slot: "A", model: "attn-only-2l", text, settings, at: 5 };
          const answer = await ask("run", question);
          const { losses, mean } = await ask("losses", { slot: "A" });
          return { ids: answer.ids, norms: answer.norms.map(b64), losses: b64(losses), mean,
                   best: answer.best[0], truth: answer.truth };
        }""",
        [DEMO_TEXT, SETTINGS],
    )
    assert got["ids"] == ids.tolist()
    expected = token_losses(model, ids[None, :-1], ids[None, 1:])[0]
    assert_close(numbers(got["losses"], len(ids) - 1), expected, rtol=0, atol=1e-4)
    assert abs(got["mean"] - float(expected.mean())) < 1e-4
    assert abs(got["truth"]["loss"] - float(expected[5])) < 1e-4
    values = cache(model, ids[None])
    assert got["best"]["id"] == int(values["logits"][0, 5].argmax())
    for layer in range(2):
        norms = numbers(got["norms"][layer], 8, len(ids))
        weighted = value_weighted(values[f"L{layer}.pattern"], values[f"L{layer}.v"])[0]
        pattern = values[f"L{layer}.pattern"][0]
        assert_close(pattern * norms[:, None, :], weighted, rtol=0, atol=1e-4)


def test_a_model_that_the_page_cannot_compute_is_refused(engine):
    refused = """async ([field, value]) => {
      const { check } = await import("/live/model.js");
      const config = { d_model: 256, d_head: 32, d_vocab: 4096, norm: null, [field]: value };
      try { check(config, "m"); return ""; } catch (error) { return error.message; }
    }"""
    assert "LayerNorm" in engine.evaluate(refused, ["norm", "pre"])
    assert "smeared keys" in engine.evaluate(refused, ["smear", True])
    assert "multiple of 8" in engine.evaluate(refused, ["d_head", 5])
    assert engine.evaluate(refused, ["smear", False]) == ""
    assert not runs_in_page({"norm": "pre"}) and not runs_in_page({"smear": True})


def test_a_snapshot_of_training_is_computed_from_its_eight_bits(engine):
    step = snapshot_steps("attn-only-2l")[3]
    engine.evaluate(
        """async (name) => {
          const { Model } = await import("/live/model.js");
          const list = await (await fetch("/live/data/models.json")).json();
          const moment = list.moments["attn-only-2l"].find((one) => one.name === name);
          const { config } = list.models.find((one) => one.name === "attn-only-2l");
          const packed = (await fetch(`/live/data/${moment.file}`)).body;
          const whole = new Response(packed.pipeThrough(new DecompressionStream("deflate")));
          window.model = new Model({ name, config }, await whole.arrayBuffer(), { runs: 3 });
        }""",
        f"attn-only-2l@{step}",
    )
    model = load_snapshot("attn-only-2l", step)
    page = InPage(engine, model.config)
    ids = load_tokenizer().encode(CODE)
    same(page.values(ids.tolist()), cache(model, ids[None]))


def test_the_worker_goes_through_the_moments_and_keeps_one(engine):
    got = engine.evaluate(
        """async (text) => {
          const { ask } = await import("/live/engine.js");
          const list = await ask("models"), settings = { off: {}, cuts: [], freeze: "none", other: "", order: null };
          const found = [];
          for (const { name } of [...list.moments["attn-only-2l"].slice(0, 2), { name: "attn-only-2l" }]) {
            await ask("run", { slot: "moments", model: name, text, settings });
            const { mean, name: of } = await ask("losses", { slot: "moments" });
            found.push([of, mean]);
          }
          const unknown = await ask("run", { slot: "moments", model: "attn-only-2l@3", text, settings }).catch((error) => error.message);
          return { found, unknown };
        }""",
        CODE,
    )
    ids = load_tokenizer().encode(CODE)[None]
    steps = snapshot_steps("attn-only-2l")
    for (name, mean), step in zip(got["found"], [*steps[1:3], steps[-1]], strict=True):
        assert name == ("attn-only-2l" if step == steps[-1] else f"attn-only-2l@{step}")
        losses = token_losses(load_snapshot("attn-only-2l", step), ids[:, :-1], ids[:, 1:])
        assert abs(mean - float(losses.mean())) < 1e-4
    assert "no model attn-only-2l@3" in got["unknown"]


def test_a_file_cut_short_is_refused(engine):
    message = engine.evaluate(
        """async () => {
          const { tensors } = await import("/live/model.js");
          const list = await (await fetch("/live/data/models.json")).json();
          const whole = await (await fetch(`/live/data/${list.models[0].file}`)).arrayBuffer();
          return [0, 4, 300, 100000].map((n) => {
            try { tensors(whole.slice(0, n)); return ""; } catch (error) { return error.message; }
          });
        }"""
    )
    assert all("cut short" in text for text in message), message


def test_three_layers_are_computed_too(engine, tmp_path: Path):
    torch.manual_seed(0)
    sizes = {"n_layers": 3, "n_heads": 3, "d_model": 24, "d_head": 8, "d_vocab": 40, "n_ctx": 21}
    model = AttentionOnlyTransformer(Config(**sizes))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_((weight * 4).half().float())
    from safetensors.torch import save

    halves = {k: v.detach().half().contiguous() for k, v in model.named_parameters()}
    content = base64.b64encode(save(halves)).decode()
    engine.evaluate(
        """async ([content, config]) => {
          const { Model } = await import("/live/model.js");
          const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
          window.model = new Model({ name: "toy", config }, bytes.buffer);
        }""",
        [content, model.config.to_dict()],
    )
    page = InPage(engine, model.config)
    ids = torch.randint(40, (1, 19))
    got = page.values(ids[0].tolist())
    same(got, cache(model, ids))
    stream = order_terms(model, ids)[:3].sum(0)[0]
    cut = page.values(ids[0].tolist(), order=2)["logits"]
    assert_close(cut, (stream @ model.W_U).detach(), rtol=0, atol=1e-4)
    terms = contributions(page, ids[0].tolist(), 12, 7)
    assert len(terms) == 4**3
    assert abs(sum(terms.values()) - float(got["logits"][12, 7])) < 1e-4


# ---- the page ----


@pytest.fixture(scope="module")
def book_address(built_book: Path) -> Iterator[str]:
    with served(built_book) as address:
        yield address


@pytest.fixture
def playground(chromium, book_address: str) -> Iterator[object]:
    """Opens the playground, with a link's fragment; none may complain or ask another host."""
    visits: list[Visit] = []

    def start(fragment: str = "", ready: bool = True, before=None, **settings):
        visits.append(Visit(chromium, book_address, **settings))
        page = visits[-1].page
        if before:
            before(visits[-1])
        page.goto(f"{book_address}/book/playground.html{fragment}", wait_until="load")
        if ready:
            page.wait_for_selector(".lv-host[data-state=ready]")
            settled(page)
        return page

    yield start
    for one in visits:
        one.context.close()
        assert one.outside == [], "requests to other hosts"
        assert one.trouble == [], "errors or warnings in the page"


def settled(page) -> None:
    """Waits until the contributions belong to what is shown."""
    page.wait_for_selector(".lv-signed:not([data-stale]) li")


def typed(page, text: str) -> None:
    """Puts a text into the box and waits for its tokens."""
    page.fill("#lv-text", text)
    shown = load_tokenizer().token_strings(load_tokenizer().encode(text)[:256])
    page.wait_for_function(
        "all => JSON.stringify([...document.querySelectorAll('.lv-token')].map(t => t.textContent)) === all",
        arg=json.dumps(shown, ensure_ascii=False, separators=(",", ":")),
    )


def difference(page) -> dict[str, float]:
    """The rows of the comparison, B less A."""
    page.wait_for_function(
        "!document.querySelector('.lv-compared table').innerText.includes('–') && "
        "document.querySelectorAll('.lv-compared tbody tr').length === 4"
    )
    rows = page.locator(".lv-compared tbody tr").all()
    cells = [[c.inner_text() for c in row.locator("th, td").all()] for row in rows]
    return {title: float(last.replace("−", "-")) for title, *_, last in cells}


def test_the_playground_draws_every_head_and_keeps_the_start_token_in_sight(playground):
    page = playground()
    assert page.locator(".lv-head").count() == 16
    colours = page.eval_on_selector_all(
        ".lv-head canvas, .lv-large",
        """all => all.map(c => new Set(new Uint32Array(
            c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size)""",
    )
    assert len(colours) == 18 and min(colours) > 1, colours
    assert page.locator(".lv-first").inner_text() == "<start>"
    page.locator(".lv-rest").evaluate("e => e.scrollTo(0, 1e6)")
    assert page.locator(".lv-first .lv-token").is_visible()
    sums = page.locator(".lv-side .lv-note").inner_text()
    bars = [
        float(t.replace("−", "-")) for t in page.locator(".lv-signed .lv-number").all_inner_texts()
    ]
    assert (
        abs(sum(bars) - float(re.search(r"sum to (−?[\d.]+\d)", sums)[1].replace("−", "-"))) < 0.1
    )


def test_any_text_is_data(playground):
    page = playground()
    odd = [
        "", "</script><img src=x onerror=alert(1)><b>bold</b>", "👩‍👩‍👧 🇫🇷 \u0000", "שלום عالم",
        "\n\n\t \n", "word " * 2000, "<start><!--",
    ]  # fmt: skip
    for text in odd:
        typed(page, text)
        assert page.locator(".lv img, .lv b, .lv script").count() == 0
        state = page.locator(".lv-status").inner_text()
        assert ("left out" in state) == (len(text) > 9000), state
    assert page.locator(".lv-token").count() == len(load_tokenizer().encode(odd[-1]))


def test_a_switched_off_head_is_what_the_comparison_shows(playground):
    page = playground()
    page.get_by_label("Compare two settings").check()
    same = difference(page)
    assert max(map(abs, same.values())) == 0
    scores = training_log("attn-only-2l")[-1]["previous_token"][0]
    head = f"L0H{scores.index(max(scores))}"
    page.get_by_role("button", name=f"{head} writes: on").click()
    page.wait_for_function(
        "!document.querySelector('.lv-compared tbody tr:last-child').innerText.match(/[+−]0.000|–/)"
    )
    model, tokens = load_model("attn-only-2l"), load_tokenizer().encode(DEMO_TEXT)[None]
    hook = ablation_hook([(0, int(head[3:]))])
    x, y = tokens[:, :-1], tokens[:, 1:]
    loss = float((token_losses(model, x, y, hook) - token_losses(model, x, y)).mean())
    assert abs(difference(page)["mean loss of the text, nats"] - loss) < 6e-4
    assert loss > 0.1
    assert page.locator(".lv-large").count() == 4, "both settings' patterns, side by side"


def test_every_other_switch_acts_and_goes_back(playground):
    page = playground()
    list_of = "document.querySelector('.lv-next').innerText"
    intact_list = page.evaluate(list_of)

    def changes(act) -> None:
        before = page.evaluate(list_of)
        act()
        page.wait_for_function(f"old => {list_of} !== old", arg=before)

    changes(lambda: page.get_by_role("button", name="Cut", exact=True).click())
    assert "layer 0 –K→ layer 1" in page.locator(".lv-cuts").inner_text()
    changes(lambda: page.locator(".lv-cuts button").click())
    changes(lambda: page.get_by_role("combobox", name="Terms", exact=True).select_option("0"))
    changes(lambda: page.get_by_role("button", name="All switches back").click())
    assert page.evaluate(list_of) == intact_list
    page.get_by_role("combobox", name="Patterns", exact=True).select_option("other")
    page.wait_for_function("document.querySelector('.lv-status').innerText.includes('not held')")
    changes(lambda: page.get_by_label("The other text").fill("one two three four. " * 40))
    changes(
        lambda: page.get_by_role("combobox", name="Model", exact=True).select_option("attn-only-0l")
    )
    assert page.locator(".lv-head:visible").count() == 0


def test_a_link_brings_text_and_switches_back(playground):
    page = playground()
    typed(page, "a link & its text, 100% <b>\n")
    page.get_by_role("button", name="L1H2 writes: on").click()
    page.get_by_role("button", name="Cut", exact=True).click()
    page.get_by_role("combobox", name="Terms", exact=True).select_option("1")
    page.locator(".lv-token").nth(3).click()
    page.wait_for_function("location.hash.includes('at=3') && location.hash.includes('order=1')")
    fragment = page.evaluate("location.hash")
    again = playground(fragment)
    assert again.input_value("#lv-text") == "a link & its text, 100% <b>\n"
    assert again.get_by_role("button", name="L1H2 writes: zero").is_visible()
    assert "layer 0 –K→ layer 1" in again.locator(".lv-cuts").inner_text()
    assert again.get_by_role("combobox", name="Terms", exact=True).input_value() == "1"
    assert (
        again.locator(".lv-token[aria-selected=true]").inner_text()
        == page.locator(".lv-token[aria-selected=true]").inner_text()
    )
    assert again.locator(".lv-next").inner_text() == page.locator(".lv-next").inner_text()
    damaged = playground(
        "#text=x&model=nothing&zero=L9H9,<b>&cut=L1H1KL0H0&order=7&at=99&target=5000"
    )
    assert damaged.locator(".lv-token").count() == 2


def test_the_keyboard_alone_is_enough(playground):
    page = playground()
    page.focus("#lv-text")
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate("document.activeElement.className || document.activeElement.tagName")
        )
        if seen[-1] == "lv-token":
            break
    assert seen[-1] == "lv-token", seen
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.textContent") == "<start>"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelectorAll('.lv-token')[2].ariaSelected === 'true'")
    token = page.locator(".lv-token").nth(2).inner_text()
    page.wait_for_function(
        "t => document.querySelector('.lv-side h2').innerText === `After ${t}`", arg=token
    )
    page.keyboard.press("Tab")
    name = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert name == "L0H0: show its pattern large"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("button[aria-label^='L0H0 writes: zero']")


def test_nothing_moves_when_pointed_at_or_resized(playground):
    page = playground()
    sizes = """() => [...document.querySelectorAll('.lv-large, .lv-head, .lv-strip, .lv-side')]
        .map(e => { const b = e.getBoundingClientRect(); return [b.x, b.y + scrollY, b.width, b.height].map(Math.round).join(); })"""
    before = page.evaluate(sizes)
    box = page.locator(".lv-large").first.bounding_box()
    for i in range(20):
        page.mouse.move(box["x"] + 20 + i * 13 % 200, box["y"] + 10 + i * 17 % 200)
        page.locator(".lv-token").nth(i).hover()
    page.set_viewport_size({"width": 700, "height": 900})
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_function(
        f"old => JSON.stringify(({sizes})()) === old", arg=json.dumps(before, separators=(",", ":"))
    )


def test_a_failed_download_says_so_and_can_be_tried_again(playground):
    blocked = []

    def block(visit):
        visit.context.route("**/*.safetensors", lambda route: route.abort())
        blocked.append(visit)

    page = playground(ready=False, before=block)
    page.wait_for_selector(".lv-status[data-trouble]")
    assert "attn-only-2l" in page.locator(".lv-status").inner_text()
    assert "could not be downloaded" in page.locator(".lv-status").inner_text()
    blocked[0].context.unroute("**/*.safetensors")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".lv-host[data-state=ready]")
    blocked[0].trouble[:] = [t for t in blocked[0].trouble if "ERR_FAILED" not in t]


def test_pictures_are_saved(playground, tmp_path: Path):
    page = playground()
    for kind in ("SVG", "PNG"):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save {kind}").click()
        download.value.save_as(tmp_path / kind)
    root = ElementTree.parse(tmp_path / "SVG").getroot()
    assert len(root.findall(".//{*}rect")) > 50
    assert any("L1H" in (text.text or "") for text in root.findall(".//{*}text"))
    assert (tmp_path / "PNG").read_bytes()[:4] == b"\x89PNG"


def test_the_page_reads_without_javascript(chromium, book_address: str):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{book_address}/book/playground.html")
    assert page.locator(".admonition.live").is_visible()
    assert page.locator("figure img").first.is_visible()
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_live_page_has_no_serious_barrier_and_fits_a_phone(playground, theme: str):
    page = playground(theme=theme, width=375)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.get_by_label("Compare two settings").check()
    page.locator(".lv-tables summary").click()
    difference(page)
    page.evaluate((ROOT / "_vendor/tests/axe.min.js").read_text(encoding="utf-8"))
    result = page.evaluate("axe.run('.lv-host', {resultTypes: ['violations']})")
    found = [(v["id"], [n["html"][:160] for n in v["nodes"]][:4]) for v in result["violations"]]
    assert found == []


# ---- the small figures ----


@pytest.fixture
def live_figure(chromium, book_address: str) -> Iterator[object]:
    """Opens a page and waits for one of its live figures."""
    visits: list[Visit] = []

    def start(page_name: str, kind: str):
        visits.append(Visit(chromium, book_address))
        page = visits[-1].page
        page.goto(f"{book_address}/book/{page_name}.html", wait_until="load")
        # by script: a figure that starts at once hides its box, for which a locator would wait in vain
        page.locator(f".live-{kind}").evaluate("box => box.scrollIntoView()")
        box = page.locator(f".live-{kind} + .lv-host")
        page.wait_for_selector(f".live-{kind} + .lv-host[data-state=ready]")
        return page, box

    yield start
    for one in visits:
        one.context.close()
        assert one.outside == [] and one.trouble == []


def test_the_welcome_figure_finds_the_copy_of_a_readers_own_text(live_figure):
    page, box = live_figure("index", "copies")
    assert not page.locator(".tag_live-fallback").is_visible(), "the still picture is for print"
    box.locator("textarea").fill("The old lighthouse keeper slept. The old lighthouse")
    model, tokens = (
        load_model("attn-only-2l"),
        load_tokenizer().encode("The old lighthouse keeper slept. The old lighthouse"),
    )
    words = load_tokenizer().token_strings(tokens)
    head = int(box.locator("select").input_value()[3:])
    pattern = patterns_of(model, tokens[None])[1][0, head, -1]
    source = int(pattern.argmax())
    assert source > 0 and words[source - 1] == words[-1], "the model itself finds the copy"
    finding = f"looks most at {words[source]} ({float(pattern[source]):.2f}), which came after {words[-1]}."
    page.wait_for_function(
        "text => document.querySelector('.lv-finding').innerText.endsWith(text)", arg=finding
    )
    page.emulate_media(media="print")
    assert page.locator(".tag_live-fallback").is_visible()


def test_the_training_figure_moves_with_its_slider(live_figure):
    page, box = live_figure("training", "training")
    finding, slider = box.locator(".lv-finding"), box.get_by_role("slider", name="Moment")
    finding.filter(has_text="in the second.").wait_for()

    def halves() -> list[float]:
        return [
            float(x)
            for x in re.findall(r"(\d+\.\d+)(?= nats| in the second)", finding.inner_text())
        ]

    assert finding.inner_text().startswith("After 0.7 million tokens")
    first, second = halves()
    assert abs(first - second) < 1, "nothing is copied yet"
    assert slider.get_attribute("aria-valuetext") == "after 0.7 million tokens"
    slider.focus()
    page.keyboard.press("End")
    finding.filter(has_text="The finished model").wait_for()
    first, second = halves()
    assert second < first - 2, "the second copy is read off the first"


def test_a_chapters_figure_shows_what_a_head_is_worth(live_figure):
    _, box = live_figure("induction-heads", "induction")
    finding = box.locator(".lv-finding")
    finding.filter(has_text="nats per token.").wait_for()
    box.get_by_role("button", name="L0H6 on").click()
    finding.filter(has_text="intact").wait_for()
    assert float(re.search(r", ([+−][\d.]+)\)", finding.inner_text())[1].replace("−", "-")) > 0.5
