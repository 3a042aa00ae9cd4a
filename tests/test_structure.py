"""The rules of the house, checked on the sources: imports run one way, kernels know no framework."""

import ast
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "keras_largeout"
OPS = ROOT / "custom_ops"

# The rooms, lowest first. A room may import itself and what is named here; everybody may import `_checks`
# and `_version`.
MAY_IMPORT = {
    "_version": set(),
    "_checks": set(),
    "trees": set(),
    "datasets": set(),
    "metrics": set(),
    "ops": set(),
    "distribute.planning": {"trees"},
    "distribute.replicas": {"ops"},
    "distribute.tables": {"distribute.replicas", "distribute.planning", "ops"},
    "distribute.outputs": {"distribute.tables", "distribute.replicas", "distribute.planning", "ops", "trees"},
    "distribute.balance": {
        "distribute.outputs",
        "distribute.tables",
        "distribute.replicas",
        "distribute.planning",
        "ops",
    },
    "distribute.cluster": {"distribute.tables", "distribute.replicas", "ops"},
    "distribute": {
        "distribute.balance",
        "distribute.cluster",
        "distribute.tables",
        "distribute.planning",
        "ops",
    },
    "optimizers": {"distribute.tables", "distribute.replicas", "ops"},
    "model": {"distribute.cluster"},
    "layers": {"model", "optimizers", "distribute", "ops", "trees"},
    "callbacks": {"layers", "distribute", "ops"},
    "export": {"layers", "distribute", "ops"},
}
# These can be read, run and tested on a machine that has none of the devices.
NUMPY_ONLY = {"trees", "distribute.planning", "_checks", "_version"}
MOST_FILES = 20


def _imports(path, within_functions=True):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if within_functions else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _sources():
    return sorted(PACKAGE.rglob("*.py"))


def _room(name):
    """The room of a module, from its name below the package."""
    return max((room for room in MAY_IMPORT if f"{name}.".startswith(f"{room}.")), key=len, default=None)


@pytest.mark.parametrize("path", _sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path):
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    if name == "__init__":
        return
    room = _room(name)
    assert room is not None, f"{name} is in no room of MAY_IMPORT"
    allowed = {room, "_checks", "_version"} | MAY_IMPORT[room]
    for imported in _imports(path):
        root, _, inside = imported.partition(".")
        if root == "keras_largeout" and inside:
            there = _room(inside)
            assert any(f"{there}.".startswith(f"{a}.") for a in allowed), f"{room} must not import {imported}"
        if room in NUMPY_ONLY:
            assert root not in ("tensorflow", "keras"), f"{room} must not import {imported}"
    if room in NUMPY_ONLY:  # a function may import what an extra brings
        roots = {imported.partition(".")[0] for imported in _imports(path, within_functions=False)}
        extra = roots - set(sys.stdlib_module_names) - {"numpy", "keras_largeout"}
        assert not extra, f"{name} imports {extra}"


@pytest.mark.parametrize("top", ["keras_largeout", "custom_ops", "tests", "examples", "benchmarks"])
def test_folders_are_rooms(top):
    """A folder that nobody can take in at a glance is to be cut in two."""
    folders = [ROOT / top, *(p for p in (ROOT / top).rglob("*") if p.is_dir() and p.name != "__pycache__")]
    for folder in folders:
        files = [p for p in folder.iterdir() if p.suffix in (".py", ".h", ".cc", ".cu", ".cuh")]
        assert len(files) <= MOST_FILES, f"{folder} has {len(files)} files of sources"


def test_one_place_loads_the_library():
    loaders = [p.name for p in _sources() if "load_op_library" in p.read_text()]
    assert loaders == ["_library.py"]


def _private_names():
    """(file, name): the private names of others that the package uses: modules, and attributes."""
    own, used = {"_asdict", "_exit", "_fields", "_replace"}, set()  # these are Python's
    for path in _sources():
        file = str(path.relative_to(PACKAGE))
        used |= {(file, name) for name in _imports(path)}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
            elif isinstance(node, ast.Attribute):
                used.add((file, node.attr))
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
                used.add((file, getattr(node.args[1], "value", "")))
    private = re.compile(r"_[a-z]|keras\.src|tensorflow\.python")
    return {(file, name) for file, name in used if name not in own and private.match(str(name))}


def test_private_names_stay_where_they_are_listed():
    section = (ROOT / "ARCHITECTURE.md").read_text().split("\n## Private names\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    for file, name in sorted(_private_names()):
        if file == "distribute/replicas/_tensorflow.py":  # TensorFlow's alone, and any of them
            assert not name.startswith("keras"), name
            continue
        listed = name if "." in name else f"`{name}`"
        assert any(listed in row and f"`{file}`" in row for row in rows), f"not listed: {name}, in {file}"


def test_kernels_include_no_framework():
    """Files in `op/` alone know TensorFlow, and no other file includes one of them."""
    framework = re.compile(
        r'#include *[<"]((tensorflow|third_party|tsl|xla|Eigen|unsupported|absl)/|[^>"]*/op/[^>"]*[>"])'
    )
    kernels = [p for ending in ("h", "cc", "cu", "cuh") for p in OPS.rglob(f"*.{ending}")]
    for path in kernels:
        if path.parent.name != "op":
            assert not framework.search(path.read_text()), path


def test_every_op_has_a_shape_function():
    for path in OPS.rglob("*_op.cc"):
        text = path.read_text()
        assert text.count("REGISTER_OP(") == text.count("SetShapeFn("), path
