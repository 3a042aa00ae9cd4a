"""The rules of the house, checked on the sources: imports run one way, kernels know no framework."""

import ast
import pathlib
import re
import runpy
import sys

import _tiers
import keras
import pytest
import tensorflow as tf

from keras_largeout._keras import versions
from keras_largeout.replicas import _tensorflow

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "keras_largeout"
OPS = ROOT / "custom_ops"

# The rooms, lowest first. A room may import itself and what is named here; everybody may import `_checks`,
# `_context`, `_version` and `files`, and who may import Keras at all also `_keras`.
MAY_IMPORT = {
    "_version": set(),
    "_checks": set(),
    "_context": set(),
    "_private": set(),
    "files": set(),
    "_keras": {"_private"},
    "_head_annotations": set(),
    "trees": set(),
    "datasets": set(),
    "ops": set(),
    "planning": {"trees"},
    "metrics": {"_head_annotations", "planning", "ops"},
    "replicas": {"ops", "_private"},
    "tables": {"replicas", "planning", "ops"},
    "distribute.outputs": {"tables", "replicas", "planning", "ops", "trees"},
    "distribute.balance": {"distribute.outputs", "tables", "replicas", "planning", "ops"},
    "distribute.parallel": {"tables", "replicas", "planning", "ops", "_head_annotations"},
    "distribute.processes": set(),
    "distribute.hosts": {"distribute.processes", "tables", "replicas", "ops"},
    "distribute.cluster": {
        "distribute.processes",
        "distribute.hosts",
        "distribute.parallel",
        "tables",
        "replicas",
        "ops",
    },
    "distribute": {
        "distribute.hosts",
        "distribute.processes",
        "distribute.parallel",
        "distribute.balance",
        "distribute.cluster",
        "tables",
        "replicas",
        "planning",
        "ops",
    },
    "optimizers": {"planning", "tables", "replicas", "ops"},
    "training": {"distribute", "tables", "replicas", "ops"},
    "model": {"training", "_head_annotations"},
    "layers": {
        "model",
        "_head_annotations",
        "optimizers",
        "distribute",
        "tables",
        "replicas",
        "planning",
        "ops",
        "trees",
    },
    "callbacks": {"layers", "training", "distribute", "tables", "replicas", "planning", "ops"},
    "serving": {"layers", "export", "distribute", "ops"},
    "export": {"layers", "distribute", "tables", "replicas", "ops"},
    "resizing": {"layers", "distribute", "tables", "replicas"},
    "versions": {"ops"},
    "warm_starting": {"layers", "tables"},
}
# These can be read, run and tested on a machine that has none of the devices.
NUMPY_ONLY = {"trees", "planning", "files", "_checks", "_context", "_version"}
NUMPY_ONLY |= {"_private", "_head_annotations"}
# The files that touch private names of others, and say why.
_OF_KERAS = ("calls", "optimizers", "saving", "training", "variables", "versions")
PRIVATE = {"replicas/_tensorflow.py", *(f"_keras/{part}.py" for part in _OF_KERAS)}
MOST_FILES = 20
# Folders of tests/ that belong to no folder of the package.
OTHER_TESTS = {"benchmarks", "conformance", "examples", "fuzz", "language"}


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
    allowed = {room, "_checks", "_context", "_version", "files"} | MAY_IMPORT[room]
    if room not in NUMPY_ONLY:
        allowed.add("_keras")
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


def test_tests_are_where_the_code_is():
    """Each room that is a folder has `tests/<room>`; a folder of tests may divide a room's tests further."""
    tests = ROOT / "tests"
    for room in (room.replace(".", "/") for room in MAY_IMPORT):
        if (PACKAGE / room).is_dir():
            assert list((tests / room).glob("test_*.py")), (
                f"keras_largeout/{room} has no tests in tests/{room}"
            )
    for folder in {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}:
        found = (PACKAGE / folder).is_dir() or (PACKAGE / folder.parent).is_dir()
        assert found or folder.parts[0] in OTHER_TESTS, f"tests/{folder} has no counterpart in keras_largeout"
    for folder in _tiers.TIERS:
        assert (tests / folder).is_dir(), f"tests/{folder} has a tier and does not exist"


