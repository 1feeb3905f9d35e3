"""Where a loader stands: in which epoch, and after which batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiledvol.errors import StateError

VERSION = 1
"""Of the form that states have."""


class Cursor:
    """Epoch and batch, and what makes them mean the same patches elsewhere.

    Parameters
    ----------
    batches : int
        In an epoch.
    identity : mapping
        JSON values that have to be equal where a state is loaded.

    Attributes
    ----------
    epoch, position : int
        Epoch, and how many of its batches were delivered, from 0.
    """

    def __init__(self, batches: int, identity: Mapping[str, Any]) -> None:
        self._batches = batches
        self._identity = {"version": VERSION, **identity}
        self.epoch = self.position = 0
        self._chosen = True

    def go_to(self, epoch: int, position: int) -> None:
        """Choose where the next iteration begins."""
        if epoch < 0 or position < 0:
            raise ValueError(f"epoch={epoch}, position={position}: they count from 0")
        self.epoch, self.position, self._chosen = epoch, position, True

    def begin(self) -> None:
        """Begin an iteration; an epoch that the one before has left is not gone on with."""
        if self.position and not self._chosen:
            self.end_epoch()
        self._chosen = False

    def end_epoch(self) -> None:
        """Go on to the beginning of the next epoch."""
        self.epoch += 1
        self.position = 0

    def save(self) -> dict[str, Any]:
        """Return the state, of JSON values; after an epoch's last batch, that of the next."""
        through, position = divmod(self.position, self._batches)
        return {"epoch": self.epoch + through, "position": position, **self._identity}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was saved.

        Raises
        ------
        StateError
            If it is not of the same patches; it names what differs.
        """
        differ = [
            "subjects, shapes or classes" if key == "digest"
            else f"{key} ({state.get(key)!r} there, {value!r} here)"
            for key, value in self._identity.items()
            if state.get(key) != value
        ]  # fmt: skip
        if differ or not {"epoch", "position"} <= state.keys():
            raise StateError(
                f"the state is not of this loader, and would repeat or leave out patches: "
                f"{', '.join(differ) or 'epoch and position'} differ"
            )
        self.go_to(int(state["epoch"]), int(state["position"]))
