"""The tokenizer: round trips, the one start token, printable forms, names of tokens."""

import json
import random

import pytest
import tokenizers
import torch

from pathsum import dataset
from pathsum import tokenizer as module
from pathsum.model import Config
from pathsum.presets import TrainConfig
from pathsum.runs import Run
from pathsum.tokenizer import START, load_tokenizer, save_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def tok():
    return load_tokenizer()


def test_the_shipped_tokenizer_has_4096_tokens_and_start_is_0(tok):
    assert tok.d_vocab == 4096 and tok.start_id == 0
    assert tok.token_strings([0]) == [START]


TEXTS = {
    "English": "The cat sat on the mat.\n\n  It's 10,000 o'clock.",
    "code": "def f(x):\n\treturn {'a': x ** 2}  # ok\r\n",
    "accents": "Čeština, français, Größe, ñandú, İstanbul",
    "other scripts": "日本語のテキスト, العربية, हिन्दी, Ελληνικά",
    "emoji": "👩‍👩‍👧‍👦 🇨🇿 🏳️‍🌈 👍🏽",
    "controls": "\x00\x01\x7f\u200b\u202e\ufeff\u2028",
    "spaces": "   \n \t\t \u00a0 ",
    "empty": "",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_decoding_gives_back_the_text(tok, text):
    assert tok.decode(tok.encode(text)) == text
    assert tok.decode(tok.encode(text, start=False)) == text


def test_decoding_gives_back_random_characters_of_all_planes(tok):
    draw = random.Random(0)
    planes = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    for _ in range(300):
        text = "".join(chr(draw.randrange(*draw.choice(planes))) for _ in range(draw.randrange(50)))
        assert tok.decode(tok.encode(text)) == text


def test_any_bytes_read_as_latin_1_come_back(tok):
    draw = random.Random(1)
    for _ in range(100):
        text = bytes(draw.randrange(256) for _ in range(200)).decode("latin-1")
        assert tok.decode(tok.encode(text, start=False)) == text


def test_decoding_agrees_with_the_tokenizers_library(tok):
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        ids = torch.randint(1, tok.d_vocab, (40,), generator=draw)
        assert tok.decode(ids) == tok.inner.decode(ids.tolist())


def test_the_start_token_stands_once_and_first_or_not_at_all(tok):
    ids = tok.encode("A short text.")
    assert ids.dtype == torch.int64 and ids[0] == tok.start_id
    assert (ids == tok.start_id).sum() == 1
    assert torch.equal(tok.encode("A short text.", start=False), ids[1:])
    assert tok.encode("").tolist() == [tok.start_id]


@pytest.mark.parametrize("text", [START, f"a {START}{START} b", "<start", "< start >", "\x00"])
def test_text_that_looks_like_the_start_token_is_ordinary_text(tok, text):
    ids = tok.encode(text, start=False)
    assert tok.start_id not in ids.tolist()
    assert tok.decode(ids) == text


def test_every_byte_is_a_token_of_its_own(tok):
    singles = [raw for raw in tok.token_bytes if len(raw) == 1]
    assert sorted(singles) == [bytes([byte]) for byte in range(256)]
    assert len(set(tok.token_bytes)) == tok.d_vocab


@pytest.mark.parametrize(
    "text, shown",
    [
        (" the", ["·the"]),
        ("\n", ["↵"]),
        ("\tx", ["⇥", "x"]),
        ("\r", ["␍"]),
        ("\x00", ["0x00"]),
        ("\u4e01", ["0xE4", "0xB8", "0x81"]),
        ("é", ["é"]),
    ],
)
def test_token_strings_make_every_token_visible(tok, text, shown):
    ids = tok.encode(text, start=False)
    assert tok.token_strings(ids) == shown


def test_all_token_strings_are_printable_and_none_is_empty(tok):
    strings = tok.token_strings(range(tok.d_vocab))
    assert all(s and s.isprintable() and " " not in s for s in strings)


def test_a_part_of_a_character_is_shown_as_its_byte(tok):
    euro = tok.token_bytes.index(b"\xe2")
    assert tok.token_strings([euro]) == ["0xE2"]
    assert tok.decode([euro]) == "\ufffd"


def test_id_of_finds_tokens_by_their_text(tok):
    for text in (" the", "\n", "def", START):
        assert tok.token_strings([tok.id_of(text)]) == [text.replace(" ", "·").replace("\n", "↵")]
    the = tok.id_of(" the")
    assert tok.encode(" the", start=False).tolist() == [the]


def test_id_of_a_longer_text_names_near_tokens(tok):
    with pytest.raises(KeyError) as caught:
        tok.id_of(" induction")
    message = str(caught.value)
    assert "is not one token but" in message and "near ones" in message
    assert "·" in message


@pytest.mark.parametrize("wrong", [-1, 4096])
@pytest.mark.parametrize("method", ["decode", "token_strings"])
def test_ids_out_of_range_are_refused(tok, method, wrong):
    with pytest.raises(ValueError, match=f"0..4095, got {wrong}"):
        getattr(tok, method)([1, wrong])


def test_tensors_lists_and_ranges_of_ids_are_read_alike(tok):
    ids = tok.encode("one two three")
    assert tok.decode(ids) == tok.decode(ids.tolist()) == tok.decode(ids.int().unsqueeze(0))


def test_a_trained_tokenizer_learns_frequent_strings_and_is_saved_whole(tmp_path):
    texts = ["banana bandana <start> " * 50, "é" * 50]
    trained = train_tokenizer(texts, d_vocab=300)
    assert trained.d_vocab <= 300
    assert trained.token_strings(trained.encode(" banana", start=False)) == ["·banana"]
    assert trained.start_id not in trained.encode("<start>", start=False).tolist()
    save_tokenizer(trained, tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]
    assert torch.equal(again.encode("bandana é"), trained.encode("bandana é"))
    assert again.file_text == trained.file_text


def test_training_twice_gives_the_same_tokenizer():
    texts = ["the cat and the dog and the bird " * 20, "a cat, a dog, a bird " * 20]
    assert train_tokenizer(texts, 290).file_text == train_tokenizer(texts, 290).file_text


def test_a_file_that_is_no_tokenizer_is_explained(tmp_path):
    (tmp_path / "broken.json").write_text('{"model": ')
    with pytest.raises(ValueError, match="broken.json is not a tokenizers file"):
        load_tokenizer(tmp_path / "broken.json")


def test_a_tokenizer_without_the_start_token_is_refused(tmp_path):
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "other.json"))
    with pytest.raises(ValueError, match="a start token, '<start>' or GPT-2's '<.endoftext.>'"):
        load_tokenizer(tmp_path / "other.json")


