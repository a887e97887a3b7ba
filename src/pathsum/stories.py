"""The mechanism of a tiny model as a story, put in its place and measured.

A story has a rule for where heads look and one number for how strongly they copy. The rule takes the
place of the patterns of those heads that follow it; then rules and numbers take the place of the whole
model. What that costs, what is left without those heads, and how many numbers the story keeps are its score.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from pathsum.idealised import exact_induction_pattern, exact_previous_pattern, recovered
from pathsum.model import AttentionOnlyTransformer, Hook, cache
from pathsum.patching import ablation_hook
from pathsum.synthetic import FACTS, MODES, N_CTX, Batch, Task
from pathsum.tiny import scores, performance

WINDOWS = {"loops": N_CTX, "repeats": 20}  # positions in which the shortcut of a task looks
FOLLOWS = 0.6  # overlap with a rule from which a head counts as following it
Head = tuple[int, int]


@dataclass(frozen=True)
class Rule:
    """Where a head looks, and at which positions the rule says so."""

    pattern: Float[Tensor, "batch pos pos"]
    speaks: Bool[Tensor, "batch pos"]


def _itself(batch: Batch) -> Rule:
    pattern = torch.eye(batch.inputs.shape[1]).expand(len(batch.inputs), -1, -1)
    return Rule(pattern, batch.scored)


def _before(batch: Batch) -> Rule:
    pattern = exact_previous_pattern(batch.inputs.shape[1]).expand(len(batch.inputs), -1, -1)
    return Rule(pattern, (torch.arange(batch.inputs.shape[1]) > 0).expand_as(batch.inputs))


def _note(batch: Batch) -> Rule:
    """One back, as far as it matters for a recall: from a value to its key."""
    everywhere = _before(batch)
    return Rule(everywhere.pattern, batch.inputs > 12)


def _onward(batch: Batch) -> Rule:
    return Rule(exact_induction_pattern(batch.inputs), batch.scored)


def _told(rule: Callable[[Batch], Rule], mode: int) -> Callable[[Batch], Rule]:
    """The rule where the word of this mode stands at the start; silent elsewhere."""

    def told(batch: Batch) -> Rule:
        return Rule(rule(batch).pattern, batch.scored & (batch.inputs[:, 1:2] == mode))

    return told


# task -> name of a rule -> (the rule, whether a head that follows it answers, or only takes a note)
RULES: dict[str, dict[str, tuple[Callable[[Batch], Rule], bool]]] = {
    "copying": {"itself": (_itself, True)},
    "previous": {"one back": (_before, True)},
    "loops": {"one back": (_before, False), "after the match": (_onward, True)},
    "repeats": {"one back": (_before, False), "after the match": (_onward, True)},
    "recall": {"one back": (_note, False), "after the match": (_onward, True)},
    "modes": {
        "one back": (_before, False),
        "after the match, if told": (_told(_onward, MODES[0]), True),
        "one back, if told": (_told(_before, MODES[1]), True),
    },
}


def overlap(
    pattern: Float[Tensor, "batch head dest src"], rule: Rule
) -> Float[Tensor, " head"]:
    """Share of a head's attention that lies where the rule says, 0 to 1, where the rule speaks."""
    common = torch.minimum(pattern, rule.pattern[:, None]).sum(-1)
    return common.transpose(0, 1)[:, rule.speaks].mean(-1)


def followers(model: AttentionOnlyTransformer, task: Task, batch: Batch) -> dict[Head, str]:
    """The heads that follow a rule of the task's story, each with the rule that it follows best.

    Rules that only take a note are for heads of the first of two layers; rules that answer are for
    heads of the last layer.
    """
    sites, found = cache(model, batch.inputs), {}
    last = model.config.n_layers - 1
    for layer in range(model.config.n_layers):
        scored = {}
        for name, (rule, answers) in RULES[task.name].items():
            if answers == (layer == last):
                scored[name] = overlap(sites[f"L{layer}.pattern"], rule(batch))
        for head in range(model.config.n_heads):
            best = max(scored, key=lambda name: float(scored[name][head]), default=None)
            if best is not None and scored[best][head] >= FOLLOWS:
                found[layer, head] = best
    return found


