"""Private names of other libraries: each is found here, or an error says what is missing where."""

import importlib
import sys


def private(owner, name, library, version, known):
    """Return `owner.name`, a private name of another library.

    Private names come and go without a notice. Their users are `_keras/` and
    `replicas/_tensorflow.py`, which say why each is needed.

    Args:
        owner: an object, or the name of a module.
        name: str.
        library: str, what the error calls the library.
        version: str, the version that is installed.
        known: str, the versions that have been tried.

    Raises:
        ImportError: this version has no such name.
    """
    try:
        where = owner
        if isinstance(owner, str):  # AutoGraph has words for an import in a graph, which is not needed
            where = sys.modules.get(owner) or importlib.import_module(owner)
        return getattr(where, name)
    except (ModuleNotFoundError, AttributeError):
        if not isinstance(owner, (str, type)):
            owner = type(owner)
        title = owner if isinstance(owner, str) else f"{owner.__module__}.{owner.__qualname__}"
        raise ImportError(
            f"keras_largeout needs the private name {name!r} of {title}, which {library} {version} does not "
            f"have. It is known to work with {library} {known}: install one of these."
        ) from None
