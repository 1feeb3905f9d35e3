"""Tiled volumes for training 3D networks on CT and MR."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiledvol.errors import TiledvolError
    from tiledvol.geometry import Box
    from tiledvol.loading.loader import PatchLoader
    from tiledvol.sampling import (
        GridSampler,
        LabelSampler,
        MixSampler,
        UniformSampler,
        WeightedSampler,
        WholeSampler,
    )
    from tiledvol.storage.dataset import Dataset, Subject, open, reindex
    from tiledvol.storage.spec import make_context
    from tiledvol.storage.verify import verify
    from tiledvol.storage.volume import Volume

__version__ = "0.1.0"

__all__ = [
    "Box",
    "Dataset",
    "GridSampler",
    "LabelSampler",
    "MixSampler",
    "PatchLoader",
    "Subject",
    "TiledvolError",
    "UniformSampler",
    "Volume",
    "WeightedSampler",
    "WholeSampler",
    "make_context",
    "open",
    "reindex",
    "verify",
]

# Imported at first use: tensorstore alone takes half a second, and a command line that only
# prints its help, or a worker that only handles paths, need not wait for it.
_MODULES = {
    "Box": "tiledvol.geometry",
    "Dataset": "tiledvol.storage.dataset",
    "GridSampler": "tiledvol.sampling",
    "LabelSampler": "tiledvol.sampling",
    "MixSampler": "tiledvol.sampling",
    "PatchLoader": "tiledvol.loading.loader",
    "Subject": "tiledvol.storage.dataset",
    "TiledvolError": "tiledvol.errors",
    "UniformSampler": "tiledvol.sampling",
    "Volume": "tiledvol.storage.volume",
    "WeightedSampler": "tiledvol.sampling",
    "WholeSampler": "tiledvol.sampling",
    "make_context": "tiledvol.storage.spec",
    "open": "tiledvol.storage.dataset",
    "reindex": "tiledvol.storage.dataset",
    "verify": "tiledvol.storage.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tiledvol' has no attribute {name!r}")
    found = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
