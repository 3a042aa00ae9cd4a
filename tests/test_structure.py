"""The rules of the house, checked on the sources: imports run one way, kernels know no framework."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/keras_largeout"
OPS = ROOT / "custom_ops"

# Who may import whom, inside the package; anybody may import `arguments`. `trees` knows NumPy alone.
MAY_IMPORT = {
    "arguments": set(),
    "ops": {"ops"},
    "trees": {"trees"},
    "distribute": {"distribute", "ops", "trees"},
    "optimizers": {"optimizers", "distribute", "ops"},
    "layers": {"layers", "model", "optimizers", "distribute", "ops", "trees"},
    "callbacks": {"callbacks", "layers", "distribute", "ops"},
    "datasets": {"datasets"},
    "metrics": {"metrics"},
    "training": {"training", "distribute", "ops"},
    "model": {"training", "distribute", "ops"},
    "export": {"export", "layers", "distribute", "ops"},
}


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _sources():
    return sorted(p for p in PACKAGE.rglob("*.py") if p.name != "_build_info.py")


def _room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", _sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path):
    room = _room(path)
    if room == "__init__":
        return
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] == "keras_largeout" and len(parts) > 1 and parts[1] != "arguments":
            assert parts[1] in MAY_IMPORT[room], f"{room} must not import {name}"
        if room == "trees":
            assert parts[0] not in ("tensorflow", "keras"), f"trees must not import {name}"


def test_planning_knows_numpy_alone():
    planning = ["placement", "packing", "tree_load", "tree_placement", "tree_cut", "specs", "table_load"]
    planning += ["row_placement", "planner", "plans", "plan_file", "plan_report", "pins", "replan"]
    for path in (PACKAGE / "distribute" / f"{name}.py" for name in planning):
        roots = {name.split(".")[0] for name in _imports(path)}
        assert not roots & {"tensorflow", "keras"}, path
        inside = {name for name in _imports(path) if name.startswith("keras_largeout")}
        assert all(name.split(".")[1] in ("trees", "distribute") for name in inside), path


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
        if file == "distribute/_tensorflow.py":  # TensorFlow's alone, and any of them
            assert not name.startswith("keras"), name
            continue
        listed = name if "." in name else f"`{name}`"
        assert any(listed in row and f"`{file}`" in row for row in rows), f"not listed: {name}, in {file}"


def test_kernels_include_no_framework():
    """Files named *_op.h and *_op.cc alone know TensorFlow, and no other file includes one of them."""
    framework = re.compile(
        r'#include *[<"]((tensorflow|third_party|tsl|xla|Eigen|unsupported|absl)/|[^>"]*_op\.h[>"])'
    )
    kernels = [p for ending in ("h", "cc", "cu", "cuh") for p in OPS.rglob(f"*.{ending}")]
    for path in kernels:
        if not path.stem.endswith("_op"):
            assert not framework.search(path.read_text()), path


def test_every_op_has_a_shape_function():
    for path in OPS.rglob("*_op.cc"):
        text = path.read_text()
        assert text.count("REGISTER_OP(") == text.count("SetShapeFn("), path
