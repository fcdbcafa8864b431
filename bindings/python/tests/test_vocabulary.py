"""Tests vocabularies of a bank: values to ids and back, counts, thresholds, settings, closing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import embank


def test_numbers_get_dense_ids_and_come_back(bank: embank.Bank) -> None:
    users = bank.vocabulary("user", first_id=2, unknown_id=1)
    ids = users.ids_or_insert(np.array([900, -1, 900], dtype=np.int64))
    assert ids.dtype == np.uint64 and ids.tolist() == [2, 3, 2]
    assert (len(users), users.next_id, users.first_id, users.kind) == (2, 4, 2, "u64")
    assert users.ids([7, 900]).tolist() == [embank.UNKNOWN_ID, 2]
    assert users.lookup([7, 900]).tolist() == [1, 2]
    values = users.values(ids)
    assert isinstance(values, np.ndarray) and values.tolist() == [900, 2**64 - 1, 900]
    assert users.ids([]).tolist() == []
    assert users.values([]).tolist() == []  # type: ignore[union-attr]
    assert repr(users) == "<embank.Vocabulary 'user' of u64 values>".replace("'", '"')


def test_strings_are_bytes_and_text(bank: embank.Bank) -> None:
    words = bank.vocabulary("word", "bytes")
    assert words.ids_or_insert(["grün", b"", np.bytes_(b"x")]).tolist() == [0, 1, 2]
    assert words.ids(np.array(["x", "y"])).tolist() == [2, embank.UNKNOWN_ID]
    assert words.values([2, 0, 1]) == [b"x", "grün".encode(), b""]
    wrong: Any
    for wrong in ("abc", b"abc", [1], [None]):
        with pytest.raises(TypeError, match="bytes or str"):
            words.ids(wrong)
    with pytest.raises(TypeError, match="not StringScalar: give array.to_pylist"):
        words.ids(pyarrow.array(["x"]))
    # The default kind is "u64". The call has made the vocabulary, so another kind needs
    # `drop_vocabulary` first.
    with pytest.raises(TypeError, match=r'must be integers.*"bytes".*drop_vocabulary\("number"\)'):
        bank.vocabulary("number").ids(["a"])
    bank.drop_vocabulary("number")
    assert bank.vocabulary("number", "bytes").ids_or_insert(["a"]).tolist() == [0]


def test_counts_and_a_threshold(bank: embank.Bank) -> None:
    items = bank.vocabulary("item", counts=True)
    items.count(items.ids_or_insert([5, 6, 5, 7]))
    items.count([1], [9])
    assert items.counts([0, 1, 2]).tolist() == [2, 10, 1]
    table = bank.table("item", dim=2, vocabulary="item")
    assert items.keep_frequent(2) == (2, 1)
    assert items.ids([5, 6, 7]).tolist() == [0, 1, embank.UNKNOWN_ID]
    with pytest.raises(embank.TableMismatch, match="renumbered"):
        bank.open_table("item")
    # After the renumbering, the table's rows would belong to other values.
    with pytest.raises(embank.TableMismatch, match="renumbered"):
        table.peek([0])
    with pytest.raises(ValueError, match="has no counts"):
        bank.vocabulary("other").counts([])


def test_a_table_needs_its_vocabulary_first(bank: embank.Bank) -> None:
    """Shows that the error names the missing vocabulary. It once spoke of rows of a table that did
    not exist, and its cures were wrong."""
    with pytest.raises(embank.NoSuchVocabulary, match='no vocabulary "brand".*make it first, with bank'):
        bank.table("brand", dim=2, vocabulary="brand")
    assert bank.tables() == []
    bank.vocabulary("brand", "bytes", first_id=1, unknown_id=0)
    bank.table("brand", dim=2, vocabulary="brand")


def test_a_table_made_before_the_renumbering_is_made_anew(bank: embank.Bank) -> None:
    items = bank.vocabulary("item", counts=True)
    items.count(items.ids_or_insert([5, 6, 5]))
    bank.table("item", dim=2, vocabulary="item")
    items.keep_frequent(2)
    with pytest.raises(embank.TableMismatch, match="min_count.*after the pipeline's first run") as error:
        bank.table("item", dim=2, vocabulary="item")
    assert "values'" not in str(error.value)
    bank.drop_table("item")
    bank.table("item", dim=2, vocabulary="item")


def test_frozen_ones_and_what_they_lack(bank: embank.Bank) -> None:
    items = bank.vocabulary("item")
    items.ids_or_insert([5])
    items.frozen = True
    assert items.frozen
    for call in (items.ids_or_insert, items.lookup):
        with pytest.raises(embank.UnknownValue, match="no id for the value 6"):
            call([6])
    with pytest.raises(LookupError, match="never gave out id 1"):
        items.values([1])
    items.frozen = False
    assert items.ids_or_insert([6]).tolist() == [1]


def test_checkpoints_have_them(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
        words = bank.vocabulary("word", "bytes", value_bytes_max=8)
        words.ids_or_insert(["red", "green"])
        fingerprint = words.fingerprint
        assert bank.changed_since_checkpoint
        bank.checkpoint()
        words.ids_or_insert(["late"])
        assert words.fingerprint != fingerprint
        with pytest.raises(ValueError, match="9 bytes"):
            words.ids_or_insert(["123456789"])
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
        assert bank.vocabularies() == ["word"] and bank.tables() == []
        words = bank.open_vocabulary("word")
        assert (len(words), words.fingerprint, words.kind) == (2, fingerprint, "bytes")
        with pytest.raises(embank.VocabularyMismatch, match=r"exists with.*\w; open.*bank.open_voc"):
            bank.vocabulary("word")
        bank.drop_vocabulary("word")
        for call in (lambda: words.ids(["red"]), lambda: bank.open_vocabulary("word")):
            with pytest.raises(embank.NoSuchVocabulary):
                call()


def test_settings_out_of_range(bank: embank.Bank) -> None:
    wrong: Any
    for wrong in (
        {"kind": "text"}, {"unknown_id": 0}, {"first_id": -1}, {"first_id": 2**63},
        {"value_bytes_max": 0},
    ):
        with pytest.raises(ValueError):
            bank.vocabulary("v", **wrong)
    assert bank.vocabularies() == []


def test_a_closed_bank(tmp_path: Path) -> None:
    bank = embank.Bank(tmp_path / "bank", memory_budget="16MiB")
    items = bank.vocabulary("item")
    gone = bank.vocabulary("item")
    del gone
    bank.close()
    for call in (lambda: items.ids([1]), lambda: len(items), lambda: bank.vocabulary("item")):
        with pytest.raises(ValueError, match="bank is closed"):
            call()
    embank.Bank(tmp_path / "bank", memory_budget="16MiB").close()


def test_a_table_refuses_keys_that_are_no_ids(bank: embank.Bank) -> None:
    words = bank.vocabulary("word", "bytes")
    words.ids_or_insert(["red", "green"])
    table = bank.table("word", dim=2, optimizer=embank.SGD(lr=1.0), vocabulary="word")
    row = np.ones((1, 2), np.float32)
    for bad in (embank.UNKNOWN_ID, 2, 10**6, -1):
        for call in (
            lambda: table.get([bad]),
            lambda: table.get_distinct([bad]),
            lambda: embank.get_many([(table, [bad])]),
            lambda: table.put([bad], row),
            lambda: table.apply_gradients([bad], row),
            lambda: table.peek([bad]),
            lambda: table.peek([bad], missing="error"),
            lambda: table.initial([bad]),
            lambda: table.prefetch([bad]).rows(),
        ):
            with pytest.raises(embank.UnknownValue, match=f"key {bad % 2**64}.*no id of.*ids_or_"):
                call()
        assert not table.contains([bad]).any()
    table.get(words.ids_or_insert(["red", "blue"])).release()


def test_the_id_for_unknown_values_is_a_row_of_its_own(bank: embank.Bank) -> None:
    words = bank.vocabulary("word", "bytes", first_id=1, unknown_id=0)
    words.ids_or_insert(["red"])
    table = bank.table("word", dim=1, vocabulary="word")
    table.get(words.lookup(["red", "green"])).release()
    assert table.contains([0, 1]).all()
    with pytest.raises(embank.UnknownValue, match="lookup, which gives id 0"):
        table.get(words.ids(["green"]))


def test_modules_say_which_key_is_no_id(bank: embank.Bank) -> None:
    torch = pytest.importorskip("torch")
    import embank.torch

    words = bank.vocabulary("word", "bytes")
    words.ids_or_insert(["red"])
    table = bank.table("word", dim=2, optimizer=embank.SGD(lr=1.0), vocabulary="word")
    keys = torch.from_numpy(words.ids(["red", "green"]).astype(np.int64))
    for module in (
        embank.torch.Embedding(table),
        embank.torch.EmbeddingBag(table),
        embank.torch.Embedding(table).eval(),
    ):
        with pytest.raises(embank.UnknownValue, match="UNKNOWN_ID"):
            module(keys.view(1, 2))
    padded = embank.torch.Embedding(table, padding_idx=-1)
    assert padded(keys)[1].tolist() == [0.0, 0.0], "padding is no key"
    # Lookahead makes no row, so a loader may announce padding keys.
    assert table.lookahead(np.array([0, embank.UNKNOWN_ID], np.uint64)) == 0


def test_an_import_names_the_row_of_a_key_that_is_no_id(bank: embank.Bank, tmp_path: Path) -> None:
    words = bank.vocabulary("word", "bytes")
    words.ids_or_insert(["red", "green"])
    table = bank.table("word", dim=2, vocabulary="word")
    np.save(tmp_path / "rows.npy", np.ones((3, 2), np.float32))
    with pytest.raises(embank.FileMismatch, match="row 2.*key 2 is no id"):
        table.import_from(tmp_path / "rows.npy")
    words.ids_or_insert(["blue"])
    table.import_from(tmp_path / "rows.npy")
