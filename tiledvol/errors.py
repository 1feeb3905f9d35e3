"""The errors that tiledvol raises. Each names the file or subject, and says what to do."""


class TiledvolError(Exception):
    """Base of every error that tiledvol raises on purpose."""


class SourceError(TiledvolError):
    """An input file cannot be converted: damaged, unsupported, or not what it claims to be."""


class GeometryError(TiledvolError):
    """An affine, orientation code or box does not describe a volume."""


class NamingError(TiledvolError):
    """A subject or image name is not usable as a folder name, or two inputs claim the same one."""


class StoreError(TiledvolError):
    """A store, subject or image is missing, malformed, or written by a newer format."""


class BlockError(StoreError):
    """A block of an image is missing or fails its checksum."""


class ReadTimeoutError(StoreError):
    """A read did not finish within its time-out."""


class ForkError(TiledvolError):
    """The process was forked after tensorstore had started its threads."""


class PatchError(TiledvolError):
    """A patch cannot be made; the message names index, subject and image."""


class StateError(TiledvolError):
    """A loader's saved state does not fit the loader."""
