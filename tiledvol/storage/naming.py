"""Names of subjects and images: which can be folders and keys on every store."""

from __future__ import annotations

import unicodedata

from tiledvol.errors import NamingError

MAX_BYTES = 200
"""Longest name, in UTF-8: file systems allow 255, and suffixes need room."""

RESERVED = frozenset({"zarr.json", "catalogue.json", "claim"})

LOCK_SUFFIX = ".__lock"
"""How the files are named that tensorstore locks local keys with."""


def check_name(name: str, what: str) -> str:
    """Return ``name`` if it can name a subject or image.

    Parameters
    ----------
    name : str
        The name.
    what : str
        ``"subject"`` or ``"image"``, for the message.

    Raises
    ------
    NamingError
        If it is empty, too long, hidden, reserved, or holds a path separator or control
        character.
    """
    if not name or name != name.strip():
        raise NamingError(f"{what} name {name!r} is empty or has blanks at its ends")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise NamingError(f"{what} name {name[:40]!r}... is longer than {MAX_BYTES} bytes")
    if name[0] == ".":
        raise NamingError(f"{what} name {name!r} begins with a dot")
    if name in RESERVED or name.endswith(LOCK_SUFFIX):
        raise NamingError(f"{what} name {name!r} is reserved; take another")
    bad = [c for c in name if c in '/\\:*?"<>|' or unicodedata.category(c) in ("Cc", "Cs", "Zl")]
    if bad:
        raise NamingError(f"{what} name {name!r} holds {bad[0]!r}, which a folder name cannot")
    return name
