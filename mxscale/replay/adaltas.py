"""The replay of Adaltas 2019: how much slower real data are than synthetic data, and what closes the gap."""

from itertools import product

from mxscale.replay.entry import Grid, Panel, Reference, Replay, Trial, on_devices, slug

# Names of the figure's series -> settings; each adds one to the one before
REAL = ("data.pack_short_side=original", "data.reader=record_iter", "data.threads=1")
STEPS = {
    "real": REAL,
    "real, 2 decoding threads": (*REAL, "data.threads=2"),
    "real, packed at 256 px": (*REAL, "data.threads=2", "data.pack_short_side=256"),
    "real, turbojpeg reader": ("data.pack_short_side=256", "data.threads=2"),
    "real, 1 OMP thread": ("data.pack_short_side=256", "data.threads=2", "launch.threads=1"),
}
# record_iter damages images of the size of its crops
PHOTOGRAPHS = ("data=imagefolder", "data.root={photographs}", "data.min_side=256", "data.on_bad=skip")
NODES = {1: 1, 8: 1, 32: 4}
SYNTHETIC = "synthetic"


def full_trial(name: str, gpus: int, *overrides: str, needs: tuple = ()) -> Trial:
    nodes = NODES[gpus] if NODES[gpus] > 1 else None
    settings = overrides if nodes else (f"launch.ranks={gpus}", *overrides)
    return Trial(f"{slug(name)}-{gpus}", name, f"{gpus} GPU", settings, needs=(f"gpus::{min(8, gpus)}", *needs),
                nodes=nodes)  # fmt: skip


GAP = Replay(
    "adaltas-gap", "Adaltas 2019", "synthetic against real data by number of devices",
    (Panel("throughput/median", "slower", Reference("synthetic data", SYNTHETIC), "slower than synthetic data, %"),),
    full=Grid(
        (
            *(full_trial(SYNTHETIC, gpus, "data=synthetic") for gpus in NODES),
            *(
                full_trial(name, gpus, "data=imagenet", *settings, needs=("set:data.root",))
                for (name, settings), gpus in product(STEPS.items(), NODES)
            ),
        ),
        ("model=resnet50_v1b", "batch.per_device=64", "max_steps=200"),
        "model, data and batch are not stated: ResNet-50 on ImageNet with 64 images per GPU",
    ),
    small=Grid(
        (
            *(on_devices(f"{SYNTHETIC}-{n}", SYNTHETIC, n, "data=synthetic", "data.num_classes=4") for n in (1, 2)),
            *(
                on_devices(f"{slug(name)}-{n}", name, n, *PHOTOGRAPHS, *settings)
                for (name, settings), n in product(STEPS.items(), (1, 2))
                if n == 2 or settings == REAL
            ),
        ),
        ("model.name=squeezenet1.1", "data.image_size=224", "data.augment.scale=[0.08,1.0]", "batch.per_device=8",
         "epochs=4", "max_steps=24", "log_every=3", "validate_every=1000", "launch.device=cpu"),
        "SqueezeNet on photographs=DIR of at least 256 pixels, or on 256 generated images of 500 by 400 pixels; the "
        "same cores decode and compute",
    ),
)  # fmt: skip

REPLAYS = (GAP,)
