"""The replay of Adaltas 2019: how much slower real data are than synthetic data, and what closes the gap."""

from mxscale.replay.entry import SLOWER, Cell, Grid, Panel, Replay, grid_of

# Names of the figure's series -> settings; each adds one to the one before
REAL = ("data.pack_short_side=original", "data.reader=record_iter", "data.threads=1")
STEPS = {
    "synthetic": ("data=synthetic",),
    "real": REAL,
    "real, 2 decoding threads": (*REAL, "data.threads=2"),
    "real, packed at 256 px": (*REAL, "data.threads=2", "data.pack_short_side=256"),
    "real, turbojpeg reader": ("data.pack_short_side=256", "data.threads=2"),
    "real, 1 OMP thread": ("data.pack_short_side=256", "data.threads=2", "launch.threads=1"),
}
NODES = {1: 1, 8: 1, 32: 4}
GAP = Replay(
    "adaltas-gap", "Adaltas 2019", "synthetic against real data by number of devices", "devices",
    (Panel("throughput/median"),
     Panel("throughput/median", derive=SLOWER, reference="synthetic", label="slower than synthetic, %")),
    full=Grid(
        tuple(
            Cell(f"{name.replace(', ', '-').replace(' ', '-')}-{gpus}", name, f"{gpus} GPU", own if "data=synthetic" in own
                 else ("data=imagenet", *own), needs=(f"gpus::{min(8, gpus)}", *(() if name == "synthetic" else ("set:data.root",))),
                 nodes=nodes if nodes > 1 else None)
            for (name, own), (gpus, nodes) in grid_of(STEPS.items(), NODES.items())
        ),
        ("model=resnet50_v1b", "batch.per_device=64", "max_steps=200"),
        "model, data and batch are not stated: ResNet-50 on ImageNet with 64 images per GPU",
    ),
    small=Grid(
        tuple(
            Cell(f"{name.replace(', ', '-').replace(' ', '-')}-{n}", name, f"{n} device{'s' * (n > 1)}",
                 ("data=synthetic", "data.num_classes=10", "data.image_size=224", f"launch.ranks={n}")
                 if name == "synthetic" else
                 ("data=imagefolder", "data.root={photographs}", "data.image_size=224", f"launch.ranks={n}", *own))
            for (name, own), n in grid_of(STEPS.items(), (1, 2))
        ),
        ("model.name=squeezenet1.1", "batch.per_device=8", "epochs=1", "max_steps=24", "log_every=3", "validate_every=1000",
         "launch.device=cpu", "claims=[]"),
        "SqueezeNet on 256 generated images of 500 by 400 pixels; the same cores decode and compute",
    ),
    claims=("io-gap-1", "io-gap-32"),
)  # fmt: skip

REPLAYS = (GAP,)
