"""``tiledvol demo``: the main job from end to end, on the files that nibabel ships."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiledvol.cli.output import extents, line, print_facts, print_table
from tiledvol.errors import TiledvolError

if TYPE_CHECKING:
    from tiledvol import Dataset, Volume

FILES = ("anatomical.nii", "example4d.nii.gz", "example_nifti2.nii.gz", "functional.nii")
"""NIfTI files in nibabel's own test data: MR, with and without time, compressed and not."""

PATCHES = 500
"""How many patches are read at random places, all of them in flight at once."""

PATCH_EDGE = 16
"""Edge of these patches in voxels: the files are small."""

STEPS = 40
"""Training steps of a small network that takes noise out of patches."""


class _Clock:
    """Where the time went, step by step."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, float]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step, under a heading of its own."""
        line("")
        line(f"== {name}")
        began = time.perf_counter()
        yield
        self.steps.append((name, time.perf_counter() - began))


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to write; made if need be.")
    ] = Path("tiledvol-demo"),
) -> None:
    """Convert real NIfTI files, inspect, read, train on patches, export, and draw a picture."""
    import tiledvol
    from tiledvol_converters import convert_dataset
    from tiledvol_converters.export import export_nifti

    sources = _sources()
    target, picture = folder / "demo.tvol", folder / "demo.png"
    clock = _Clock()
    with clock.step("import torch"):
        import torch

        line(f"torch {torch.__version__}")
    with clock.step("convert: NIfTI to 64³ tiles, with statistics and a per-block index"):
        report = convert_dataset(sources, target)
        for outcome in report.outcomes:
            line(f"{outcome.status} {outcome.name} {outcome.reason}".rstrip())
        if not report.complete:
            raise TiledvolError("the demo's files could not be converted")
    with clock.step("inspect"):
        dataset = tiledvol.open(target)
        volumes = [volume for subject in dataset.values() for volume in subject.values()]
        print_table(
            ("image", "shape", "type", "axes", "spacing (mm)", "mean"),
            [
                (
                    f"{v.subject}/{v.name}",
                    extents(v.shape),
                    v.dtype.name,
                    v.orientation,
                    extents(v.spacing),
                    f"{(v.statistics or {})['mean']:.1f}",
                )
                for v in volumes
            ],
        )
    with clock.step("verify: every block against its checksum and the index"):
        problems = tiledvol.verify(target)
        line("\n".join(problems) or "all well")
    with clock.step(f"read: {PATCHES} patches of {PATCH_EDGE}³ at random places, all in flight"):
        mean = asyncio.run(_read_patches(volumes))
        line(f"mean of the patches' voxels: {mean:.1f}")
    with clock.step(f"train: {STEPS} steps on batches that PatchLoader reads ahead"):
        line(_train(dataset))
    with clock.step("export: back to NIfTI, compared with the original"):
        exported = folder / "exported.nii.gz"
        export_nifti(dataset["functional"]["image"], exported, overwrite=True)
        line(f"voxels equal: {_equal_voxels(exported, sources[-1])}")
    with clock.step("picture"):
        _draw(volumes, picture)
        line(f"{picture}")
    line("")
    line("== where the time went")
    print_facts([(f"{seconds * 1e3:7.0f} ms", name) for name, seconds in clock.steps])


def _sources() -> list[Path]:
    import nibabel

    folder = Path(nibabel.__file__).parent / "tests" / "data"
    sources = [folder / name for name in FILES]
    if missing := [path.name for path in sources if not path.is_file()]:
        raise TiledvolError(
            f"this nibabel lacks its test data ({', '.join(missing)}); install it from the "
            f"package index"
        )
    return sources


async def _read_patches(volumes: list[Volume]) -> float:
    """Read patches at random places of random volumes; return the mean of all their voxels."""
    import numpy as np

    from tiledvol import Box

    draw = np.random.default_rng(0)
    reads = []
    for _ in range(PATCHES):
        volume = volumes[draw.integers(len(volumes))]
        room = [max(1, n - PATCH_EDGE + 1) for n in volume.shape[-3:]]
        start = tuple(int(draw.integers(n)) for n in room)
        reads.append(volume.read(Box(start, tuple(a + PATCH_EDGE for a in start))))
    patches = await asyncio.gather(*reads)
    return float(np.mean([patch.mean() for patch in patches]))


def _train(dataset: Dataset) -> str:
    """Train a little denoising network on patches; return how its error fell."""
    import torch

    from tiledvol import PatchLoader

    torch.manual_seed(0)
    volume = dataset["anatomical"]["image"]
    statistics = volume.statistics or {}
    loader = PatchLoader(
        {"anatomical": dataset["anatomical"]}, PATCH_EDGE, 4, ["image"], patches_per_epoch=4 * STEPS
    )
    model = torch.nn.Sequential(
        torch.nn.Conv3d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv3d(8, 1, 3, padding=1)
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    errors = []
    for batch in loader:
        clean = (batch["image"] - statistics["mean"]) / statistics["std"]
        error = torch.nn.functional.mse_loss(model(clean + torch.randn_like(clean)), clean)
        optimizer.zero_grad()
        error.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        errors.append(error.item())
    return f"error {errors[0]:.3f} -> {errors[-1]:.3f}; {loader.stats()['verdict']}"


def _equal_voxels(one: Path, other: Path) -> bool:
    import nibabel
    import numpy as np

    loaded: list[Any] = [nibabel.load(path) for path in (one, other)]
    return np.array_equal(*(np.asanyarray(image.dataobj) for image in loaded))


def _draw(volumes: list[Volume], path: Path) -> None:
    """Draw the middle slices of every volume, a row each."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise TiledvolError("the picture needs matplotlib: install tiledvol[view]") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(volumes), 3, figsize=(7, 2.4 * len(volumes)), squeeze=False)
    for row, volume in zip(axes, volumes, strict=True):
        low, high = ((volume.statistics or {})["percentiles"][q] for q in ("1", "99"))
        middle = [n // 2 for n in volume.shape[-3:]]
        for axis, plot in enumerate(row):
            index: list[int | slice] = [slice(None)] * 3
            index[axis] = middle[axis]
            lead = (0,) if volume.ndim == 4 else ()
            plane = volume[(*lead, *index)].T
            across, up = (volume.spacing[a] for a in range(3) if a != axis)
            plot.imshow(plane, cmap="gray", origin="lower", vmin=low, vmax=high, aspect=up / across)
            plot.set_axis_off()
        row[1].set_title(f"{volume.subject}: {extents(volume.shape)} {volume.dtype}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
