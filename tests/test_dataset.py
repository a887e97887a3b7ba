"""Token ids on disk and the blocks cut from them."""

import errno
import json

import numpy as np
import pytest
import torch

from pathsum import corpus, dataset
from pathsum.dataset import blocks, encoded, heldout_documents, heldout_sample
from pathsum.tokenizer import load_tokenizer


@pytest.fixture
def story(tmp_path):
    """The name of a text file of 300 different lines, and an empty cache folder."""
    path = tmp_path / "story.txt"
    path.write_text("".join(f"Line {n}: <start> the {n * n} cats sat.\n" for n in range(300)))
    return f"file:{path}", tmp_path / "cache"


def test_blocks_equal_a_slow_loop():
    tokens = np.arange(100, 200, dtype=np.uint16)
    inputs, targets = blocks(tokens, 7, [3, 0, 13], start_id=5)
    assert inputs.shape == targets.shape == (3, 7)
    assert inputs.dtype == targets.dtype == torch.int64
    for row, block in enumerate([3, 0, 13]):
        for pos in range(7):
            assert targets[row, pos] == 100 + block * 7 + pos
            before = 5 if pos == 0 else 100 + block * 7 + pos - 1
            assert inputs[row, pos] == before


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_block_numbers_may_be_a_list_an_array_or_a_tensor(kind):
    tokens = np.arange(1, 31, dtype=np.uint16)
    assert blocks(tokens, 5, kind([1, 4]))[1][:, 0].tolist() == [6, 21]


@pytest.mark.parametrize("wrong", [-1, 14])
def test_a_block_that_does_not_exist_is_refused(wrong):
    with pytest.raises(IndexError, match=r"0..13 \(100 tokens in blocks of 7\)"):
        blocks(np.arange(100, dtype=np.uint16), 7, [0, wrong])


def test_encoded_ids_are_the_text_once_and_hold_no_start_token(story):
    name, cache = story
    data, tok = encoded(name, cache), load_tokenizer()
    assert data.train.dtype == data.heldout.dtype == np.uint16
    assert tok.start_id not in data.train and tok.start_id not in data.heldout
    text = tok.decode(data.train.tolist()) + tok.decode(data.heldout.tolist())
    [(_, original)] = corpus.documents(name)
    assert sorted(text.splitlines()) == sorted(original.splitlines())
    assert data.counts == {"file": {"train": data.train.size, "heldout": data.heldout.size}}
    assert 0 < data.heldout.size < 0.05 * data.train.size


def test_ids_are_encoded_once_and_then_read_from_disk(story, monkeypatch):
    first = encoded(*story)
    monkeypatch.setattr(dataset, "_encode", None)
    second = encoded(*story)
    assert isinstance(second.train, np.memmap)
    assert np.array_equal(first.train, second.train) and first.fingerprint == second.fingerprint


@pytest.mark.parametrize("damage", ["cut", "changed", "record"])
def test_damaged_ids_are_made_again(story, damage):
    before = encoded(*story).train.copy()
    [folder] = (story[1] / "tokens").iterdir()
    file = folder / "train.u16"
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[:-2])
    elif damage == "changed":
        content[10] ^= 1
        file.write_bytes(content)
    else:
        (folder / "record.json").write_text("{")
    assert np.array_equal(encoded(*story).train, before)
    assert len(list((story[1] / "tokens").iterdir())) == 1


def test_another_text_has_another_fingerprint(story):
    first = dataset.fingerprint(*story)
    path = story[0].removeprefix("file:")
    with open(path, "a") as file:
        file.write("One more line.\n")
    assert dataset.fingerprint(*story) != first
    assert encoded(*story).fingerprint == dataset.fingerprint(*story)


def test_a_full_disk_leaves_no_half_written_ids(story, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(dataset, "file_sha256", full)
        with pytest.raises(corpus.CorpusError, match="is full"):
            encoded(*story)
    assert list((story[1] / "tokens").iterdir()) == []
    assert encoded(*story).train.size > 0


def test_a_text_too_short_to_hold_anything_out_still_encodes(tmp_path):
    (tmp_path / "tiny.txt").write_text("Hello.")
    data = encoded(f"file:{tmp_path / 'tiny.txt'}", tmp_path)
    assert data.heldout.size == 0 and data.train.size > 0


def test_the_shipped_held_out_blocks_are_the_shipped_documents():
    inputs, targets = heldout_sample(n_ctx=256)
    tok = load_tokenizer()
    assert inputs.shape == targets.shape and inputs.shape[0] > 800 and inputs.shape[1] == 256
    assert (inputs[:, 0] == tok.start_id).all()
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert not (targets == tok.start_id).any()
    text = "".join(text for _, _, text in heldout_documents())
    assert text.startswith(tok.decode(targets[:20]).rstrip("\ufffd"))
    assert heldout_sample(n_ctx=64)[0].shape[0] >= 4 * inputs.shape[0]


def test_the_shipped_held_out_text_has_the_mixtures_proportions():
    characters: dict[str, int] = {}
    for part, _, text in heldout_documents():
        characters[part] = characters.get(part, 0) + len(text)
    total = sum(characters.values())
    assert 700_000 < total < 900_000
    assert 0.55 < characters["wikipedia"] / total < 0.66
    assert 0.06 < characters["botocore"] / total < 0.14


def test_the_choice_to_ship_takes_a_share_of_every_part():
    held = [("a", str(n), "x" * 10) for n in range(20)] + [("b", "only", "y" * 500)]
    chosen = dataset.shipped_choice(held, share=0.5)
    assert [part for part, _, _ in chosen] == ["a"] * 10 + ["b"]


def test_the_command_line_encodes_and_prints_the_held_out_text(story, capsys):
    name, cache = story
    dataset.main(["encode", name, "--cache", str(cache)])
    assert "tokens to train on" in capsys.readouterr().out
    dataset.main(["heldout", name, "--cache", str(cache)])
    part, _, text = json.loads(capsys.readouterr().out.splitlines()[0])
    assert part == "file" and text.startswith("Line ")
    with pytest.raises(SystemExit, match="error: No corpus is called 'nothing'"):
        dataset.main(["encode", "nothing", "--cache", str(cache)])
