"""What samplers ask of subjects, and what is asked of samplers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from tiledvol.geometry import Affine, Box
from tiledvol.sampling.draw import Draw
from tiledvol.storage.blocks import ImageBlocks, LabelBlocks


class Volume(Protocol):
    """An image of a subject; `tiledvol.Volume` is one.

    Invariants: ``shape`` and ``chunk_shape`` have 3 axes, or 4 with channels in front; all but
    `blocks` (and ``classes`` of a label with many of them) cost no I/O.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def affine(self) -> Affine: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def classes(self) -> dict[int, int]: ...  # noqa: D102
    def blocks(self) -> ImageBlocks | LabelBlocks: ...  # noqa: D102
    def block_box(self, position: tuple[int, ...], /) -> Box: ...  # noqa: D102


class Subject(Protocol):
    """Images by name; `tiledvol.Subject` is one."""

    id: str

    def __getitem__(self, name: str, /) -> Volume: ...
    def __contains__(self, name: object, /) -> bool: ...


class BoundSampler(Protocol):
    """A sampler that knows its subjects.

    Invariants: `draw` is a pure function, safe to call from any thread and in any order; it costs
    no I/O but, now and then, that of a subject's block index.
    """

    @property
    def length(self) -> int | None:
        """Number of draws in an epoch; None if there is no end."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """JSON values that differ where settings, subjects or their shapes differ."""

    def draw(self, seed: int, epoch: int, index: int) -> Draw:
        """Return the draw of an index, below `length` where there is one."""


class Sampler(Protocol):
    """The settings of a sampler: immutable, picklable, knowing no data."""

    finite: ClassVar[bool]
    """Whether an epoch has a length of its own."""

    def bind(
        self,
        subjects: Sequence[Subject],
        patch_size: tuple[int, int, int],
        reference: str,
        *,
        weights: Mapping[str, float] | None = None,
        patches_per_subject: int = 1,
    ) -> BoundSampler:
        """Return the sampler over these subjects.

        Parameters
        ----------
        subjects : sequence of Subject
            With different ids.
        patch_size : (3,) int
            In voxels of the reference image.
        reference : str
            The image on whose grid patches lie.
        weights : mapping of str to float, optional
            Relative probability of each subject id; equal if None. Not for finite samplers,
            which visit every subject.
        patches_per_subject : int
            Indices with the same ``index // patches_per_subject`` share a subject wherever it
            can serve them. Not for finite samplers.

        Raises
        ------
        ValueError
            If an argument has no meaning.
        StoreError
            If the subjects lack what the sampler needs; it names the image.
        """
