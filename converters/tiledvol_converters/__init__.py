"""Conversion of medical image formats into tiledvol datasets."""

from tiledvol_converters.convert import Options, convert
from tiledvol_converters.export import export_nifti
from tiledvol_converters.pipeline import convert_dataset

__all__ = ["Options", "convert", "convert_dataset", "export_nifti"]
