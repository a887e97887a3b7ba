"""The claims about what a second layer is for: learning in context, and induction.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with trained models.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.claims import Measurement, claim
from pathsum.evaluate import token_losses
from pathsum.heads import repeated_tokens
from pathsum.induction import INDUCTION, copy_losses, induction_scores, repeats
from pathsum.model import AttentionOnlyTransformer
from pathsum.samples import spread_sample
from pathsum.seeds import Checkpoint

PAGE = "one-layer"


def repeat_gain(
    model: AttentionOnlyTransformer, sequences: int = 16, seed: int = 0
) -> Float[Tensor, " batch"]:
    """Loss on the first copy of random tokens minus that on the second, nats a token, per sequence.

    The first token of each copy is left out, since nothing predicts it.
    """
    period = (model.config.n_ctx - 1) // 2
    generator = torch.Generator().manual_seed(seed)
    tokens = repeated_tokens(sequences, period, 2, model.config.d_vocab, generator)
    losses = token_losses(model, tokens[:, :-1], tokens[:, 1:])
    return losses[:, 1:period].mean(1) - losses[:, period + 1 :].mean(1)


def context_gain(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    last: int = 32,
) -> Float[Tensor, " batch"]:
    """What the far context is worth: loss without it minus loss with it, nats a token, per sequence.

    Over the last `last` positions; without it they see the start token and only the nearest `last`
    to 2 * `last` - 1 tokens. The same tokens are predicted both times, so the text's own ups and downs
    cancel. ValueError if that would be the whole context.
    """
    if 2 * last >= inputs.shape[1]:
        raise ValueError(f"2 * last must be below {inputs.shape[1]} positions, got last={last}")
    short = torch.cat([inputs[:, :1], inputs[:, -2 * last :]], dim=1)
    with_it = token_losses(model, inputs, targets)[:, -last:]
    without = token_losses(model, short, targets[:, -2 * last - 1 :])[:, -last:]
    return (without - with_it).mean(1)


def measure_in_context(
    repeats: dict[str, Float[Tensor, " batch"]], far: dict[str, Float[Tensor, " sequences"]]
) -> Measurement:
    """O13: does the model of "1 layer" learn in context, and much less than that of "2 layers"?"""

    def stated(gains: dict[str, Tensor]) -> tuple[dict[str, float], dict[str, float], str]:
        mean = {name: float(gain.mean()) for name, gain in gains.items()}
        error = {name: float(gain.std() / len(gain) ** 0.5) for name, gain in gains.items()}
        words = " and ".join(f"{mean[n]:.3f} ± {error[n]:.3f} with {n}" for n in gains)
        return mean, error, words

    second, second_error, on_repeats = stated(repeats)
    more, more_error, on_text = stated(far)
    exists = any(
        mean["1 layer"] > 3 * error["1 layer"]
        for mean, error in ((second, second_error), (more, more_error))
    )
    seen = second["2 layers"] > 3 * second_error["2 layers"]
    weak = seen and second["1 layer"] < 0.25 * second["2 layers"]
    return Measurement(
        second["1 layer"] / second["2 layers"],
        "gain of one layer over that of two",
        "holds" if exists and weak else "weaker" if weak else "not seen",
        f"nats a token gained on the second copy of random tokens: {on_repeats}; on text, from having "
        f"more than the nearest 32 to 63 tokens: {on_text}",
    )


def measure_control(one: AttentionOnlyTransformer, parameters_of_two: int) -> Measurement:
    """T7: does no head of a one-layer model do induction?"""
    scores = induction_scores(one)
    best, head = float(scores.max()), int(scores.argmax()) % scores.shape[1]
    parameters = sum(p.numel() for p in one.parameters())
    return Measurement(
        best,
        "prefix-matching score",
        "holds" if best < 0.1 else "not seen",
        f"the best head of the one-layer model, L0H{head}, scores {best:.3f}; the model has the width "
        f"of the two-layer one and {parameters / parameters_of_two:.0%} of its parameters",
    )


def losses_at_equal_tokens(
    every: dict[str, dict[int, Checkpoint]], kinds: tuple[str, ...] = ("one", "two")
) -> tuple[int, dict[str, Float[Tensor, " _"]]]:
    """The last number of tokens that all runs were measured at, and each kind's held-out losses there.

    KeyError if a kind is missing.
    """
    logs = {kind: [one.log for one in every[kind].values()] for kind in kinds}
    shared = [{record["tokens"] for record in log} for runs in logs.values() for log in runs]
    last = max(set.intersection(*shared))

    def there(log: list[dict]) -> float:
        return next(r["heldout_loss"] for r in log if r["tokens"] == last)

    return last, {kind: torch.tensor([there(log) for log in runs]) for kind, runs in logs.items()}


def measure_gap(
    one: Float[Tensor, " seeds_1"], two: Float[Tensor, " seeds_2"], tokens: int
) -> Measurement:
    """T14: is the gain from the second layer far outside the spread between seeds?"""
    gap = float(one.mean() - two.mean())
    known = min(len(one), len(two)) > 1
    sd = max(float(one.std()), float(two.std())) if known else float("nan")
    words = f"± {sd:.3f}, the larger sd between seeds" if known else "(one seed: no spread known)"
    return Measurement(
        gap,
        "nats",
        "holds" if known and gap > 3 * sd else "weaker" if gap > 0 else "not seen",
        f"after {tokens / 1e6:.1f} million tokens {len(one)} one-layer runs have a held-out loss of "
        f"{float(one.mean()):.3f} nats and {len(two)} two-layer runs of {float(two.mean()):.3f}, a gap of "
        f"{gap:.3f} {words}",
    )


def measure_smeared(
    smeared: AttentionOnlyTransformer, plain: AttentionOnlyTransformer
) -> Measurement:
    """X1: is one layer enough once a key holds something of the token before?"""
    scores, control = induction_scores(smeared)[0], float(induction_scores(plain).max())
    best, head = float(scores.max()), int(scores.argmax())
    alone = 1 - float(smeared.smear_logit[0, head].sigmoid())
    reached = best >= INDUCTION and control < 0.1
    losses = [copy_losses(m, repeats(m.config.d_vocab)).tolist() for m in (smeared, plain)]
    return Measurement(
        best,
        "prefix-matching score",
        "holds" if reached else "weaker" if best >= 0.2 and best > control else "not seen",
        f"with smeared keys L0H{head} of a one-layer model scores {best:.2f}, its keys taking "
        f"{alone:.0%} from the token before; without, the best head scores {control:.3f}; from the "
        f"first copy to the second the loss falls by {losses[0][0] - losses[0][1]:.1f} nats against "
        f"{losses[1][0] - losses[1][1]:.1f}",
    )


@claim(
    id="O13",
    section="Summary of Results",
    statement="One layer can learn in context, by copying, but only weakly.",
    paper="qualitative",
    criterion="on the second copy of random tokens less than a quarter of the two-layer model's gain; "
    "and some gain, there or from far context on text, more than 3 standard errors above 0",
    page=PAGE,
)
def in_context(two: AttentionOnlyTransformer, one: AttentionOnlyTransformer) -> Measurement:
    models = {"1 layer": one, "2 layers": two}
    sample = spread_sample(96)
    return measure_in_context(
        {name: repeat_gain(model) for name, model in models.items()},
        {name: context_gain(model, *sample) for name, model in models.items()},
    )


@claim(
    id="T7",
    section="Induction Heads",
    statement="Induction heads need at least two attention layers.",
    paper="seen only from two layers on",
    criterion="every head of a one-layer model below 0.1 in prefix-matching score, for all seeds",
    page="induction-heads",
)
def control(one: AttentionOnlyTransformer, two: AttentionOnlyTransformer) -> Measurement:
    return measure_control(one, sum(p.numel() for p in two.parameters()))


@claim(
    id="T14",
    section="Two-Layer Attention-Only Transformers",
    statement="Two layers predict text better than one after the same training.",
    paper="implied",
    criterion="mean held-out losses at equal tokens further apart than 3 standard deviations between seeds",
    page="composition",
)
def gap(every: dict[str, dict[int, Checkpoint]]) -> Measurement:
    tokens, losses = losses_at_equal_tokens(every)
    return measure_gap(losses["one"], losses["two"], tokens)


@claim(
    id="X1",
    section="Related Work; Olsson et al. 2022",
    statement="With keys that hold something of the token before, one layer is enough for induction.",
    paper="remark on convolutions; in 2022 smeared keys give one layer the phase change",
    criterion="a head of the one-layer model with smeared keys at 0.4 or more in prefix-matching score, "
    "where every head without is below 0.1",
    page="training",
)
def smeared_keys(
    one_smeared: AttentionOnlyTransformer, one: AttentionOnlyTransformer
) -> Measurement:
    return measure_smeared(one_smeared, one)
