"""Synthetic tasks and the stories told of tiny models: slow loops, weights by hand, and what the file says."""

import re
from dataclasses import replace

import pytest
import torch

from pathsum import leaderboard
from pathsum.references import reference
from pathsum.stories import (
    FOLLOWS,
    Rule,
    beside_shortcut,
    followers,
    grammar_logits,
    longest_ago,
    measured,
    overlap,
    substitution,
    told_logits,
)
from pathsum.synthetic import D_VOCAB, FACTS, MODES, N_CTX, TASKS, task_named
from pathsum.tiny import BATCH, MOST_STEPS, SIZES, unseen_batch, performance, trained


@pytest.fixture(params=TASKS)
def task(request):
    return TASKS[request.param]


def batch_of(task, count=24, seed=3):
    return task.draw(count, torch.Generator().manual_seed(seed))


def right_answer(name: str, row: list[int], place: int) -> int:
    """What to say after `place`, by looking."""
    now = row[place]
    if name == "copying":
        return now
    if name == "previous" or (name == "modes" and row[1] == MODES[1]):
        return row[place - 1]
    if name == "grammar":
        source = next(t for t in row if 1 <= t <= FACTS) - 1
        return 9 + (source + now - 1 - FACTS) % FACTS
    return row[row.index(now) + 1]  # what came after it the first time


def test_every_answer_that_is_asked_for_is_the_right_one(task):
    batch = batch_of(task)
    assert batch.scored.any(1).all() and batch.inputs.shape[1] <= N_CTX
    assert int(batch.inputs[:, 0].max()) == 0 and int(batch.inputs.max()) < D_VOCAB
    for row, target, asked in zip(*(t.tolist() for t in vars(batch).values())):
        for place in (i for i, yes in enumerate(asked) if yes):
            assert target[place] == right_answer(task.name, row, place)


def test_the_same_generator_draws_the_same_sequences(task):
    assert torch.equal(batch_of(task).inputs, batch_of(task).inputs)
    assert not torch.equal(batch_of(task).inputs, batch_of(task, seed=4).inputs)


def test_weights_written_by_hand_solve_every_task(task):
    assert performance(reference(task.name), unseen_batch(task))["accuracy"] == 1


def test_the_story_of_weights_written_by_hand_is_complete(task):
    model, batch = reference(task.name), batch_of(task)
    row = measured(model, task, batch)
    assert row["agrees"] == 1
    if task.name != "copying":  # which has no head to explain
        assert row["story"] == pytest.approx(1, abs=1e-4) and row["left"] == 0
    if task.name not in ("copying", "grammar"):
        assert row["patterns"] == pytest.approx(1, abs=1e-4)
        assert set(row["gains"].values()) == {25.0}  # the gain that was written


def test_a_longer_chain_of_weights_gives_another_gain():
    batch = batch_of(TASKS["recall"])
    row = measured(reference("recall", gain=31.0), TASKS["recall"], batch)
    assert list(row["gains"].values()) == pytest.approx([31.0])


def test_overlap_is_one_for_the_rule_itself_and_none_elsewhere():
    pattern = torch.eye(5).expand(3, 2, 5, 5).clone()
    pattern[:, 1] = torch.eye(5)[[0, 0, 1, 2, 3]]
    speaks = torch.tensor([False, True, True, True, True]).expand(3, -1)
    rule = Rule(torch.eye(5).expand(3, -1, -1), speaks)
    assert overlap(pattern, rule).tolist() == [1, 0]


def test_heads_of_random_weights_follow_no_rule():
    model, batch = leaderboard.load_tiny("repeats", "2 layers, 2 heads"), batch_of(TASKS["repeats"])
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(0)) * 0.01)
    assert followers(model, TASKS["repeats"], batch) == {} and FOLLOWS > 0.5


def test_a_substituted_pattern_is_the_rule_where_it_speaks_and_the_models_elsewhere():
    task, batch = TASKS["modes"], batch_of(TASKS["modes"])
    hook = substitution(task, batch, {(1, 1): "one back, if told"})
    value = torch.rand(len(batch.inputs), 2, N_CTX, N_CTX)
    changed = hook("L1.pattern", value)
    speaks = batch.scored & (batch.inputs[:, 1:2] == MODES[1])
    assert torch.equal(changed[:, 0], value[:, 0])
    assert torch.equal(changed[:, 1][~speaks], value[:, 1][~speaks])
    one_back = torch.eye(N_CTX)[(torch.arange(N_CTX) - 1).clamp_min(0)].expand_as(changed[:, 1])
    assert torch.equal(changed[:, 1][speaks], one_back[speaks])
    assert hook("L0.pattern", value) is None and hook("L1.z", value) is None