def substitution(task: Task, batch: Batch, heads: dict[Head, str]) -> Hook:
    """A hook that puts each head's rule in place of its pattern, wherever the rule speaks."""
    rules = {name: RULES[task.name][name][0](batch) for name in set(heads.values())}

    def hook(site: str, value: Tensor) -> Tensor | None:
        layer, _, name = site[1:].partition(".")
        chosen = [(h, rules[r]) for (at, h), r in heads.items() if str(at) == layer]
        if name != "pattern" or not chosen:
            return None
        value = value.clone()
        for head, rule in chosen:
            speaks = rule.speaks[..., None]
            value[:, head] = torch.where(speaks, rule.pattern, value[:, head])
        return value

    return hook


def copying_gain(
    model: AttentionOnlyTransformer, head: Head | None, tokens: Int[Tensor, " n"]
) -> float:
    """How far attention to a token lifts its own logit above the others', in logits; the mean of `tokens`.

    W_E W_V W_O W_U between these tokens, diagonal less the rest. For None, the direct path W_E W_U.
    """
    E, U = model.W_E[tokens], model.W_U[:, tokens]
    if head is not None:
        E = E @ model.W_V[head] @ model.W_O[head]
    table = E @ U
    n = len(tokens)
    own = table.diagonal().sum()
    return float(own / n - (table.sum() - own) / (n * (n - 1)))


def told_logits(
    model: AttentionOnlyTransformer, task: Task, batch: Batch, heads: dict[Head, str]
) -> tuple[Float[Tensor, "batch pos d_vocab"], dict[str, float]]:
    """Logits of the story alone, and the numbers that it keeps: one gain for each rule that answers.

    Attention by the rule, times the gain of all heads that follow it, on the token looked at. In
    the copying task the direct path is such a part too.
    """
    n, total = model.config.d_vocab, 0.0
    tokens = batch.targets[batch.scored].unique()
    seen = one_hot(batch.inputs, n).float()
    gains: dict[str, float] = {}
    for head, name in heads.items():
        if RULES[task.name][name][1]:
            gains[name] = gains.get(name, 0.0) + copying_gain(model, head, tokens)
    if task.name == "copying":
        gains["itself"] = gains.get("itself", 0.0) + copying_gain(model, None, tokens)
    for name, gain in gains.items():
        rule = RULES[task.name][name][0](batch)
        looked = (rule.pattern * rule.speaks[..., None]) @ seen
        total = total + gain * looked
    return torch.zeros(*seen.shape) + total, gains


def grammar_logits(
    model: AttentionOnlyTransformer, batch: Batch
) -> tuple[Float[Tensor, "batch pos d_vocab"], int]:
    """Logits of a one-layer model's grammar from small tables, and how many numbers these hold.

    Three tables: the mean attention of each head from each destination to each source (what its QK
    circuit comes to), what it moves from each source to the four answers (OV circuit), and the mean
    of all the rest by destination. Answers in logits; -inf for all other tokens.
    """
    inputs, asked = batch.inputs, batch.scored
    sources, answers = slice(1, 1 + FACTS), slice(1 + 2 * FACTS, 1 + 3 * FACTS)
    source = torch.where(inputs <= FACTS, inputs, 0).amax(1) - 1
    destination = (inputs - 1 - FACTS).clamp(0, FACTS - 1)
    sites = cache(model, inputs)
    at_source = ((inputs >= 1) & (inputs <= FACTS))[:, None, None]
    weights = (sites["L0.pattern"] * at_source).sum(-1).transpose(0, 1)  # (head, batch, pos)
    tables = model.W_E[sources] @ model.W_V[0] @ model.W_O[0] @ model.W_U[:, answers]
    moved = tables[:, source][:, :, None]  # (head, batch, 1, answer)
    rest = sites["logits"][..., answers] - (weights[..., None] * moved).sum(0)
    for_each = [asked & (destination == b) for b in range(FACTS)]
    from_each = source[:, None] == torch.arange(FACTS)[:, None, None]  # (source, batch, 1)
    attention = torch.stack(
        [torch.stack([weights[:, here & a].mean(1) for a in from_each], 1) for here in for_each], 1
    )  # (head, destination, source)
    remaining = torch.stack([rest[here].mean(0) for here in for_each])
    logits = torch.full((*inputs.shape, model.config.d_vocab), -math.inf)
    paid = attention[:, destination, source[:, None]]
    logits[..., answers] = remaining[destination] + (paid[..., None] * moved).sum(0)
    return logits, attention.numel() + tables.numel() + remaining.numel()