@pytest.fixture
def like_gpt2(tmp_path):
    """A small tokenizer.json with GPT-2's settings: no special token but the last one."""
    inner = tokenizers.ByteLevelBPETokenizer(add_prefix_space=False)
    inner.train_from_iterator(["the cat sat on the mat, the dog did not " * 40], vocab_size=299)
    inner.add_special_tokens([module.GPT2_START])
    inner.save(str(tmp_path / "tokenizer.json"))
    return load_tokenizer(tmp_path / "tokenizer.json")


def test_gpt2s_files_are_read_with_their_special_token_as_the_start(like_gpt2, tmp_path):
    tok = like_gpt2
    last = tok.d_vocab - 1
    assert last > 256 and tok.start_id == last == tok.id_of(module.GPT2_START)
    text = "the cat's mat: é, 日本 <|endoftext|> 12\n\n  x"
    ids = tok.encode(text).tolist()
    assert ids[0] == last and last not in ids[1:], "the name in text is ordinary text"
    assert tok.decode(ids) == text
    assert tok.token_strings(ids[:2]) == [module.GPT2_START, "the"]
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    plain = "the dog sat on the cat. Did it?"
    assert ids != tok.encode(plain).tolist() == [last, *reference.encode(plain).ids]
    assert 0 in tok.encode("!", start=False), "id 0 is an exclamation mark there, not the start"


def test_blocks_of_gpt2s_ids_begin_with_its_start_token(like_gpt2, tmp_path):
    (tmp_path / "mine.txt").write_text("the cat sat on the mat, the dog did not! " * 300)
    data = dataset.encoded(f"file:{tmp_path / 'mine.txt'}", tmp_path / "cache", like_gpt2)
    assert data.start_id == like_gpt2.start_id != 0
    assert data.start_id not in data.train and 0 in data.train
    model = Config(1, 2, 8, 4, d_vocab=like_gpt2.d_vocab, n_ctx=16)
    config = TrainConfig(model=model, data="mine", steps=2, batch=4, records=1)
    run = Run(tmp_path / "run", config, data)
    assert (run.heldout[0][:, 0] == data.start_id).all()
    run.start(resume=False)
    run.train(progress=False)
    assert run.step == 2


def test_a_vocabulary_that_is_not_byte_level_is_refused(tmp_path):
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({START: 0, "two words": 1}, START))
    inner.save(str(tmp_path / "words.json"))
    with pytest.raises(ValueError, match=r"token 'two words' \(id 1\).*only byte-level BPE"):
        load_tokenizer(tmp_path / "words.json")


def test_the_command_line_trains_on_a_text_file(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("colourless green ideas sleep furiously\n" * 200)
    out = tmp_path / "mine.json"
    module.main(["train", f"file:{tmp_path / 'mine.txt'}", "--out", str(out), "--d-vocab", "280"])
    assert json.loads(out.read_text())["model"]["vocab"][START] == 0
    assert str(out) in capsys.readouterr().out
