"""Conversion of medical image formats into tiledvol datasets."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiledvol_converters.convert import convert
    from tiledvol_converters.pipeline import convert_dataset

__all__ = ["convert", "convert_dataset"]

_MODULES = {
    "convert": "tiledvol_converters.convert",
    "convert_dataset": "tiledvol_converters.pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tiledvol_converters' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
