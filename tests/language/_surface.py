"""What the package exports: its public names, and the functions and methods behind them."""

import functools
import inspect
import types

import keras_largeout as kl

_CALLED = ("__init__", "__call__", "__getitem__", "__len__")


def public_objects():
    """Yield `(name, object)` of all public classes and functions, each once."""
    modules = [value for value in map(vars(kl).get, kl.__all__) if isinstance(value, types.ModuleType)]
    for module in [kl, *modules, kl.ops]:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isroutine(value) or inspect.isclass(value):
                yield f"{module.__name__}.{name}", value


def _function(attribute):
    """Return the function behind an attribute of a class; None where there is none."""
    for kind, name in (
        (property, "fget"),
        (functools.cached_property, "func"),
        ((classmethod, staticmethod), "__func__"),
    ):
        if isinstance(attribute, kind):
            attribute = getattr(attribute, name)
    function = inspect.unwrap(attribute) if callable(attribute) else None
    return function if inspect.isfunction(function) else None


def own_functions(name, value):
    """Yield `(name, function)` of a public function, or of the public methods that a class itself defines."""
    if not inspect.isclass(value):
        yield name, inspect.unwrap(value)
        return
    for key, attribute in vars(value).items():
        function = _function(attribute)
        written = function is not None and function.__code__.co_filename.endswith(".py")
        if written and (not key.startswith("_") or key in _CALLED):
            yield f"{name}.{key}", function