@pytest.mark.parametrize("init", sorted(PACKAGE.rglob("__init__.py")), ids=lambda p: p.parent.name)
def test_no_name_hides_a_module(init):
    """`kl.distribute.strategy` must be the function, whoever has imported what before."""
    modules = {p.stem for p in init.parent.iterdir() if p.suffix == ".py" or p.is_dir()}
    package = ".".join(init.parent.relative_to(ROOT).parts)
    for node in ast.parse(init.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module != package:
            hidden = {alias.asname or alias.name for alias in node.names} & modules
            assert not hidden, f"{package} has modules of the names {sorted(hidden)}"


def test_one_place_loads_the_library():
    loaders = [p.name for p in _sources() if "load_op_library" in p.read_text()]
    assert loaders == ["_library.py"]


def test_no_gradient_outlives_its_graph():
    """TensorFlow keeps what both of them need for their gradients as long as the process lives."""
    calls = re.compile(r"custom_gradient\b|\.all_reduce\(")
    users = [
        p.name for p in _sources() for line in p.read_text().splitlines() if calls.search(line.split("#")[0])
    ]
    assert set(users) == {"_gradients.py"}, users


# What Keras and TensorFlow call private, and the file in which its users find it.
_PRIVATE = re.compile(r"_[a-z]|keras\.src|tensorflow\.python|keras_largeout\._private")
_BASES = (
    keras.Model,
    keras.layers.Layer,
    keras.Variable,
    keras.StatelessScope,
    keras.optimizers.LossScaleOptimizer,
    keras.losses.Loss,
    keras.metrics.Metric,
    keras.callbacks.Callback,
    tf.distribute.ParameterServerStrategy,
)


def _names_of_others():
    """Names of Keras's and TensorFlow's classes, and of what they keep in their objects."""
    objects = [keras.Variable(0.0), keras.layers.Dense(1), keras.Sequential()]
    for kind in (keras.optimizers.Adam, keras.optimizers.Adagrad, keras.optimizers.Ftrl):
        objects.append(kind())
        objects[-1].build([keras.Variable([0.0])])
    names = {name for base in _BASES for name in dir(base)} | {name for o in objects for name in vars(o)}
    return {name for name in names if not name.startswith("__")}


def _private_names():
    """`{file: names}` of others that the package uses: modules, attributes, overridden methods."""
    theirs = _names_of_others()
    own = {"_asdict", "_exit", "_fields", "_replace"}  # these are Python's
    used, stored = set(), set()  # (file, name)
    for path in _sources():
        file = str(path.relative_to(PACKAGE))
        used |= {(file, name) for name in _imports(path)}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            if isinstance(node, ast.ClassDef):
                methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
                used |= {(file, name) for name in methods & theirs}
            elif isinstance(node, ast.Attribute):
                (stored if isinstance(node.ctx, ast.Store) else used).add((file, node.attr))
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
                used.add((file, getattr(node.args[1], "value", "")))
            elif isinstance(node, ast.Constant) and str(node.value).startswith(
                ("keras.src", "tensorflow.py")
            ):
                used.add((file, node.value))
    # A name that Keras has too is ours in the files alone that give it a value.
    own = (own | {name for _, name in stored}) - theirs
    found = {}
    for file, name in used - stored:
        if name not in own and _PRIVATE.match(str(name)):
            found.setdefault(file, set()).add(name)
    return found


def test_private_names_stay_in_few_files():
    found = _private_names()
    for file, names in sorted(found.items()):
        assert file in PRIVATE, f"{file} uses private names of others: {sorted(names)}"
    stale = {file for file in PRIVATE - set(found) if (PACKAGE / file).exists()}
    assert not stale, f"they use no private names, and leave the list: {sorted(stale)}"
    for file, names in found.items():
        others = "keras." if file == "replicas/_tensorflow.py" else "tensorflow."
        assert not [name for name in names if name.startswith(others)], file


def test_private_names_are_asked_for():
    """By `_need`, whose error says what a version lacks: none is read as an attribute of something else."""
    for file in sorted(PRIVATE):
        tree = ast.parse((PACKAGE / file).read_text())
        own = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        read = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        }
        private = {name for name in read - own if re.match("_[a-z]|(src|python)$", name)}
        assert private <= {"_handle"}, f"{file} does not ask for {sorted(private)} by `_need`"
        imported = [
            name for name in _imports(PACKAGE / file) if re.match(r"keras\.src|tensorflow\.python", name)
        ]
        assert not imported, f"{file} imports {imported}"


def test_versions_that_errors_name_are_those_that_can_be_installed():
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert f'"keras{versions.KNOWN}"' in pyproject and f'"tensorflow{_tensorflow.KNOWN}"' in pyproject


def test_kernels_include_no_framework():
    """Files in `op/` alone know TensorFlow, and no other file includes one of them."""
    framework = re.compile(
        r'#include *[<"]((tensorflow|third_party|tsl|xla|Eigen|unsupported|absl)/|[^>"]*/op/[^>"]*[>"])'
    )
    kernels = [p for ending in ("h", "cc", "cu", "cuh") for p in OPS.rglob(f"*.{ending}")]
    for path in kernels:
        if path.parent.name != "op":
            assert not framework.search(path.read_text()), path


