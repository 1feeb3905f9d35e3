"""Peers with stores of their own: nnU-Net, medh5, zarr-python.

Where a library leaves a choice, the one that is faster or smaller for it is taken, unless its
documentation advises another. Imports stay within functions: peers may need interpreters of
their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from loader_work import CLASSES, FOREGROUND, Batch, Contender, Group, Work, repeat

LONG = 5000
"""Patches per subject in an epoch, where it can be made so long that its end does not matter."""

VOXELS = 10_000
"""Foreground voxels per subject that patches of the zarr contender are drawn around."""


def open_nnunet(work: Work, workers: int) -> Iterator[Batch]:
    """nnU-Net's data loader as its trainer sets it up, transforms left out.

    Of two patches it takes one around the foreground: it rounds the share to whole patches.
    """
    from batchgenerators.dataloading.nondet_multi_threaded_augmenter import (
        NonDetMultiThreadedAugmenter,
    )
    from batchgenerators.dataloading.single_threaded_augmenter import SingleThreadedAugmenter
    from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
    from nnunetv2.training.dataloading.nnunet_dataset import nnUNetDatasetBlosc2
    from nnunetv2.utilities.label_handling.label_handling import LabelManager

    loader = nnUNetDataLoader(
        nnUNetDatasetBlosc2(str(work.folder / "nnunet")),
        work.batch,
        work.patch_size,
        work.patch_size,
        LabelManager(CLASSES, None),
        oversample_foreground_percent=FOREGROUND,
    )
    batches = (
        NonDetMultiThreadedAugmenter(loader, None, workers, max(6, workers // 2), wait_time=0.002)
        if workers
        else SingleThreadedAugmenter(loader, None)
    )
    return ((batch["data"], batch["target"]) for batch in batches)


def prepare_nnunet(work: Work) -> None:
    """Write what nnU-Net's preprocessing writes: the functions that it calls, its axes (z, y, x).

    Its cropping and resampling would leave these volumes as they are.
    """
    from nnunetv2.preprocessing.normalization.default_normalization_schemes import CTNormalization
    from nnunetv2.preprocessing.preprocessors.default_preprocessor import DefaultPreprocessor
    from nnunetv2.training.dataloading.nnunet_dataset import (
        comp_blosc2_params,
        nnUNetDatasetBlosc2,
    )

    for subject in work.subjects:
        image, label = (voxels.T[None] for voxels in work.load(subject))
        foreground = image[label > 0]
        properties = {
            "mean": foreground.mean(),
            "std": foreground.std(),
            "percentile_00_5": np.percentile(foreground, 0.5),
            "percentile_99_5": np.percentile(foreground, 99.5),
        }
        data = CTNormalization(False, properties).run(image.astype(np.float32))
        locations = DefaultPreprocessor._sample_foreground_locations(label, [1, 2, 3])
        seg = label.astype(np.int16)
        blocks, chunks = comp_blosc2_params(data.shape, work.patch_size, data.itemsize)
        blocks_seg, chunks_seg = comp_blosc2_params(seg.shape, work.patch_size, seg.itemsize)
        nnUNetDatasetBlosc2.save_case(
            data,
            seg,
            {"class_locations": locations},
            str(work.folder / "nnunet" / subject),
            chunks=chunks,
            blocks=blocks,
            chunks_seg=chunks_seg,
            blocks_seg=blocks_seg,
        )


def open_medh5(work: Work, workers: int) -> Iterator[Batch]:
    """Return batches of medh5's patch dataset, put together by its own collation."""
    from medh5.torch import PatchDataset, PatchSampler, collate, worker_init_fn
    from torch.utils.data import DataLoader

    dataset = PatchDataset(
        sorted((work.folder / "medh5").glob("*.medh5")),
        PatchSampler(work.patch, foreground_prob=FOREGROUND),
        samples_per_volume=LONG,
        images=["ct"],
        annotations={"seg": []},
        label_format="labelmap",
    )
    loader = DataLoader(
        dataset,
        batch_size=work.batch,
        shuffle=True,
        num_workers=workers,
        collate_fn=collate,
        worker_init_fn=worker_init_fn,
    )
    return (
        (batch["images"]["ct"][:, None], batch["label"]["seg"][:, None])
        for batch in repeat(lambda: loader)
    )


