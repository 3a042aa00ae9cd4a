"""Data that every machine has: the assignments in the functions of its Python installation.

A row is an assignment to a local name in a function. Asked is: will this name be assigned again in this
function, further down? Names, functions, modules and what is called are strings of high cardinality, as users
and products are. Files differ between machines, and so do the rows.
"""

import ast
import itertools
import multiprocessing
import pathlib
import sysconfig
import warnings

from _click_through.tables import Table, Writer

CATEGORIES = ["name", "function", "class", "module", "package", "statement", "value", "called", "operand"]
CATEGORIES += ["inside", "before"]
NUMBERS = ["line", "length", "arguments", "depth"]
LABEL = "again"
CROSSES = [("name", "package"), ("name", "value"), ("name", "statement"), ("name", "inside")]
CROSSES += [("name", "function"), ("module", "function"), ("value", "called"), ("statement", "inside")]

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_MOST_BYTES = 1_000_000  # of a file: larger ones are tables in the form of a program


def table(folder, most_rows):
    """Writes the rows of as many files as give `most_rows` of them, and returns their `Table`."""
    roots = dict.fromkeys(pathlib.Path(sysconfig.get_paths()[key]) for key in ("stdlib", "purelib"))
    files = [(str(root), str(path)) for root in roots for path in sorted(root.rglob("*.py"))]
    # Files of one package are side by side: every k-th file, then the next ones, mixes the packages.
    files = [file for first in range(97) for file in files[first::97]]
    written = 0
    columns = [*CATEGORIES, *NUMBERS, LABEL]
    with Writer(folder, columns) as write, multiprocessing.get_context("spawn").Pool(2) as pool:
        for module, rows in pool.imap(_rows_of_file, files, chunksize=16):
            rows = list(itertools.islice(rows, most_rows - written))
            write(module, rows)
            written += len(rows)
            if written >= most_rows:
                pool.terminate()
                break
    return Table(
        "assignments in functions of this Python installation: will the name be assigned again further down?",
        [str(write.paths[0])],
        [str(write.paths[1])],
        CATEGORIES,
        NUMBERS,
        LABEL,
        CROSSES,
    )


def _rows_of_file(file):
    """Return the dotted name of a module, and its rows."""
    root, path = map(pathlib.Path, file)
    module = ".".join(path.relative_to(root).with_suffix("").parts)
    if path.stat().st_size > _MOST_BYTES:
        return module, []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            return module, rows_of(path.read_text(encoding="utf-8"), module)
    except (SyntaxError, ValueError, RecursionError):
        return module, []  # a template, or of another Python


def rows_of(text, module):
    """Return the rows of a module's text, each a list of values in the order of the columns."""
    rows = []
    for function, owner in _functions(ast.parse(text), ""):
        found = list(_assignments(function.body, (), ""))
        last = {name: i for i, (name, *_) in enumerate(found)}
        arguments = function.args
        taken = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
        for i, (name, node, inside, before) in enumerate(found):
            value = getattr(node, "value", None) or getattr(node, "iter", None)
            rows.append(
                [
                    name,
                    function.name,
                    owner,
                    module,
                    module.split(".", 1)[0],
                    type(node).__name__,
                    type(value).__name__,
                    _called(value),
                    _operand(value),
                    ">".join(inside[-3:]),
                    before,
                    node.lineno - function.lineno,
                    len(name),
                    taken,
                    len(inside),
                    int(last[name] > i),
                ]
            )
    return rows


def _functions(node, owner):
    """Yield all functions below a node, with the class that each is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child, owner
        yield from _functions(child, child.name if isinstance(child, ast.ClassDef) else owner)


def _assignments(body, inside, before):
    """Yield `(name, statement, the blocks around it, the statement before it)` in the order of the source."""
    for node in body:
        if isinstance(node, _NESTED):
            before = type(node).__name__
            continue
        for name in _names(node):
            yield name, node, inside, before
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield from _assignments(block, (*inside, type(node).__name__), "")
        for handler in getattr(node, "handlers", ()):
            yield from _assignments(handler.body, (*inside, "ExceptHandler"), "")
        before = type(node).__name__


def _names(node):
    """Return the local names that a statement assigns."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor)):
        targets = [node.target]
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
    else:
        return []
    flat = [leaf for target in targets for leaf in ast.walk(target)]
    return [leaf.id for leaf in flat if isinstance(leaf, ast.Name) and isinstance(leaf.ctx, ast.Store)]


def _called(value):
    """Return what is called for the value: at most the last two parts of its dotted name."""
    if not isinstance(value, ast.Call):
        return ""
    parts, node = [], value.func
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts[:2]))


def _operand(value):
    """Return the name that the value reads, the outermost of several."""
    if value is None:
        return ""
    return next((node.id for node in ast.walk(value) if isinstance(node, ast.Name)), "")