def test_kernels_do_not_know_the_emulator():
    """Its headers come first on the include path, so no file but tests chooses between it and a GPU."""
    kernels = [p for ending in ("h", "cc", "cu", "cuh") for p in OPS.rglob(f"*.{ending}")]
    for path in kernels:
        if not {"cuda_emulator", "test"} & set(path.relative_to(OPS).parts):
            assert "emulat" not in path.read_text().lower(), path


def test_every_op_has_a_shape_function():
    for path in OPS.rglob("*_op.cc"):
        text = path.read_text()
        assert text.count("REGISTER_OP(") == text.count("SetShapeFn("), path


#: A docstring of a function begins with a verb: what it does, in the imperative or the third person.
_NO_VERB = re.compile(
    r"[^A-Z]|(The|An?|All|Both|Each|Every|None|One|Those|These|What|Which|Whether|Where|Who|How|As|At|For|From"
    r"|In|Of|On|With)\b"
)
#: Properties and contexts are things, and so are classes and modules.
_THINGS = ("property", "setter", "contextmanager")
_CLAUSE = re.compile(r"(What|Which|Whether|Where|Who|How|From|As)\b")


@pytest.mark.parametrize("folder", ["keras_largeout", "benchmarks", "examples"])
def test_docstrings_begin_with_a_verb_or_a_noun(folder):
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                continue
            decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", ())]
            is_function = isinstance(node, ast.FunctionDef) and not any(
                thing in decorator for thing in _THINGS for decorator in decorators
            )
            text = ast.get_docstring(node) or "X"
            rule = _NO_VERB if is_function else _CLAUSE
            if (is_function or folder == "keras_largeout") and rule.match(text):
                wrong.append(f"{path.relative_to(ROOT)}: {text.splitlines()[0]}")
    assert not wrong, "\n".join(wrong)


def test_sources_of_ops_begin_with_what_they_are():
    """The first line of a C++ or CUDA file names a thing or an action, as a docstring does."""
    files = [p for ending in ("h", "cc", "cu", "cuh") for p in sorted(OPS.rglob(f"*.{ending}"))]
    wrong = [str(p.relative_to(OPS)) for p in files if re.match(f"// {_CLAUSE.pattern}", p.read_text())]
    assert not wrong, wrong


DOCS = ROOT / "docs"
MOST_LINES = {"README.md": 120, "docs/concepts": 100}


def _pages():
    folders = [DOCS, *(ROOT / name for name in ("examples", "benchmarks", "custom_ops"))]
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))])


def _anchors(page):
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_pages():
    """Each link of a page to a file of the repository, or to a heading of a page, has a target."""
    wrong = []
    for page in _pages():
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if "://" in link or "keras_largeout." in anchor:  # the build of the site checks its reference
                continue
            if not target.exists() or (anchor and anchor not in _anchors(target)):
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert not wrong, "\n".join(wrong)


def test_pages_stay_short():
    for page in _pages():
        name = str(page.relative_to(ROOT))
        most = next((most for start, most in MOST_LINES.items() if name.startswith(start)), None)
        assert most is None or len(page.read_text().splitlines()) <= most, name


def test_pictures_are_those_of_the_recorded_tables():
    for name, content in runpy.run_path(DOCS / "images/draw.py")["pictures"]().items():
        assert (DOCS / "images" / name).read_text("utf-8") == content, f"run docs/images/draw.py: {name}"


def _entries(page):
    return re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)


def test_reference_has_every_public_name():
    """Each public name has one entry on a page of docs/reference, and each entry is a public name."""
    public = []
    for init in sorted(PACKAGE.glob("*/__init__.py")) + [PACKAGE / "__init__.py"]:
        package = ".".join(init.parent.relative_to(ROOT).parts)
        for node in ast.parse(init.read_text()).body:
            if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
                public += [f"{package}.{name}" for name in ast.literal_eval(node.value)]
    modules = {f"keras_largeout.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py")}
    public = {name for name in public if name not in modules and not name.startswith("keras_largeout.ops")}
    entries = [entry for page in sorted((DOCS / "reference").glob("*.md")) for entry in _entries(page)]
    assert sorted(entries) == sorted(public - {"keras_largeout.__version__"})


def _texts():
    """All strings of the package, with "..." in the places of what an f-string puts in."""
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(
                    getattr(part, "value", "") if isinstance(part, ast.Constant) else "..."
                    for part in node.values
                )
    for path in (*OPS.glob("*/op/*.cc"), *OPS.glob("*/cuda/*.cu")):
        yield path.read_text()


def test_errors_of_the_help_page_exist():
    texts = list(_texts())
    for title in re.findall(r"^### (.*)$", (DOCS / "help/errors.md").read_text(), re.MULTILINE):
        found = any(all(part.strip() in text for part in title.split("...")) for text in texts)
        assert found, f"docs/help/errors.md: no error has the words {title!r}"
