"""The live figures in a real browser: the same numbers as the package, switch by switch."""

import base64
import functools
import http.server
import random
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pathsum import load_model, load_tokenizer
from pathsum.demo import DEMO_TEXT
from pathsum.evaluate import token_losses
from pathsum.heads import repeated_tokens, value_weighted
from pathsum.idealised import uncomposed_hook
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.patching import ablation_hook, both, frozen_hook
from pathsum.paths import order_terms, path_terms, patterns_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from live import lay_out, runs_in_page  # noqa: E402

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


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def engine(chromium, tmp_path_factory) -> Iterator[object]:
    """A page that has the engine's modules and the shipped models at hand, and nothing else."""
    site = lay_out(tmp_path_factory.mktemp("live") / "site")
    shutil.copytree(ROOT / "book/static/live", site / "live", dirs_exist_ok=True)
    (site / "index.html").write_text("<!doctype html><title>engine</title>")
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(site))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    context = chromium.new_context()
    page = context.new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
    page.add_script_tag(content=HELPERS)
    yield page
    context.close()
    server.shutdown()
    server.server_close()
    assert trouble == []


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


def numbers(text: str, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), "<f4").copy()).reshape(shape)


class InPage:
    """One model in the page; `values` gives what `cache` gives, from the page's engine."""

    def __init__(self, page, name: str, simd: bool = True):
        self.page, self.config = page, load_model(name).config
        options = {"simd": simd}
        page.evaluate("async ([name, o]) => { window.model = await load(name, o); }", [name, options])

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
    return InPage(engine, "attn-only-2l")


def same(got: dict, expected: dict) -> None:
    """Every value of the page equals the package's, to 1e-4."""
    for site, value in got.items():
        assert_close(value, expected[site][0], rtol=0, atol=1e-4, msg=lambda m, s=site: f"{s}: {m}")


def hooked(model, tokens, *hooks) -> dict:
    """Every site's value in a run under hooks (one after the other), as the hooks leave them."""
    values: dict[str, torch.Tensor] = {}

    def hook(site, value):
        for one in hooks:
            changed = one(site, value)
            value = value if changed is None else changed
        values[site] = value
        return value

    with torch.no_grad():
        model(tokens, hook)
    return values


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
    pools = ["abc '\n", "aeiou  stdl", "é漢👍\u0301 ", "אبمש 12", "{}()[];=+- \n\t", "\u00a0\u0085\u3000 \u180e\ufeffx"]
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
    shown = engine.evaluate("Array.from({ length: tokenizer.size }, (_, id) => tokenizer.shown(id))")
    assert shown == tokenizer.token_strings(range(tokenizer.d_vocab))


@pytest.mark.parametrize("simd", [True, False], ids=["wasm", "javascript"])
@pytest.mark.parametrize("name", ["attn-only-0l", "attn-only-1l", "attn-only-2l"])
def test_logits_patterns_and_head_outputs_equal_pytorchs(engine, tokenizer, name: str, simd: bool):
    model, page = load_model(name), InPage(engine, name, simd)
    assert engine.evaluate("model.simd") == simd
    rows = [tokenizer.encode(text) for text in ("", DEMO_TEXT, CODE)]
    if simd:
        rows.append(repeated_tokens(1, 85, 3, 4096, torch.Generator().manual_seed(1))[0])
    for ids in rows:
        same(page.values(ids.tolist()), cache(model, ids[None]))


def test_what_is_kept_from_the_last_run_changes_nothing(two, tokenizer):
    model = load_model("attn-only-2l")
    for text in ("The cat sat on the mat", "The cat sat on the hat and", "The cat", "A cat sat on the mat"):
        ids = tokenizer.encode(text)
        same(two.values(ids.tolist()), cache(model, ids[None]))


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_a_head_switched_off_is_what_the_package_ablates(two, tokenizer, kind: str):
    model, tokens = load_model("attn-only-2l"), tokenizer.encode(DEMO_TEXT)[None]
    heads = [(0, 3), (0, 5), (1, 6)]
    expected = hooked(model, tokens, ablation_hook(heads, kind, cache(model, tokens)))
    got = two.values(tokens[0].tolist(), off={f"L{a}H{b}": kind for a, b in heads})
    same(got, expected)
    assert (got["logits"] - cache(model, tokens)["logits"][0]).abs().max() > 0.1


def test_frozen_patterns_are_those_of_the_other_text(two, tokenizer):
    model = load_model("attn-only-2l")
    tokens = tokenizer.encode(DEMO_TEXT)[None]
    other = tokenizer.encode(CODE + CODE)
    held = patterns_of(model, other[None, : tokens.shape[1]])
    got = two.values(tokens[0].tolist(), other.tolist(), freeze="other")
    same(got, hooked(model, tokens, frozen_hook(held)))
    off = ablation_hook([(0, 1), (1, 7)], "mean", cache(model, tokens))
    own = both(frozen_hook(patterns_of(model, tokens)), off)
    got = two.values(
        tokens[0].tolist(), tokens[0].tolist(), freeze="own", off={"L0H1": "mean", "L1H7": "mean"}
    )
    same(got, hooked(model, tokens, own))


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_cutting_all_composition_of_a_kind_equals_the_packages_hook(two, tokenizer, kind: str):
    model, tokens = load_model("attn-only-2l"), tokenizer.encode(DEMO_TEXT)[None]
    cuts = [[f"L0H{a}", f"L1H{b}", kind] for a in range(8) for b in range(8)]
    expected = hooked(model, tokens, uncomposed_hook(model, kind))
    same(two.values(tokens[0].tolist(), cuts=cuts), expected)


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_a_cut_between_two_heads_takes_one_heads_output_from_one_heads_reading(two, tokenizer, kind):
    model, tokens = load_model("attn-only-2l"), tokenizer.encode(DEMO_TEXT)[None]
    written = cache(model, tokens)["L0.result"][:, 3]

    def cut(site, value):
        if site != f"L1.{kind.lower()}":
            return None
        value = value.clone()
        value[:, 6] -= written @ getattr(model, f"W_{kind}")[1, 6].detach()
        return value

    got = two.values(tokens[0].tolist(), cuts=[["L0H3", "L1H6", kind]])
    same(got, hooked(model, tokens, cut))


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
    sizes = dict(n_layers=3, n_heads=3, d_model=24, d_head=8, d_vocab=40, n_ctx=21)
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
    page = InPage.__new__(InPage)
    page.page, page.config = engine, model.config
    ids = torch.randint(40, (1, 19))
    got = page.values(ids[0].tolist())
    same(got, cache(model, ids))
    stream = order_terms(model, ids)[:3].sum(0)[0]
    cut = page.values(ids[0].tolist(), order=2)["logits"]
    assert_close(cut, (stream @ model.W_U).detach(), rtol=0, atol=1e-4)
    terms = contributions(page, ids[0].tolist(), 12, 7)
    assert len(terms) == 4**3
    assert abs(sum(terms.values()) - float(got["logits"][12, 7])) < 1e-4