def test_told_logits_are_the_gain_on_the_token_looked_at():
    task, batch = TASKS["previous"], batch_of(TASKS["previous"])
    logits, gains = told_logits(reference("previous"), task, batch, {(0, 0): "one back"})
    assert gains == {"one back": pytest.approx(25.0)}
    assert torch.equal(logits.argmax(-1)[batch.scored], batch.targets[batch.scored])
    assert float(logits.sum(-1)[0, 5]) == pytest.approx(25.0)


def test_a_grammar_by_hand_is_its_tables():
    batch = batch_of(TASKS["grammar"])
    logits, numbers = grammar_logits(reference("grammar"), batch)
    assert numbers == 2 * FACTS * FACTS**2 + FACTS**2
    assert torch.equal(logits.argmax(-1)[batch.scored], batch.targets[batch.scored])


def test_the_shortcut_says_what_a_slow_loop_says():
    batch, window = batch_of(TASKS["repeats"]), 20
    given = longest_ago(batch, window)
    for row, answers in zip(batch.inputs.tolist(), given.tolist()):
        for place in range(window, N_CTX):
            inside = range(max(1, place - window + 1), place + 1)
            latest = {row[i]: i for i in inside}  # later copies overwrite earlier ones
            assert answers[place] == row[min(latest.values())]


def test_the_shortcut_solves_loops_without_any_matching():
    batch = unseen_batch(TASKS["loops"])
    row = beside_shortcut(reference("loops"), TASKS["loops"], batch)
    assert row == {"shortcut": 1.0, "same": 1.0}
    assert beside_shortcut(reference("recall"), TASKS["recall"], unseen_batch(TASKS["recall"])) == {}


def test_a_tiny_model_learns_in_seconds_what_it_can_and_not_what_it_cannot():
    _, record = trained(TASKS["previous"], SIZES["1 layer, 1 head"], steps=600)
    assert record["solved"] and record["steps"] < 600
    _, record = trained(TASKS["previous"], SIZES["0 layers"], steps=200)
    assert not record["solved"] and record["accuracy"] < 0.1


def test_training_is_the_same_twice():
    small = replace(SIZES["1 layer, 1 head"], d_model=16, d_head=8)
    one, other = (trained(TASKS["previous"], small, steps=20)[0] for _ in range(2))
    assert torch.equal(one.W_E, other.W_E)


@pytest.mark.parametrize(("name", "size"), leaderboard.SHIPPED)
def test_a_shipped_model_has_the_accuracy_of_the_file(name, size):
    model = leaderboard.load_tiny(name, size)
    row = next(
        r for r in leaderboard.results() if (r["task"], r["size"], r["seed"]) == (name, size, 0)
    )
    assert performance(model, unseen_batch(TASKS[name]))["accuracy"] == pytest.approx(
        row["accuracy"], abs=2e-3
    )


def test_the_file_has_every_run_once_and_its_stories_only_where_the_task_is_solved():
    rows = leaderboard.results()
    assert [(r["task"], r["size"], r["seed"]) for r in rows] == list(leaderboard.runs())
    for row in rows:
        assert row["solved"] == ("agrees" in row)
        assert row["seconds"] < 120  # about a minute


def test_what_one_layer_cannot_do_it_did_not_do_and_smeared_keys_did():
    best = {}
    for row in leaderboard.results():
        key = row["task"], row["size"]
        best[key] = max(best.get(key, 0.0), row["accuracy"])
    for size in ("1 layer, 1 head", "1 layer, 2 heads", "1 layer, 4 heads"):
        assert best["recall", size] < 0.3
    assert best["recall", "1 layer, 1 smeared head"] > 0.99
    assert best["recall", "2 layers, 2 heads"] > 0.99


def test_the_chapter_says_what_the_code_does(root):
    prose = (root / "book" / "synthetic-models.md").read_text(encoding="utf-8")
    assert f"{MOST_STEPS:,} steps of {BATCH} sequences" in prose
    assert f"at least {FOLLOWS:.0%} of its attention".replace("%", " %") in prose
    one = max(
        r["accuracy"] for r in leaderboard.results()
        if r["task"] == "repeats" and r["size"].startswith("1 layer")
    )
    assert f"some {100 * one:.0f} % this way" in prose


def test_wrong_names_are_refused_with_what_there_is():
    with pytest.raises(ValueError, match=re.escape("there is no task 'xor': choose one of copying")):
        task_named("xor")
    with pytest.raises(ValueError, match="there is no task"):
        reference("xor")
    with pytest.raises(ValueError, match="there is no size '9 layers'"):
        leaderboard.load_tiny("recall", "9 layers")
    with pytest.raises(ValueError, match="the package has no model of '0 layers' for 'recall'"):
        leaderboard.load_tiny("recall", "0 layers")