def prepare_medh5(work: Work) -> None:
    """Write with the profile for training, and the index that makes foreground draws fast."""
    import medh5

    names = list(CLASSES)[1:]
    labels = medh5.LabelSet(
        "phantom", version="1", classes=[medh5.LabelClass(CLASSES[n], n, n) for n in names]
    )
    for subject in work.subjects:
        image, label = (np.ascontiguousarray(voxels.T) for voxels in work.load(subject))
        path = work.folder / "medh5" / f"{subject}.medh5"
        with medh5.create(path, sample_id=subject, codec="training") as writer:
            writer.label_set(labels)
            writer.add_timepoint("tp0")
            writer.add_grid(
                "ct",
                shape=image.shape,
                spacing=(1.0, 0.8, 0.8),
                timepoint="tp0",
                patch_hint=work.patch_size,
            )
            writer.add_image("ct", image, grid="ct", modality="CT", value_type="quantitative")
            writer.add_segmentation("seg", grid="ct", labelmap=label, annotated_classes=names)
            writer.build_index()


class ZarrPatches:
    """A dataset of patches as one would write it over zarr-python, for a torch ``DataLoader``.

    Parameters
    ----------
    work : Work
        Holds tiledvol's store, which is plain zarr, and the foreground's voxels.
    rust : bool
        Decode with zarrs instead of zarr-python's own pipeline.
    """

    def __init__(self, work: Work, rust: bool) -> None:
        self._work = work
        self._rust = rust

    @cached_property
    def _subjects(self) -> Sequence[tuple[Any, Any, npt.NDArray[np.int16]]]:
        """Image, label and foreground voxels of each; opened in the worker that reads."""
        import zarr

        if self._rust:
            zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
        store = self._work.store
        return [
            (
                zarr.open_array(store / s / "ct" / "0", mode="r"),
                zarr.open_array(store / s / "seg" / "0", mode="r"),
                np.load(voxels_of(self._work, s)),
            )
            for s in self._work.subjects
        ]

    def __len__(self) -> int:
        return LONG * len(self._work.subjects)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
        rng = np.random.default_rng(index)
        image, label, voxels = self._subjects[int(rng.integers(len(self._subjects)))]
        last = np.subtract(image.shape, self._work.patch)
        if rng.random() < FOREGROUND:
            start = np.clip(rng.choice(voxels) - self._work.patch // 2, 0, last)
        else:
            start = rng.integers(0, last + 1)
        region = tuple(slice(int(a), int(a) + self._work.patch) for a in start)
        return image[region][None].astype(np.float32), label[region][None]


def voxels_of(work: Work, subject: str) -> Path:
    """Return the file of a subject's foreground voxels, (n, 3)."""
    return work.folder / "zarr" / f"{subject}.npy"


def open_zarr(work: Work, workers: int, rust: bool) -> Iterator[Batch]:
    """Return batches of a torch ``DataLoader`` over `ZarrPatches`."""
    from torch.utils.data import DataLoader

    dataset: Any = ZarrPatches(work, rust)
    loader = DataLoader(dataset, work.batch, num_workers=workers)
    return ((image, label) for image, label in repeat(lambda: loader))


def prepare_zarr(work: Work) -> None:
    """Write foreground voxels of each subject."""
    rng = np.random.default_rng(0)
    for subject in work.subjects:
        found = np.argwhere(work.load(subject)[1])
        np.save(voxels_of(work, subject), rng.choice(found, VOXELS).astype(np.int16))


GROUPS = {
    "nnunet": Group(
        {"nnunetv2": "2.8", "blosc2": "", "nibabel": ""},
        ("nnunetv2.training.dataloading.data_loader",),
        {
            "nnunet": Contender("nnU-Net 2.8, in process", partial(open_nnunet, workers=0)),
            "nnunet-2w": Contender("nnU-Net 2.8, 2 workers", partial(open_nnunet, workers=2)),
        },
        prepare_nnunet,
    ),
    "medh5": Group(
        {"medh5": "", "nibabel": ""},
        ("medh5.torch",),
        {
            "medh5": Contender("medh5, in process", partial(open_medh5, workers=0)),
            "medh5-2w": Contender("medh5, 2 workers", partial(open_medh5, workers=2)),
        },
        prepare_medh5,
    ),
    "zarr": Group(
        {"zarr": "3.", "zarrs": "", "nibabel": ""},
        ("zarr", "torch.utils.data"),
        {
            "zarr-2w": Contender(
                "zarr-python, 2 workers", partial(open_zarr, workers=2, rust=False)
            ),
            "zarr-rust-2w": Contender(
                "zarr-python with zarrs, 2 workers", partial(open_zarr, workers=2, rust=True)
            ),
        },
        prepare_zarr,
    ),
}
