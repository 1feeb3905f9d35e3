"""Peers that read .nii.gz: TorchIO 1 and 2, MONAI.

Where a library leaves a choice, the one that is faster or smaller for it is taken, unless its
documentation advises another. Imports stay within functions: peers may need interpreters of
their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from loader_work import CLASSES, FOREGROUND, Batch, Contender, Group, Work, repeat

PER_VOLUME = 10
"""Patches that TorchIO takes from a volume it has loaded, as in its documentation."""

QUEUE = 40
"""Patches in TorchIO's queue, of four volumes mixed; 300 in its documentation."""


def label_odds() -> dict[int, float]:
    """Return the share of patches to draw around each class; TorchIO 2 takes it as per voxel."""
    share = FOREGROUND / (len(CLASSES) - 1)
    return {c: share if c else 1 - FOREGROUND for c in CLASSES.values()}


def torchio_cycle(work: Work) -> int:
    """Return the batches of TorchIO 1's queue."""
    return min(QUEUE, PER_VOLUME * len(work.subjects)) // work.batch


def torchio_epoch(work: Work) -> int:
    """Return the batches of an epoch: TorchIO 2 loads in the first one, then keeps all volumes."""
    return PER_VOLUME * len(work.subjects) // work.batch


def import_torchio() -> Any:
    """Return the module: of version 1 or 2, which differ."""
    return importlib.import_module("torchio")


def subjects_of(tio: Any, work: Work) -> list[Any]:
    """Return TorchIO's subjects."""
    return [
        tio.Subject(ct=tio.ScalarImage(work.nifti(s, "ct")), seg=tio.LabelMap(work.nifti(s, "seg")))
        for s in work.subjects
    ]


def open_torchio(work: Work, workers: int) -> Iterator[Batch]:
    """Return the batches of TorchIO 1's queue, its workers loading volumes."""
    tio = import_torchio()
    queue = tio.Queue(
        tio.SubjectsDataset(subjects_of(tio, work)),
        QUEUE,
        PER_VOLUME,
        tio.LabelSampler(work.patch, "seg", label_odds()),
        num_workers=workers,
    )
    batches = repeat(lambda: tio.SubjectsLoader(queue, batch_size=work.batch, num_workers=0))
    return ((batch["ct"]["data"].float(), batch["seg"]["data"]) for batch in batches)


def open_torchio2(work: Work, workers: int) -> Iterator[Batch]:
    """Return the batches of TorchIO 2's queue, its workers being threads that load volumes."""
    tio = import_torchio()
    subjects = subjects_of(tio, work)
    sampler = tio.LabelSampler(subjects[0], work.patch, "seg", label_odds())
    queue = tio.Queue(subjects, sampler, QUEUE, PER_VOLUME, num_workers=workers)
    batches = repeat(lambda: tio.SubjectsLoader(queue, batch_size=work.batch))
    return ((batch.ct.data.float(), batch.seg.data) for batch in batches)


def monai_dataset(work: Work, kind: str) -> Any:
    """Return MONAI's dataset of a kind; an item is a batch of patches of one volume."""
    import torch
    from monai import data, transforms

    keys = ["ct", "seg"]
    tuned = kind == "tuned"
    indices = [transforms.FgBgToIndicesd("seg")] if tuned else []
    chain = transforms.Compose(
        [
            transforms.LoadImaged(keys),
            transforms.EnsureChannelFirstd(keys),
            transforms.EnsureTyped(keys, dtype=[torch.float32, torch.uint8]),
            *indices,
            transforms.RandCropByPosNegLabeld(
                keys,
                "seg",
                work.patch_size,
                pos=FOREGROUND,
                neg=1 - FOREGROUND,
                num_samples=work.batch,
                fg_indices_key="seg_fg_indices" if tuned else None,
                bg_indices_key="seg_bg_indices" if tuned else None,
            ),
            transforms.SelectItemsd(keys),
        ]
    )
    files = [{k: str(work.nifti(s, k)) for k in keys} for s in work.subjects]
    if kind == "persistent":
        return data.PersistentDataset(files, chain, cache_dir=work.folder / "monai")
    return data.CacheDataset(files, chain, progress=False, copy_cache=not tuned)


def open_monai(work: Work, kind: str, workers: int) -> Iterator[Batch]:
    """Return batches of MONAI's loader, which takes all of a batch from one volume."""
    from monai.data import DataLoader

    loader = DataLoader(
        monai_dataset(work, kind),
        batch_size=1,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return ((batch["ct"], batch["seg"]) for batch in repeat(lambda: loader))


def prepare_monai(work: Work) -> None:
    """Fill PersistentDataset's cache, as its first epoch would."""
    dataset = monai_dataset(work, "persistent")
    for i in range(len(dataset)):
        dataset[i]


GROUPS = {
    "torchio": Group(
        {"torchio": "1."},
        ("torchio",),
        {
            "torchio": Contender(
                "TorchIO 1 Queue", partial(open_torchio, workers=0), torchio_cycle, slow=True
            ),
            "torchio-2w": Contender(
                "TorchIO 1 Queue, 2 workers",
                partial(open_torchio, workers=2),
                torchio_cycle,
                slow=True,
            ),
        },
    ),
    "torchio2": Group(
        {"torchio": "2."},
        ("torchio",),
        {
            "torchio2": Contender(
                "TorchIO 2 Queue", partial(open_torchio2, workers=0), torchio_epoch, slow=True
            ),
            "torchio2-2w": Contender(
                "TorchIO 2 Queue, 2 threads",
                partial(open_torchio2, workers=2),
                torchio_epoch,
                slow=True,
            ),
        },
    ),
    "monai": Group(
        {"monai": "", "nibabel": ""},
        ("monai.data", "monai.transforms"),
        {
            f"monai-{kind}{suffix}": Contender(
                f"MONAI {title}{more}", partial(open_monai, kind=kind, workers=workers), slow=True
            )
            for kind, title in (
                ("persistent", "PersistentDataset"),
                ("cache", "CacheDataset"),
                ("tuned", "CacheDataset + indices"),
            )
            for suffix, more, workers in (("", "", 0), ("-2w", ", 2 workers", 2))
        },
        prepare_monai,
    ),
}
