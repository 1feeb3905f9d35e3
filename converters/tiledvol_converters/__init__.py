"""Conversion of medical image formats into tiledvol datasets."""

from tiledvol_converters.convert import convert

__all__ = ["convert"]
