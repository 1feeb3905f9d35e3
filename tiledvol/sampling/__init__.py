"""Sampling: which patch comes at which index. Pure and deterministic, no I/O but block indices."""

from tiledvol.sampling.draw import Draw, LabelPick, Pick, WeightPick, patch_start, transfer
from tiledvol.sampling.grid import GridSampler, PatchGrid
from tiledvol.sampling.label import LabelSampler
from tiledvol.sampling.mix import MixSampler
from tiledvol.sampling.protocols import BoundSampler, Sampler
from tiledvol.sampling.schedule import Schedule
from tiledvol.sampling.uniform import UniformSampler
from tiledvol.sampling.weighted import WeightedSampler
from tiledvol.sampling.whole import WholeSampler

__all__ = [
    "BoundSampler",
    "Draw",
    "GridSampler",
    "LabelPick",
    "LabelSampler",
    "MixSampler",
    "PatchGrid",
    "Pick",
    "Sampler",
    "Schedule",
    "UniformSampler",
    "WeightPick",
    "WeightedSampler",
    "WholeSampler",
    "patch_start",
    "transfer",
]
