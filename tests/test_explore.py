"""The explorer: its numbers are the package's, its mistakes are lines, and a kernel runs it."""

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from pathsum.checkpoints import CheckpointError, load_model, model_names
from pathsum.explore import Explorer, explore
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.patching import ablated_losses
from pathsum.readings import reading
from pathsum.tokenizer import load_tokenizer

TEXT = "the cat & the <b>dog</b>, the cat & the"
OFF = [(0, 1), (1, 2)]
pytestmark = pytest.mark.filterwarnings("ignore:.*ipykernel.comm.Comm.*:DeprecationWarning")


@pytest.fixture(scope="module")
def two() -> AttentionOnlyTransformer:
    return load_model("attn-only-2l")


@pytest.fixture(autouse=True)
def outside_the_book(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CIRCUITS_BOOK", raising=False)


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_heads_off_give_the_losses_of_the_packages_ablation(two, kind: str, freeze: bool):
    ids = load_tokenizer().encode(TEXT)[None]
    wanted = ablated_losses(two, ids[:, :-1], ids[:, 1:], OFF, "zero", freeze)[0]
    got = reading(two, TEXT, OFF, kind, freeze)
    if kind == "zero":  # there, the mean is over the inputs alone, here also over the last token
        torch.testing.assert_close(got.losses, wanted, atol=1e-4, rtol=0)
    else:
        assert (got.losses - wanted).abs().max() > 1e-3
    same = torch.equal(got.patterns[1], reading(two, TEXT).patterns[1])
    assert same == freeze
    assert abs(float(got.following.sum()) - 1) < 1e-4


def test_a_reading_refuses_what_it_cannot_do(two):
    with pytest.raises(ValueError, match="kind must be one of"):
        reading(two, TEXT, OFF, "resample")
    with pytest.raises(IndexError, match=r"layer in 0\.\.1"):
        reading(two, TEXT, [(2, 0)])


def test_each_control_changes_what_it_should():
    view = explore("attn-only-2l", TEXT)
    picture = view.picture.value
    assert 'alt="attention of L1H7' in picture and "data:image/png" in picture
    view.head.value = 3
    assert "attention of L1H3" in view.picture.value
    view.weighted.value = True
    assert "attention × length of value of L1H3" in view.picture.value
    before = view.seen
    view.switches[0, 1].value = True
    assert view.seen is not before and "with every head on" in view.says.value
    zero = view.seen.losses
    view.kind.value = "mean"
    assert not torch.equal(view.seen.losses, zero)
    moving = view.seen.patterns
    view.freeze.value = True
    assert not torch.equal(view.seen.patterns, moving)
    view.switches[0, 1].value = False
    assert view.seen is view.intact and "every head on" not in view.says.value
    view.model.value = "attn-only-1l"
    assert len(view.switches) == 8 and view.layer.options == (0,)
    view.model.value = "attn-only-0l"
    assert "no heads" in view.picture.value and not view.switches and view.layer.disabled
    view.model.value = "attn-only-2l"
    assert "data:image/png" in view.picture.value


@pytest.mark.parametrize(("text", "words"), [("", "at least one"), ("a b " * 200, "up to 256")])
def test_a_text_it_cannot_read_becomes_a_line_and_the_next_one_is_read(text: str, words: str):
    view = explore("attn-only-1l", text)
    assert words in view.says.value and 'role="alert"' in view.says.value
    assert view.picture.value == view.table.value == "" and view.seen is None
    view.text.value = "漢字 $x$ </script>" + " and so on" * 40
    assert "Mean loss" in view.says.value and "data:image/png" in view.picture.value


def test_tokens_in_the_table_are_text(two, monkeypatch: pytest.MonkeyPatch):
    from pathsum import readouts

    seen = reading(two, TEXT)
    hostile = load_tokenizer().id_of("<")
    monkeypatch.setattr(type(seen), "likeliest", lambda self, k=5: [(hostile, 0.5)])
    assert "<samp>&lt;</samp>" in readouts.next_table(seen)


def test_a_model_of_ones_own_stands_beside_the_shipped_ones():
    own = AttentionOnlyTransformer(Config(n_layers=1, n_heads=2, d_model=16, d_head=4))
    view = explore(own, "a cat")
    assert isinstance(view, Explorer) and len(view.switches) == 2
    assert len(view.model.options) == len(model_names()) + 1
    with pytest.raises(CheckpointError, match="no model is called"):
        explore("attn-only-9l")


def test_in_the_book_it_is_a_still_picture_that_makes_no_widget(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CIRCUITS_BOOK", "1")
    monkeypatch.setattr("pathsum.explore.Explorer", None)
    page = explore("attn-only-2l", TEXT).data
    assert "open this page as a notebook" in page and 'alt="attention of L1H7' in page


CELL = """
from pathsum.explore import explore
view = explore("attn-only-1l", "the cat, the cat")
view
"""
MOVED = """
view.switches[0, 3].value = True
print(view.says.value)
"""


def test_a_jupyter_kernel_shows_the_controls_and_moves_them(tmp_path):
    cells = [nbformat.v4.new_code_cell(source) for source in (CELL, MOVED)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources)
    done = client.execute()
    (shown,) = [o for o in done.cells[0].outputs if o.output_type == "display_data"]
    name = shown.data["application/vnd.jupyter.widget-view+json"]["model_id"]
    states = done.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    assert states[name]["model_name"] == "VBoxModel"
    kinds = [state["model_name"] for state in states.values()]
    assert kinds.count("ToggleButtonModel") == 8
    assert "with every head on" in done.cells[1].outputs[0].text
    htmls = [s["state"]["value"] for s in states.values() if s["model_name"] == "HTMLModel"]
    assert any("with every head on" in value for value in htmls), "the page was not told"
