"""The claim on the phase change can fail: on records in which things do not come together."""

import pytest
import torch

from pathsum.checkpoints import training_log
from pathsum.claims_training import Course, course, measure_phase

STEPS = [0, 1, 2, 4, 8, 16]
PREFIX = torch.tensor([0.0, 0.0, 0.01, 0.3, 0.5, 0.6])  # a tenth at step 4, half of it there too
FLAT = Course(STEPS, torch.full((6,), -0.02), torch.zeros(6))


def two_layers(*in_context: float) -> Course:
    return Course(STEPS, torch.tensor(in_context), PREFIX)


def test_the_window_is_from_a_tenth_to_half_of_the_final_score():
    assert two_layers(*6 * [0.0]).window() == (2, 3)
    slow = Course(STEPS, torch.zeros(6), torch.tensor([0.0, 0.05, 0.2, 0.3, 0.4, 0.8]))
    assert slow.window() == (1, 4)


def test_the_steepest_fall_must_lie_in_the_window():
    together = measure_phase(two_layers(0.0, 0.0, -0.05, -0.3, -0.35, -0.4), FLAT)
    assert together.verdict == "holds" and together.number == pytest.approx(0.625)
    assert "steps 2 to 4, within these" in together.detail
    earlier = measure_phase(two_layers(0.0, -0.25, -0.0, -0.24, -0.35, -0.4), FLAT)
    assert earlier.verdict == "weaker" and "outside these" in earlier.detail
    later = measure_phase(two_layers(0.0, 0.0, 0.0, -0.05, -0.1, -0.4), FLAT)
    assert later.verdict == "not seen"


def test_one_layer_must_stay_flat_meanwhile():
    same = two_layers(0.0, 0.0, -0.05, -0.3, -0.35, -0.4)
    assert measure_phase(same, same).verdict == "not seen"


def test_the_course_of_a_shipped_run_follows_the_head_that_is_best_at_the_end():
    log = training_log("attn-only-2l")
    found = course(log)
    assert found.prefix[-1] == max(map(max, log[-1]["prefix_matching"]))
    assert len(found.steps) == len(found.in_context) == len(log)
    with pytest.raises(ValueError, match="no heads"):
        course(training_log("attn-only-0l"))
