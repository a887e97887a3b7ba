"""The work that is compared, and its measurement: one library and one task in a process of its own.

    python benchmarks/tasks.py pathsum eigenvalues

reads sizes, one line of JSON each, and answers each with one line: CPU seconds, MiB of memory above
what was resident before the work, and the result as a file that it names. The first size only warms
up. CPU seconds of one thread are what an idle core takes, and do not count what other processes do
meanwhile. The peak is the process's ru_maxrss: it forgets nothing, so with ascending sizes none is
missed. `analysis.py` starts these processes and lets them take turns.
"""

import gc
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from pathsum import load_model
from pathsum.circuits import full_ov_eigenvalues, positivity
from pathsum.composition import pair_scores
from pathsum.factored import FactoredMatrix
from pathsum.interop import to_transformer_lens
from pathsum.loss import cross_entropy_rows
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.paths import path_terms
from pathsum.samples import spread_sample
from pathsum.term_losses import loss_by_order

Work = Callable[[], torch.Tensor]


def random_weights(size: dict) -> dict[str, torch.Tensor]:
    """float32 weights with the names and shapes of our models, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    heads = (size["n_layers"], size["n_heads"])
    d_model, d_head, d_vocab = size["d_model"], size["d_head"], size["d_vocab"]
    shapes = {"W_E": (d_vocab, d_model), "W_U": (d_model, d_vocab)}
    shapes |= {W: (*heads, d_model, d_head) for W in ("W_Q", "W_K", "W_V")}
    shapes["W_O"] = (*heads, d_head, d_model)
    return {
        name: torch.randn(shape, generator=generator).mul_(shape[-2] ** -0.5)
        for name, shape in shapes.items()
    }


def text(size: dict) -> tuple[AttentionOnlyTransformer, torch.Tensor, torch.Tensor]:
    """A model with inputs and targets: a shipped one on held-out text, or random on random tokens."""
    if "model" in size:
        return load_model(size["model"]), *spread_sample(size["sequences"])
    model = AttentionOnlyTransformer(Config(**size))
    tokens = torch.randint(size["d_vocab"], (1, size["n_ctx"] + 1))
    return model, tokens[:, :-1], tokens[:, 1:]


def their_model(size: dict) -> torch.nn.Module:
    """A HookedTransformer with the random weights."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    names = ("n_layers", "n_heads", "d_model", "d_head", "d_vocab")
    theirs = HookedTransformer(
        HookedTransformerConfig(
            **{name: size[name] for name in names}, n_ctx=8, attn_only=True, device="cpu",
            normalization_type=None, positional_embedding_type="shortformer", init_weights=False,
        )
    )  # fmt: skip
    weights = random_weights(size)
    theirs.embed.W_E.data, theirs.unembed.W_U.data = weights["W_E"], weights["W_U"]
    for layer, block in enumerate(theirs.blocks):
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            getattr(block.attn, name).data = weights[name][layer]
    return theirs


def in_order(scores: torch.Tensor) -> torch.Tensor:
    """Composition scores (layer, head, layer, head) with 0 where the first layer is not the earlier."""
    layers = torch.arange(len(scores))
    return scores * (layers[:, None] < layers)[:, None, :, None]


def eigenvalues(size: dict) -> Work:
    """Copying scores of all heads from the eigenvalues of their full OV circuits."""
    w = random_weights(size)
    return lambda: positivity(
        full_ov_eigenvalues(w["W_E"], FactoredMatrix(w["W_V"], w["W_O"]), w["W_U"])
    )


def their_eigenvalues(size: dict) -> Work:
    m = their_model(size)
    return lambda: positivity((m.W_E @ m.OV @ m.W_U).eigenvalues)


def composition(size: dict) -> Work:
    """K-composition scores of all pairs of heads."""
    w = random_weights(size)

    def work() -> torch.Tensor:
        ov, qk = FactoredMatrix(w["W_V"], w["W_O"]), FactoredMatrix(w["W_Q"], w["W_K"].mT)
        return in_order(pair_scores(ov, qk.mT, dtype=torch.float32))

    return work


def their_composition(size: dict) -> Work:
    m = their_model(size)
    return lambda: m.all_composition_scores("K")


def top_entries(size: dict) -> Work:
    """The ten largest entries of one head's full OV circuit, out of d_vocab squared."""
    w = random_weights({**size, "n_layers": 1, "n_heads": 1})
    return lambda: FactoredMatrix(w["W_E"] @ w["W_V"][0, 0], w["W_O"][0, 0] @ w["W_U"]).topk(10)[0]


def terms(size: dict) -> Work:
    """Loss with path terms of order 0, up to 1, ... up to all, all patterns frozen."""
    model, inputs, targets = text(size)
    return lambda: loss_by_order(model, inputs, targets)


def terms_one_by_one(size: dict) -> Work:
    """The same from a list of all terms, sequence by sequence, for the list is long."""
    model, inputs, targets = text(size)

    def work() -> torch.Tensor:
        losses = torch.zeros(model.config.n_layers + 1)
        for x, y in zip(inputs.split(1), targets.split(1)):
            listed = path_terms(model, x)
            for order in range(len(losses)):
                chosen = [len(path) <= order for path in listed.paths]
                stream = listed.values[torch.tensor(chosen)].sum(0)
                losses[order] += cross_entropy_rows(stream[0], model.W_U, y[0]).mean()
        return losses / len(inputs)

    return work


def their_terms(size: dict) -> Work:
    """The paper's algorithm with hooks: a pass per order, fed with the layers' outputs of the last."""
    model, inputs, targets = text(size)
    theirs, layers = to_transformer_lens(model), range(model.config.n_layers)

    def work() -> torch.Tensor:
        _, patterns = theirs.run_with_cache(
            inputs, names_filter=lambda n: n.endswith("hook_pattern")
        )
        written = {f"blocks.{layer}.hook_attn_out": torch.zeros(()) for layer in layers}
        losses = []
        for _ in range(len(layers) + 1):
            new = {}

            def frozen(value, hook):
                return patterns[hook.name]

            def replaced(value, hook, new=new, written=written):
                new[hook.name] = value
                return written[hook.name].expand_as(value)

            hooks = [(f"blocks.{layer}.attn.hook_pattern", frozen) for layer in layers]
            hooks += [(name, replaced) for name in written]
            logits = theirs.run_with_hooks(inputs, fwd_hooks=hooks)
            losses.append(
                torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            )
            written = new
        return torch.stack(losses)

    return work


TASKS = {
    "pathsum": {
        "eigenvalues": eigenvalues,
        "composition": composition,
        "top_entries": top_entries,
        "terms": terms,
        "terms_one_by_one": terms_one_by_one,
    },
    "transformer_lens": {
        "eigenvalues": their_eigenvalues,
        "composition": their_composition,
        "terms": their_terms,
    },
}


def resident_mib() -> float:
    """Memory of this process now, in MiB (from /proc, so on Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def measured(prepare: Callable[[dict], Work], size: dict) -> tuple[dict, torch.Tensor]:
    """CPU seconds and extra MiB of the work, its preparation left out; and its result."""
    work = prepare(size)
    gc.collect()
    before, start = resident_mib(), time.process_time()
    result = work()
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return {"cpu_s": round(seconds, 4), "extra_mib": round(max(0.0, peak - before), 1)}, result


def main(library: str, task: str) -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    prepare = TASKS[library][task]
    with tempfile.TemporaryDirectory() as folder:
        for number, line in enumerate(sys.stdin):
            record, result = measured(prepare, json.loads(line))
            record["result"] = f"{folder}/{number}.pt"
            torch.save(result, record["result"])
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
