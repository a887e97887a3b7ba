"""A training run that is watched: its curves are drawn again in the notebook after each record."""

import matplotlib.pyplot as plt
import torch
from IPython.display import display

from pathsum.figures_training import over_training
from pathsum.runs import Run, log_lines


class WatchedRun(Run):
    """A `Run` that shows held-out loss and the best prefix-matching score as they come.

    One figure is drawn into the same place after every record; the run itself, its folder and its
    checkpoints are those of `Run`. Stopped runs go on with `start(resume=True)`.
    """

    shown = None

    def record(self) -> None:
        super().record()
        self.show()

    def show(self) -> None:
        """Draw the records so far into the run's place in the notebook."""
        lines = log_lines(self.folder)
        tokens = torch.tensor([float(line["tokens"]) for line in lines])
        losses = torch.tensor([line["heldout_loss"] for line in lines])
        panels = {"held-out loss (nats)": {"this run": [(tokens, losses)]}}
        if self.config.model.n_layers:
            best = [max(line["prefix_matching"][-1]) for line in lines]
            panels["best prefix-matching score"] = {"this run": [(tokens, torch.tensor(best))]}
        fig, _ = over_training(panels, columns=len(panels), since=None)
        plt.close(fig)
        if self.shown is None:
            self.shown = display(fig, display_id=True)
        else:
            self.shown.update(fig)
