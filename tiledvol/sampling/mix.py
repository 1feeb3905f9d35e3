"""MixSampler: several samplers in one stream, by quota."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

from tiledvol.sampling.choice import Quota, as_fraction
from tiledvol.sampling.draw import Draw
from tiledvol.sampling.protocols import BoundSampler, Sampler, Subject
from tiledvol.sampling.rng import Numbers, Stream, permutation


@dataclass(frozen=True)
class MixSampler:
    """Draws of several samplers in one stream, each with an exact share of it.

    The first sampler takes its share of the indices by quota, the rest is divided among the
    others in the same way. A sampler's own index counts its own draws alone, so that the quota
    of a `LabelSampler` holds among its draws, and a `GridSampler` gives each patch once before
    any comes again, in an order shuffled anew each time. Always endless: give the loader
    ``patches_per_epoch``. An epoch covers a grid of L patches with share s if it has at least
    L / s patches.

    Parameters
    ----------
    parts : sequence of (Sampler, float)
        Samplers and shares; shares are relative to their sum.

    Raises
    ------
    ValueError
        If there are no parts, or a share is not above 0.
    """

    parts: Sequence[tuple[Sampler, float | Fraction]]

    finite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple((sampler, share) for sampler, share in self.parts))
        if not self.parts:
            raise ValueError("MixSampler needs at least one (sampler, share)")
        for sampler, share in self.parts:
            if not as_fraction(share, "share"):
                raise ValueError(f"share={share} of {sampler}: leave out what is not to be drawn")

    def __repr__(self) -> str:
        return f"MixSampler({list(self.parts)})"

    def bind(
        self,
        subjects: Sequence[Subject],
        patch_size: tuple[int, int, int],
        reference: str,
        *,
        weights: Mapping[str, float] | None = None,
        patches_per_subject: int = 1,
    ) -> BoundMix:
        """Return the sampler over these subjects, see `Sampler.bind`.

        ``weights`` and ``patches_per_subject`` are for those of the samplers that are endless.
        """
        components: list[BoundSampler] = [
            _Laps(sampler.bind(subjects, patch_size, reference))
            if sampler.finite
            else sampler.bind(
                subjects,
                patch_size,
                reference,
                weights=weights,
                patches_per_subject=patches_per_subject,
            )
            for sampler, _ in self.parts
        ]
        return BoundMix(self, components)


class BoundMix:
    """A `MixSampler` that knows its subjects."""

    length: ClassVar[None] = None

    def __init__(self, sampler: MixSampler, components: Sequence[BoundSampler]) -> None:
        self._components = components
        shares = [as_fraction(share, "share") for _, share in sampler.parts]
        # Of what the samplers before it have left, each takes its share relative to the rest.
        self._quotas = [Quota(share / sum(shares[i:])) for i, share in enumerate(shares)]
        self.fingerprint: dict[str, Any] = {
            "sampler": repr(sampler),
            "components": [component.fingerprint for component in components],
        }

    def draw(self, seed: int, epoch: int, index: int) -> Draw:
        """Return the draw of an index."""
        at = 0
        while not self._quotas[at].chooses(index):  # the last one chooses every index left
            index -= self._quotas[at].before(index)
            at += 1
        own = self._quotas[at].before(index)
        # A seed of its own, lest two samplers of a kind draw alike.
        own_seed = Numbers(seed, 0, at, Stream.COMPONENT).word()
        return self._components[at].draw(own_seed, epoch, own)


class _Laps:
    """A finite sampler made endless: lap after lap, each in another order."""

    length: ClassVar[None] = None

    def __init__(self, bound: BoundSampler) -> None:
        self._bound = bound
        self.fingerprint = bound.fingerprint
        self._order = lru_cache(maxsize=2)(permutation)

    def draw(self, seed: int, epoch: int, index: int) -> Draw:
        assert self._bound.length is not None
        lap, at = divmod(index, self._bound.length)
        order = self._order(self._bound.length, seed, epoch, lap)
        return self._bound.draw(seed, epoch, int(order[at]))
