"""The version: the one place that has it. pyproject.toml and the build of the ops read it from here."""

__version__ = "0.2.0"