def measured(model: AttentionOnlyTransformer, task: Task, batch: Batch) -> dict:
    """Score of the story of a model that solves its task; plain values, as the leaderboard has them.

    `patterns` and `story` are shares of the loss that removing the explained heads costs, won back
    by the rules as patterns and by the story alone; `agrees` how often story and model say the same;
    `left` the share of right answers without the explained heads; `numbers` what the story keeps.
    """
    if task.name == "grammar":
        heads = {(0, h): "source" for h in range(model.config.n_heads)}
        logits, numbers = grammar_logits(model, batch)
        gains: dict[str, float] = {}
    else:
        heads = followers(model, task, batch)
        logits, gains = told_logits(model, task, batch, heads)
        numbers = len(gains)
    full = performance(model, batch)
    row: dict = {
        "heads": {f"L{layer}H{head}": name for (layer, head), name in heads.items()},
        "gains": gains,
        "numbers": numbers,
        "weights": sum(p.numel() for p in model.parameters()),
        "story_loss": scores(logits, batch)["loss"],
    }
    own = model(batch.inputs).argmax(-1)
    row["agrees"] = float((own == logits.argmax(-1))[batch.scored].float().mean())
    if not heads:
        return row
    without = performance(model, batch, ablation_hook(heads))
    row |= {"left": without["accuracy"], "without_loss": without["loss"]}
    if without["loss"] > full["loss"]:  # else there is nothing to win back
        row["story"] = recovered(full["loss"], without["loss"], row["story_loss"])
        if task.name != "grammar":
            ruled = performance(model, batch, substitution(task, batch, heads))["loss"]
            row["patterns"] = recovered(full["loss"], without["loss"], ruled)
    return row


def longest_ago(batch: Batch, window: int) -> Int[Tensor, "batch pos"]:
    """The token, of those in the last `window` positions, whose latest copy is oldest: no matching needed.

    In a loop it is always the next one; in a repeat it is as long as every older one has been said again.
    """
    inputs = batch.inputs
    n = inputs.shape[1]
    same = inputs[:, :, None] == inputs[:, None, :]
    place = torch.arange(n)
    seen = place <= place[:, None]  # (dest, src)
    again = (same[:, None] & (place[:, None] < place)[None, None] & seen[None, :, None]).any(-1)
    candidate = seen & (place > place[:, None] - window) & (inputs > 0)[:, None] & ~again
    return inputs.gather(1, candidate.float().argmax(-1))


def beside_shortcut(model: AttentionOnlyTransformer, task: Task, batch: Batch) -> dict[str, float]:
    """How a model compares with `longest_ago`: share of equal answers, and of right ones beyond it.

    Keys `shortcut` (its own share of right answers), `same`, and `beyond`: the model's share of right
    answers where the shortcut is wrong, if there are such places. Empty for other tasks.
    """
    if task.name not in WINDOWS:
        return {}
    rule = longest_ago(batch, WINDOWS[task.name])[batch.scored]
    own = model(batch.inputs).argmax(-1)[batch.scored]
    right = rule == batch.targets[batch.scored]
    row = {"shortcut": float(right.float().mean()), "same": float((own == rule).float().mean())}
    if not bool(right.all()):
        row["beyond"] = float((own == batch.targets[batch.scored])[~right].float().mean())
    return row
