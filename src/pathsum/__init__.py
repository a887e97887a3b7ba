"""Attention-only toy transformers, taken apart: the package behind the book.

Importing `pathsum` is cheap: nothing heavier than the standard library is loaded until
`load_model`, `load_tokenizer` or `progress` is first used.
"""

from importlib import import_module

__version__ = "0.1.0"
__all__ = ["__version__", "load_model", "load_tokenizer", "progress"]

_HOMES = {
    "load_model": "pathsum.checkpoints",
    "load_tokenizer": "pathsum.tokenizer",
    "progress": "pathsum.exercises.progress",
}


def __getattr__(name: str) -> object:
    """The named function, imported from its module on first use; AttributeError for other names."""
    if name not in _HOMES:
        raise AttributeError(
            f"module 'pathsum' has no attribute {name!r}: the top level holds "
            f"{', '.join(sorted(_HOMES))}; everything else is imported from its module, "
            "for example `from pathsum.model import Config`"
        )
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, so that completion shows the lazy ones too."""
    return sorted(__all__)
