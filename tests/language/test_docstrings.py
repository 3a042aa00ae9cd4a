"""Public docstrings: which sections they have, in which order, and what they say of each argument."""

import ast
import dataclasses
import inspect
import operator
import pathlib
import re

import keras
import pytest
from language import _surface

ROOT = pathlib.Path(__file__).parents[2]
#: The one order. `Attributes` are those of an object, `Yields` is `Returns` of a context.
SECTIONS = (
    "Args",
    "Attributes",
    "Call arguments",
    "Input shape",
    "Output shape",
    "Returns",
    "Yields",
    "Raises",
    "Example",
    "References",
)
_TITLE = re.compile(r"^([A-Z][a-z]+(?: [a-z]+)?):$", re.MULTILINE)
#: A title with its text on the same line, or another word for one of the sections.
_NO_SECTION = re.compile(r"^(Sources?|References?|Examples?|Output)\b: ", re.MULTILINE)
_ENTRY = re.compile(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*): ", re.MULTILINE)
_DEFAULT = re.compile(r"Defaults\s+to\s+`([^`]*)`")
#: An argument that another class describes: its default is the one there.
_AS_IN = re.compile(r"as\s+in\s+`(?:keras_largeout\.|kl\.)?([\w.]+)`")


def _hidden():
    """Return the pattern of the names that the reference leaves out: mkdocs.yml lists them."""
    filters = re.findall(r'- "!(\^.*)"', (ROOT / "mkdocs.yml").read_text())
    return re.compile("|".join(filters))


def sections_of(text):
    """Return `{title: text}` of a docstring, in its order; the text before the first one is at ""."""
    parts = _TITLE.split(text)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2]))}


def entries_of(section):
    """Return `{name: text}` of a section with an entry for each name."""
    parts = _ENTRY.split(f"{section}\n")
    return {name: text for names, text in zip(parts[1::2], parts[2::2]) for name in names.split(", ")}


def _documented():
    """Yield `(name, docstring, signature)` of what the reference shows; the constructor is in its class."""
    hidden = _hidden()
    for name, value in _surface.public_objects():
        for function_name, function in _surface.own_functions(name, value):
            method = function_name.rpartition(".")[2] if inspect.isclass(value) else None
            if method is not None and (hidden.match(method) or not function.__doc__):
                continue
            yield function_name, inspect.getdoc(function), inspect.signature(function)
        if inspect.isclass(value):
            made_here = value.__init__.__module__.startswith("keras_largeout") or dataclasses.is_dataclass(
                value
            )
            yield name, inspect.getdoc(value), inspect.signature(value) if made_here else None


DOCUMENTED = {name: rest for name, *rest in _documented()}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_sections_are_known_and_in_order(name):
    text, _ = DOCUMENTED[name]
    titles = [title for title in sections_of(text) if title]
    assert set(titles) <= set(SECTIONS), f"unknown: {set(titles) - set(SECTIONS)}"
    assert titles == sorted(titles, key=SECTIONS.index)
    assert not _NO_SECTION.search(text), _NO_SECTION.search(text)[0]


def test_classes_and_functions_have_an_example():
    """Errors need none: a user does not make one."""
    for name, value in _surface.public_objects():
        an_error = inspect.isclass(value) and issubclass(value, Exception)
        assert an_error or "Example" in sections_of(inspect.getdoc(value)), name


def _default_elsewhere(entry, name):
    """Return the default of the argument in the class that its entry names; a new object without one."""
    for path in _AS_IN.findall(entry):
        found = dict(_surface.public_objects()).get(f"keras_largeout.layers.{path}")
        if path.startswith("keras."):
            found = operator.attrgetter(path.partition(".")[2])(keras)
        if found is not None:
            return inspect.signature(found).parameters[name].default
    return object()


def _wrong_default(parameter, entry):
    """Return what is wrong with the default that an entry names; None where nothing is."""
    if "dataclass" in type(parameter.default).__module__ or "factory" in repr(parameter.default):
        return None if re.search(r"Defaults\s+to", entry) else "it has a default"
    said = _DEFAULT.search(entry)
    if said is None and _default_elsewhere(entry, parameter.name) == parameter.default:
        return None
    try:
        if said and ast.literal_eval(said[1]) == parameter.default:
            return None
    except (SyntaxError, ValueError):
        pass
    return f"the default is {parameter.default!r}, not {said and said[1]}"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_arguments_are_described_with_their_defaults(name):
    """Each argument has an entry with "Defaults to `x`." Fields of a dataclass may be attributes instead."""
    text, signature = DOCUMENTED[name]
    sections = sections_of(text)
    arguments, attributes = entries_of(sections.get("Args", "")), entries_of(sections.get("Attributes", ""))
    wrong = []
    for parameter in signature.parameters.values() if signature else ():
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        entry = arguments.get(stars + parameter.name)
        if parameter.name in ("self", "cls") or (not arguments and parameter.name in attributes):
            continue
        if entry is None:
            wrong.append(f"{parameter.name} is not described")
        elif parameter.default is not parameter.empty and (fault := _wrong_default(parameter, entry)):
            wrong.append(f"{parameter.name}: {fault}")
    assert not wrong, "\n".join(wrong)
