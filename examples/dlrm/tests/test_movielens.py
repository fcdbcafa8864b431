"""Tests the reader of MovieLens-100K: the rows that it reads, and its errors for bad files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data import ClickData
from movielens import FILES, load

RATINGS = [b"user_id:token\titem_id:token\trating:float\ttimestamp:float",
           b"7\t2\t4\t300", b"9\t1\t3\t100", b"7\t1\t5\t200"]
USERS = [b"user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token",
         b"9\t30\tF\tother\t94043", b"7\t50\tM\twriter\tV3N4P"]
ITEMS = [b"item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq",
         b"1\tToy Story\t1995\tAnimation Comedy", b"2\tunknown\tunkonwn\t"]


def read(
    folder: Path,
    ratings: list[bytes] = RATINGS,
    users: list[bytes] = USERS,
    items: list[bytes] = ITEMS,
    end: bytes = b"\n",
) -> ClickData:
    folder.mkdir(exist_ok=True)
    for name, text in zip(FILES, (ratings, users, items)):
        (folder / name).write_bytes(b"".join(line + end for line in text))
    return load(folder)


def arrays(data: ClickData) -> list[object]:
    columns = [(column.name, column.values.tolist()) for column in data.columns]
    return [data.labels.tolist(), data.dense.tolist(), columns]


def test_a_rating_has_the_attributes_of_its_user_and_film(tmp_path: Path) -> None:
    data = read(tmp_path)
    assert data.labels.tolist() == [0, 1, 1]
    columns = {column.name: column for column in data.columns}
    assert columns["user"].values.tolist() == [9, 7, 7]
    assert columns["item"].values.tolist() == [1, 1, 2]
    assert columns["age"].values.tolist() == [30, 50, 50]
    starts = columns["genre"].starts
    assert starts is not None and starts.tolist() == [0, 2, 4, 5]
    assert data.dense[:, :2].tolist() == [pytest.approx([0.6, 0.5]), pytest.approx([1.0, 0.5]),
                                          pytest.approx([1.0, 0.0])]


def test_the_order_of_users_and_films_changes_nothing(tmp_path: Path) -> None:
    turned = read(tmp_path / "turned", users=[USERS[0], *USERS[:0:-1]],
                  items=[ITEMS[0], *ITEMS[:0:-1]])
    assert arrays(turned) == arrays(read(tmp_path / "plain"))


def test_lines_end_in_crlf_too_and_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    ratings, users, items = ([b"\xef\xbb\xbf" + text[0], *text[1:]]
                             for text in (RATINGS, USERS, ITEMS))
    marked = read(tmp_path / "marked", ratings, users, items, end=b"\r\n")
    assert arrays(marked) == arrays(read(tmp_path / "plain"))


@pytest.mark.parametrize("title", ["\u2028", "\x85", "\x1c", "#", '"'])
def test_a_title_may_have_any_character(tmp_path: Path, title: str) -> None:
    items = [*ITEMS, f"3\tA {title} B\t1990\tDrama".encode()]
    assert arrays(read(tmp_path / "odd", items=items)) == arrays(read(tmp_path / "plain"))


BAD = [
    ("ratings", b"7\t2\t4", "expected 4 fields .* found 3"),
    ("ratings", b"7\t2\t4\t300\t1", "expected 4 fields .* found 5"),
    ("ratings", b"", "the line is empty"),
    ("ratings", b"8\t2\t4\t300", "user_id 8 is not in .*ml-100k.user"),
    ("ratings", b"7\t5\t4\t300", "item_id 5 is not in .*ml-100k.item"),
    ("ratings", b"7\t2\tnan\t300", "rating must be a number from 1 to 5, found 'nan'"),
    ("ratings", b"7\t2\t40\t300", "rating must be a number from 1 to 5, found '40'"),
    ("ratings", b"7\t2\tgood\t300", "rating must be a number from 1 to 5"),
    ("ratings", b"7\t2\t4\tyesterday", "timestamp must be a whole number"),
    ("ratings", b"7\t2\t4\t3\0", "NUL"),
    ("users", b"9\t31\tM\tother\t1", "user_id 9 has an earlier line"),
    ("users", b"09\t31\tM\tother\t1", "user_id 9 has an earlier line"),
    ("users", b"8\t-31\tM\tother\t1", "age must be a whole number"),
    ("users", b"8\t31\tM\tother", "expected 5 fields"),
    ("items", b"2\tTwo\t1990\tDrama", "item_id 2 has an earlier line"),
    ("items", b"3\tThree\t1990.5\tDrama", "release_year must be a whole number"),
    ("items", b"3\tThree\t19900\tDrama", "release_year must be at most 9999"),
    ("items", b"3\tcaf\xe9\t1990\tDrama", "utf-8"),
]


@pytest.mark.parametrize(("part", "line", "cause"), BAD)
def test_an_error_names_file_line_and_cause(
    tmp_path: Path, part: str, line: bytes, cause: str
) -> None:
    good = {"ratings": RATINGS, "users": USERS, "items": ITEMS}
    with pytest.raises(ValueError, match=cause) as caught:
        read(tmp_path, **{part: [*good[part], line]})
    name = FILES[list(good).index(part)]
    assert str(caught.value).startswith(f"{tmp_path / name}:{len(good[part]) + 1}: ")


@pytest.mark.parametrize("part", ["ratings", "users", "items"])
def test_a_header_names_each_column_once(tmp_path: Path, part: str) -> None:
    good = {"ratings": RATINGS, "users": USERS, "items": ITEMS}[part]
    for header in (good[0].replace(b"_id:", b":"), good[0] + b"\t" + good[0]):
        with pytest.raises(ValueError, match=r":1: the header must name \w+_id once"):
            read(tmp_path, **{part: [header, *good[1:]]})
    for text, cause in (([], "the file has no lines"), (good[:1], "no rows after the header")):
        with pytest.raises(ValueError, match=f"ml-100k.*{cause}"):
            read(tmp_path, **{part: text})


def test_a_text_is_a_key_whatever_its_length(tmp_path: Path) -> None:
    users = [*USERS, b"8\t31\tM\t" + b"x" * 100_000 + b"\t1"]
    data = read(tmp_path / "long", users=users)
    assert arrays(data) == arrays(read(tmp_path / "plain"))
    assert np.unique(data.columns[4].values).size == 2
