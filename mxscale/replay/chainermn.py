"""Replays of ChainerMN 2018: ImageNet in 15 minutes, its recipe, its exchange."""

from itertools import product

from mxscale.replay import inputs
from mxscale.replay.entry import Grid, Panel, Reference, Replay, Trial, on_devices, relative, slug

WORK = "ChainerMN 2018"
FILES = ("set:data.train", "set:data.val")

# All training images of ten classes of digits in one batch of 16 shards, as docs/large-batch.md. The 45 epochs are half
# of those published, and so are milestones, warm-up and the parameters of RMSprop's warm-up
BATCH = (
    "data=digits", "data.classes=null", "data.image_size=8", "data.augment.pad=1", "epochs=45", "launch.ranks=1",
    "launch.threads=1", "data.threads=1", "validate_every=1000", "checkpoint.every_epochs=1000",
    "batch.per_device=64", "log_every=1",
)  # fmt: skip
SHARDS = "data.shards=16"
GOYAL = ("schedule=goyal", "schedule.milestones=[15,30,40]")
SGD = ("optimizer=sgd", *GOYAL)
RMSPROP = ("optimizer=rmsprop_warmup", "optimizer.params.beta_center=5", "optimizer.params.beta_period=2.5")
SLOW_START = ("schedule=slow_start", "schedule.milestones=[20,35,42.5]")
PARTS = {
    "small batch": (*SGD, "schedule.warmup_epochs=2.5"),
    "large batch": (SHARDS, *SGD, "schedule.warmup_epochs=0", "schedule.reference_batch=1024"),
    "+ linear scaling": (SHARDS, *SGD, "schedule.warmup_epochs=0"),
    "+ warm-up": (SHARDS, *SGD, "schedule.warmup_epochs=2.5"),
    "+ RMSprop warm-up": (SHARDS, *RMSPROP, *GOYAL, "schedule.warmup_epochs=0"),
    "+ slow start": (SHARDS, *RMSPROP, *SLOW_START),
    "+ last batch's BN": (SHARDS, *RMSPROP, *SLOW_START, "model.bn_statistics=last_batch"),
}
FULL_PARTS = {
    "+ linear scaling": ("optimizer=sgd", "schedule=goyal", "schedule.warmup_epochs=0"),
    "+ warm-up": ("optimizer=sgd", "schedule=goyal"),
    "+ RMSprop warm-up": ("schedule=goyal", "schedule.warmup_epochs=0", "model.bn_statistics=moving"),
    "+ slow start": ("model.bn_statistics=moving",),
    "+ last batch's BN": (),
}


LARGE_BATCH = Replay(
    "chainermn-large-batch", WORK, "the recipe for extremely large batches, switched on part by part",
    (Panel("val/top1"),),
    full=Grid(
        tuple(Trial(slug(name), "ResNet-50", name, settings, needs=("gpus:P100:8", *FILES), nodes=128)
              for name, settings in FULL_PARTS.items()),
        ("experiment=chainermn_in15",),
    ),
    small=Grid(
        tuple(Trial(slug(name), "small network", name, settings) for name, settings in PARTS.items()), BATCH,
        "the small network on digits, all training images in one batch of 1,024, 45 epochs; a network with batch "
        "normalisation needs minutes for as many images of MNIST",
    ),
)  # fmt: skip

IN15 = Replay(
    "chainermn-in15", WORK, "90 epochs of ResNet-50 on ImageNet by several teams",
    (relative("time/wall_s", Reference("the slowest", published="He et al.: 8 P100", here="1 device")),
     Panel("val/top1")),
    full=Grid(
        (Trial("in15", "time of 90 epochs", "this replay", (), needs=("gpus:P100:8", *FILES), nodes=128),),
        ("experiment=chainermn_in15",),
    ),
    small=Grid(
        tuple(on_devices(f"ranks-{n}", "time of 90 epochs", n, "data.shards=16") for n in (1, 2)),
        (*(word for word in BATCH if not word.startswith(("epochs", "launch.ranks"))), "epochs=90",
         "optimizer=rmsprop_warmup", "schedule=slow_start", "model.bn_statistics=last_batch"),
        "the whole recipe and its 90 epochs, with the small network on digits, where they take seconds",
    ),
)  # fmt: skip

EXCHANGES = {
    "after backward": ("comm.double_buffering=false", "comm.compression=none", "comm.overlap=false"),
    "overlapped": ("comm.double_buffering=false", "comm.compression=none"),
    "fp16": ("comm.double_buffering=false", "comm.compression=fp16"),
    "double buffering": ("comm.double_buffering=true", "comm.compression=none"),
    "double buffering, fp16": ("comm.double_buffering=true", "comm.compression=fp16"),
}
DOUBLE_BUFFERING = Replay(
    "chainermn-double-buffering", WORK, "double buffering and fp16 all-reduce over a slow network",
    (relative("throughput/median", Reference("after backward", "after backward")),
     Panel("scaling/efficiency"), Panel("val/top1")),
    full=Grid(
        tuple(
            Trial(f"{slug(name)}-{gpus}", name, f"{gpus} GPU", settings, needs=("gpus:V100:8", *FILES), nodes=nodes)
            for (name, settings), (gpus, nodes) in product(EXCHANGES.items(), {8: 1, 16: 2, 32: 4}.items())
        ),
        ("experiment=chainermn_double_buffering",),
    ),
    small=Grid(
        tuple(
            on_devices(f"{slug(name)}-{n}", name, n, *settings, needs=(inputs.MNIST,), slow_hosts=2 if n > 1 else 0)
            for (name, settings), n in [(list(EXCHANGES.items())[-1], 1), *product(EXCHANGES.items(), (2,))]
        ),
        ("data=mnist", "data.root={mnist}", "data.val_share=0", "model=mnist_convnet", "launch.threads=1",
         "launch.device=cpu", "batch.per_device=64", "max_steps=150", "optimizer.lr=0.01", "optimizer=sgd",
         "schedule=constant", "schedule.reference_batch=128", "schedule.warmup_epochs=0", "log_every=5",
         "data.threads=1", "validate_every=1000"),
        "the network of Horovod's MNIST example on MNIST, one and two workers of one CPU device",
    ),
)  # fmt: skip

REPLAYS = (IN15, LARGE_BATCH, DOUBLE_BUFFERING)
