"""Words that the project does not use: in docstrings, comments, texts of errors, and Markdown.

What a text quotes, in backticks or quotation marks, is free. Of C++ sources only comments are read.
"""

import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ("keras_largeout", "custom_ops", "tests", "examples", "benchmarks", "docs", ".ci")
CPP = (".h", ".cc", ".cu", ".cuh")
#: What not to write, and what to write in its place.
BANNED = {
    r"(?<!must )lies?(?! in [\\.]*[\[*])": "is, are; an index must lie in [0, n)",
    r"anew": "again",
    r"wants": "needs, takes, expects",
    r"(?<!there )(?:is|are) none": "is not valid, is ignored, is None",
    r"any more": "no longer",
    r"since then": "the date, or nothing",
    r"in the midst of": "during, in the middle of",
    r"for ever": "forever",
    r"[Nn]obody knows": "is unknown",
    r"[Aa]n? (?:\w+ )?\w* ?of (?:its|their|our) own": "its own ...",
}
_BANNED = re.compile("|".join(rf"\b{words}\b" for words in BANNED))
_QUOTED = re.compile(r"```.*?```|`[^`\n]*`|\"[^\"\n]*\"", re.DOTALL)


def _prose(path):
    """Return the text of a file that people read: Markdown, comments, and the strings of Python."""
    if path.suffix == ".md":
        return _QUOTED.sub("", path.read_text("utf-8"))
    if path.suffix in CPP:
        lines = re.findall("//(.*)", _QUOTED.sub("", path.read_text("utf-8")))
        return " ".join(" ".join(lines).split())
    with tokenize.open(path) as file:
        tokens = list(tokenize.generate_tokens(file.readline))
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    return "\n".join(_QUOTED.sub("", token.string.strip("\"'")) for token in tokens if token.type in kinds)


def faults(text):
    """Return the banned words of a text, each with the words before and after it."""
    return [" ".join(text[max(0, m.start() - 40) : m.end() + 40].split()) for m in _BANNED.finditer(text)]


@pytest.mark.parametrize("folder", ["", *FOLDERS])
def test_words_that_are_not_used(folder):
    found = []
    for path in sorted((ROOT / folder).rglob("*") if folder else ROOT.glob("*.md")):
        if path.suffix in (".py", ".md", *CPP) and path != pathlib.Path(__file__):
            found += [f"{path.relative_to(ROOT)}: ...{fault}..." for fault in faults(_prose(path))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text, found",
    [
        ("the rows lie on a device", True),
        ("it lies below", True),
        ("`ids` must lie in [0, 3)", False),
        ("a target of -1 is none", True),
        ("None where there is none", False),
        ("drawn anew", True),
        ("nobody needs it any more", True),
        ("in a process of its own", True),
        ("the rows of its own host", False),
    ],
)
def test_faults_are_found(text, found):
    assert bool(faults(text)) is found
