"""WeightedSampler: a stored image as the density of patch centres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tiledvol.errors import StoreError
from tiledvol.sampling.cache import IndexCache
from tiledvol.sampling.choice import inverse_cdf
from tiledvol.sampling.cohort import Cohort, listed
from tiledvol.sampling.draw import Draw, WeightPick, voxel_at
from tiledvol.sampling.protocols import Subject
from tiledvol.sampling.rng import Numbers, Stream
from tiledvol.storage.blocks import ImageBlocks


@dataclass(frozen=True)
class WeightedSampler:
    """Patches centred at voxels drawn in proportion to the value of a stored image.

    The values need not add up to anything; each subject's map stands for itself, and subjects are
    equally likely, or by the weights given to the loader. Those whose map is zero everywhere are
    not drawn. The channels of a map add up. Endless.

    Parameters
    ----------
    map : str
        Name of the image.
    """

    map: str

    finite: ClassVar[bool] = False

    def bind(
        self,
        subjects: Sequence[Subject],
        patch_size: tuple[int, int, int],
        reference: str,
        *,
        weights: Mapping[str, float] | None = None,
        patches_per_subject: int = 1,
    ) -> BoundWeighted:
        """Return the sampler over these subjects, see `Sampler.bind`; it reads their block indices.

        Raises
        ------
        StoreError
            If a subject lacks the map, a value is negative, NaN or infinite, or all are zero.
        """
        cohort = Cohort(subjects, patch_size, reference, weights, patches_per_subject)
        return BoundWeighted(self, cohort)


class BoundWeighted:
    """A `WeightedSampler` that knows its subjects."""

    length: ClassVar[None] = None

    def __init__(self, sampler: WeightedSampler, cohort: Cohort) -> None:
        self._map = sampler.map
        self._cohort = cohort
        missing = [s.id for s in cohort.subjects if self._map not in s]
        if missing:
            raise StoreError(f"no weight map {self._map!r} in {listed(missing)}")
        totals = cohort.read(lambda subject: float(self._weights(subject).sum.sum()))
        self.fingerprint: dict[str, Any] = cohort.fingerprint(sampler, [np.array(totals)])
        members = cohort.members(i for i, total in enumerate(totals) if total > 0)
        if members is None:
            raise StoreError(f"the weight map {self._map!r} is zero everywhere in every subject")
        self._members = members
        self._indices = IndexCache(
            lambda position: self._weights(cohort.subjects[position]),
            lambda index: index.min.nbytes + index.max.nbytes + index.sum.nbytes,
        )

    def _weights(self, subject: Subject) -> ImageBlocks:
        """Return the block index of a subject's map, checked to be a density."""
        blocks = subject[self._map].blocks()
        where = f"{subject.id}/{self._map}"
        if not isinstance(blocks, ImageBlocks):
            raise StoreError(
                f"{where} is a label; WeightedSampler needs an image: use LabelSampler"
            )
        low = np.fmin.reduce(blocks.min, axis=None)
        if low < 0:
            raise StoreError(f"{where} has weight {low}; weights must not be negative: clip them")
        if not np.isfinite(blocks.sum.sum()):
            raise StoreError(f"{where} has weights that are NaN or infinite: replace them")
        return blocks

    def draw(self, seed: int, epoch: int, index: int) -> Draw:
        """Return the draw of an index."""
        position = self._cohort.draw(seed, epoch, index, self._members)
        subject = self._cohort.subjects[position]
        blocks = self._indices[position]
        numbers = Numbers(seed, epoch, index, Stream.WEIGHT)
        at = inverse_cdf(np.cumsum(blocks.sum), numbers.unit())
        block = tuple(int(i) for i in np.unravel_index(at, blocks.sum.shape))
        volume = subject[self._map]
        box = volume.block_box(block)
        u = numbers.unit()
        if blocks.min[block] == blocks.max[block]:  # all weights alike: which voxel needs no read
            voxel = voxel_at(box, int(u * box.size))
            return Draw(subject.id, self._cohort.start_around(position, voxel, volume), None)
        return Draw(subject.id, None, WeightPick(self._map, block, box, u))
