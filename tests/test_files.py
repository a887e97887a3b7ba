"""A file is whole or not there."""

import pytest

from pathsum.files import moved_into_place, write_atomically


def test_text_is_written_into_folders_that_are_made_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "new" / "folder" / "page.html"
    write_atomically(path, "é\n")
    write_atomically(path, "ü\n")
    assert path.read_bytes() == "ü\n".encode()
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]


def test_after_an_error_the_old_file_stands_and_no_other(tmp_path):
    path = tmp_path / "weights"
    path.write_text("old")
    with pytest.raises(OSError, match="disk"), moved_into_place(path) as temporary:
        temporary.write_text("half of the n")
        raise OSError("the disk is full")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "log"
    path.write_text("old")
    with moved_into_place(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old" and temporary.parent == path.parent
    assert path.read_text() == "new"
