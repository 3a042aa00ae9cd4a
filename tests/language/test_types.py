"""Public signatures carry type hints. (`.ci/run` has mypy read them, and `typed_user.py` in this folder.)"""

import inspect
import pathlib

import pytest
from language import _surface

import keras_largeout

PUBLIC = dict(_surface.public_objects())


@pytest.mark.parametrize("name", PUBLIC)
def test_public_signatures_have_hints(name):
    for function_name, function in _surface.own_functions(name, PUBLIC[name]):
        signature = inspect.signature(function)
        bare = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
        ]
        assert not bare, f"{function_name} has no type hints for {bare}"
        assert signature.return_annotation is not signature.empty, (
            f"{function_name} has no hint for its result"
        )


def test_the_package_says_that_it_has_hints():
    assert (pathlib.Path(keras_largeout.__file__).parent / "py.typed").exists()
