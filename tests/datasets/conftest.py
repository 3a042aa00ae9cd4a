import pytest

from keras_largeout.datasets import tabular_files


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(tabular_files, "_BLOCK_ROWS", 10)
