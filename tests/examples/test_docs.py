"""The pages of docs/: the blocks of a page run one after the other, in one namespace and an empty folder."""

import linecache
import pathlib
import re
import textwrap

import keras
import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
OWN_TESTS = {"guides/migrate/keras.md": "test_migration.py", "guides/search.md": "test_search_page.py"}
PAGES = {str(path.relative_to(DOCS)): path.read_text("utf-8") for path in sorted(DOCS.rglob("*.md"))}


@pytest.mark.parametrize(
    "name", [name for name, text in PAGES.items() if BLOCK.search(text) and name not in OWN_TESTS]
)
def test_blocks_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy, names = keras.config.dtype_policy(), {"__name__": "docs"}
    try:
        for block in BLOCK.finditer(PAGES[name]):
            code = textwrap.dedent(block[2])
            file = f"{name}:{PAGES[name].count(chr(10), 0, block.start()) + 1}"
            linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file  # for tf.function
            exec(compile(code, file, "exec"), names)
    finally:
        keras.config.set_dtype_policy(policy)
