"""The corpus of the language model example: vocabulary, split, windows, batches."""

import gzip
import importlib.util
import pathlib

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
PAD, UNKNOWN, END = 0, 1, 2


@pytest.fixture(scope="module")
def corpora():
    spec = importlib.util.spec_from_file_location("_corpus", EXAMPLES / "_corpus.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(text):
    return [*text.split(), "<end>"]


def test_index_makes_the_vocabulary_of_the_training_text_only(corpora):
    corpus = corpora.index("tiny", [words("b a a c a b"), words("c d")], [words("a z d"), words("y")])
    assert corpus.words == ["<pad>", "<unk>", "<end>", "a", "b", "c", "d"]
    assert [d.tolist() for d in corpus.train] == [[4, 3, 3, 5, 3, 4, END], [5, 6, END]]
    assert [d.tolist() for d in corpus.validation] == [[3, UNKNOWN, 6, END], [UNKNOWN, END]]
    assert all(d.dtype == np.int32 for d in corpus.train + corpus.validation)
    np.testing.assert_allclose(corpus.counts[END:], [2, 3, 2, 2, 1])
    assert np.all(corpus.counts > 0)
    assert corpus.first_rare == 6  # d alone occurs once
    assert corpus.text([3, UNKNOWN]) == "a <unk>"


def test_a_text_that_marks_unknown_words_keeps_its_rare_ones(corpora):
    corpus = corpora.index("tiny", [words("a a <unk> b")], [words("a <unk>")])
    assert corpus.first_rare == len(corpus.words) == 5
    assert corpus.counts[UNKNOWN] == 1
    assert corpus.validation[0].tolist() == [3, UNKNOWN, END]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
def test_every_word_is_a_target_once(corpora, length):
    document = np.arange(10, 10 + length, dtype=np.int32)
    document[-1] = END
    rows = corpora.windows([document, document[-2:]], steps=4)
    assert rows.dtype == np.int32 and rows.shape[1] == 5
    targets = rows[:, 1:]
    assert targets[targets != PAD].tolist() == [*document, *document[-2:]]
    assert rows[0, 0] == END
    read = rows[:, :-1][targets != PAD]
    assert read.tolist() == [END, *document[:-1], END, *document[-2:-1]]


def test_batches_mask_both_sides_alike_and_keep_the_order(corpora):
    document = np.array([5, 6, 7, 8, 9, END], np.int32)
    rows = corpora.windows([document, document[2:]], steps=4)
    pairs = [(x.numpy(), y.numpy()) for x, y in corpora.batches(rows, batch=2)]
    assert [x.shape for x, _ in pairs] == [(2, 4), (1, 4)]
    read, targets = (np.concatenate(side) for side in zip(*pairs))
    np.testing.assert_array_equal(read, [[END, 5, 6, 7], [8, 9, PAD, PAD], [END, 7, 8, 9]])
    np.testing.assert_array_equal(targets, [[5, 6, 7, 8], [9, END, PAD, PAD], [7, 8, 9, END]])


def test_training_batches_go_on_for_ever_shuffled_by_the_seed(corpora):
    rows = np.arange(3, 43, dtype=np.int32).reshape(20, 2)

    def first(seed, n=10):
        batches = corpora.batches(rows, batch=4, seed=seed).take(n)
        return np.concatenate([x.numpy() for x, _ in batches])[:, 0]

    drawn = first(seed=1)
    assert len(drawn) == 40
    for one_pass in (drawn[:20], drawn[20:]):
        assert sorted(one_pass) == rows[:, 0].tolist()
    assert drawn.tolist() != sorted(drawn)
    np.testing.assert_array_equal(drawn, first(seed=1))
    assert drawn.tolist() != first(seed=2).tolist()


def test_rare_words_are_at_times_read_as_unknown(corpora):
    rows = np.tile(np.array([[3, 4, 9]], np.int32), (2000, 1))

    def drawn():
        batches = corpora.batches(rows, batch=500, first_rare=9, seed=0).take(4)
        return (np.concatenate(side) for side in zip(*((x.numpy(), y.numpy()) for x, y in batches)))

    read, targets = drawn()
    np.testing.assert_array_equal(targets, list(drawn())[1])
    assert np.all(read == [3, 4]) and np.all(targets[:, 0] == 4)
    assert set(np.unique(targets[:, 1])) == {UNKNOWN, 9}
    assert 0.05 < np.mean(targets[:, 1] == UNKNOWN) < 0.15


def test_text_files_plain_or_compressed_a_sentence_a_line(corpora, tmp_path):
    plain, packed = tmp_path / "train.txt", tmp_path / "valid.txt.gz"
    plain.write_text(" a b \n b c\n")
    packed.write_bytes(gzip.compress(b"b c\nq\n"))
    corpus = corpora.text_files([plain], [packed])
    assert corpus.name == "train.txt"
    (train,), (validation,) = corpus.train, corpus.validation
    assert corpus.text(train) == "a b <end> b c <end>"
    assert corpus.text(validation) == "b c <end> <unk> <end>"


def test_text_files_hold_out_their_last_lines(corpora, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"w{i}\n" for i in range(20)))
    corpus = corpora.text_files([path], validation=0.1)
    assert len(corpus.train[0]) == 36 and len(corpus.validation[0]) == 4


def test_standard_library_splits_by_file_and_seed(corpora, tmp_path, monkeypatch):
    for i in range(60):
        folder = tmp_path / ("site-packages" if i >= 40 else "kept")
        folder.mkdir(exist_ok=True)
        (folder / f"m{i}.py").write_text(f"name{i} = {i}\n")
    monkeypatch.setattr(corpora.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})

    def split(**options):
        corpus = corpora.standard_library(validation=0.3, **options)
        return corpus, len(corpus.train), len(corpus.validation)

    corpus, train, validation = split(seed=0)
    assert train + validation == 40 and 4 <= validation <= 20
    assert corpus.name.startswith("40 files of the Python 3")
    assert all(len(document) == 4 and document[-1] == END for document in corpus.train)
    assert "=" in corpus.words and "name59" not in corpus.words
    assert split(seed=0)[0].words == corpus.words
    assert split(seed=1)[0].words != corpus.words
    _, train, validation = split(seed=0, share=0.5)
    assert 10 <= train + validation <= 30
