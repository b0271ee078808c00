"""Replays of BEEVA 2017: fine-tuning on AWS P2 and P3, its accuracy, its speed by build and kvstore, and its bill."""

from dataclasses import replace

from mxscale.replay.entry import LINES, Grid, Panel, Replay, Trial, devices, grid_of

WORK = "BEEVA 2017"
SPEED, ONE_EPOCH = Panel("throughput/median"), Panel("val/top1")
FILES = ("file:data/models/resnet-152-symbol.json", "file:data/models/resnet-152-0000.params")
R50_FILES = ("file:data/models/resnet-50-symbol.json", "file:data/models/resnet-50-0000.params")
R50 = ("model.pretrained=symbol:data/models/resnet-50",)

# The analogue: the small network, trained on the digits 0 to 4, fine-tuned on 5 to 9 by SGD at a constant rate that is
# proportional to the batch, in one process that drives CPU devices of one thread each
PRETRAIN = Trial("pretraining", None, "", ("data=digits", "epochs=6", "launch.ranks=1"))
SMALL = (
    "data=digits", "data.classes=['5','6','7','8','9']", "model=pretrained",
    "model.pretrained={run:pretraining}", "optimizer=sgd", "optimizer.momentum=0.0", "optimizer.weight_decay=0.0",
    "schedule=constant", "schedule.warmup_epochs=0", "schedule.reference_batch=${batch.per_device}", "comm=device",
    "launch.device=cpu",
    "launch.threads=1", "log_every=5", "data.threads=1",
)  # fmt: skip
ABOUT = (
    "the small network on 540 digits in place of ResNet-152 on Caltech-256, one and two CPU devices in place of GPUs"
)
SMALL_LR = {16: "0.03", 32: "0.06"}  # of one device, by its batch; from 0.1 on, the accuracy jumps by 30 points
LR = {16: "0.00125", 32: "0.0025"}


def small_trial(name: str, series: str, x: str, *overrides: str, **others) -> Trial:
    """Return a trial of the analogue; its own settings replace those of SMALL."""
    return Trial(name, series, x, (*SMALL, *overrides), verb="finetune", **others)


def full_trial(gpus: int, batch: int, series: str, *overrides: str, gpu: str = "K80", x: str = "", **others) -> Trial:
    """Return a trial with the published batch and learning rate per GPU."""
    one = ("machine.instance=p2.xlarge",) if (gpu, gpus) == ("K80", 1) else ()  # more are a p2.8xlarge
    own = (*one, f"launch.ranks={gpus}", f"batch.per_device={batch}", f"optimizer.lr={LR[batch]}", *overrides)
    name = others.pop("name", f"{gpus}x{batch}")
    needs = (f"gpus:{gpu}:{gpus}", *others.pop("needs", FILES))
    return Trial(name, series, x or f"{gpus} GPU", own, verb="finetune", needs=needs, **others)


def by_devices_and_batch(*overrides: str) -> tuple:
    """Return the trials of one and two devices with two batches each, by the number of devices."""
    return tuple(
        small_trial(
            f"{n}x{batch}", f"batch {batch}", devices(n), f"launch.ranks={n}",
            f"batch.per_device={batch}", f"optimizer.lr={SMALL_LR[batch]}", *overrides,
        )
        for n, batch in grid_of((1, 2), (16, 32))
    )  # fmt: skip


EXPERIMENT = ("experiment=beeva_caltech256",)
ONE_PASS = (*EXPERIMENT, "epochs=1")
RESNET152 = Replay(
    "beeva-p2-resnet152", WORK, "ResNet-152 on Caltech-256, one epoch: speed, efficiency, accuracy", "devices",
    (SPEED, Panel("scaling/efficiency"), ONE_EPOCH),
    full=Grid(
        tuple(full_trial(n, batch, f"batch {batch}") for n, batch in grid_of((1, 8), (16, 32))),
        ONE_PASS,
    ),
    small=Grid((PRETRAIN, *by_devices_and_batch("epochs=4")), about=f"{ABOUT}; four epochs"),
    claims=("finetune-acc-1ep", "finetune-spread", "finetune-eff-r152"),
)  # fmt: skip


def slice_of_p3(threads: int) -> tuple:
    """Return the settings of a machine with the price of some of the 8 threads of a p3.2xlarge."""
    return (
        "machine=custom", f"machine.instance=slice-of-p3.2xlarge-{threads}-of-8",
        f"machine.usd_per_hour={3.06 * threads / 8:.4f}",
    )  # fmt: skip


SIX_EPOCHS = Replay(
    "beeva-p2-six-epochs", WORK, "six epochs of ResNet-152 on Caltech-256: accuracy, minutes, euros", "",
    (Panel("val/top1"), Panel("time/wall_s"), Panel("cost/total_eur")),
    full=Grid((full_trial(8, 16, "ResNet-152", x="6 epochs"),), EXPERIMENT),
    small=Grid(
        (
            PRETRAIN,
            small_trial("one-epoch", "small network", "1 epoch", "launch.ranks=2", "batch.per_device=16",
                       f"optimizer.lr={SMALL_LR[16]}", "epochs=1", *slice_of_p3(2)),
            small_trial("six-epochs", "small network", "6 epochs", "launch.ranks=2", "batch.per_device=16",
                       f"optimizer.lr={SMALL_LR[16]}", "epochs=6", *slice_of_p3(2)),
        ),
        about=f"{ABOUT}; at a quarter of the price of a p3.2xlarge, of which AWS bills at least a minute",
    ),
    claims=("finetune-acc-6ep", "finetune-time-6ep", "finetune-cost"),
)  # fmt: skip

RESNET50 = Replay(
    "beeva-p2-resnet50", WORK, "ResNet-50 on Caltech-256: speed, efficiency, accuracy after six epochs", "devices",
    (SPEED, Panel("scaling/efficiency"), ONE_EPOCH),
    full=Grid(
        tuple(full_trial(n, 32, "ResNet-50", *R50, needs=R50_FILES) for n in (1, 8)),
        (*EXPERIMENT, "claims=[finetune-acc-r50,finetune-eff-r50]"),
    ),
    small=Grid(
        (
            replace(
                PRETRAIN, overrides=(*PRETRAIN.overrides, "model=mnist_convnet", "optimizer.lr=0.005", "epochs=10")
            ),
            *(
                small_trial(f"{n}x16", "MNIST convnet", devices(n), f"launch.ranks={n}",
                           "batch.per_device=16", "optimizer.lr=0.01", "epochs=6")
                for n in (1, 2)
            ),
        ),
        about=f"{ABOUT}; another network than beeva-p2-resnet152, as published",
    ),
    claims=("finetune-acc-r50", "finetune-eff-r50"),
)  # fmt: skip

P3 = Replay(
    "beeva-p3", WORK, "P2 against P3, one epoch of ResNet-152: images/s and euros", "",
    (SPEED, Panel("cost/total_eur")),
    full=Grid(
        (
            *(full_trial(n, batch, f"P2, batch {batch}", name=f"p2-{n}x{batch}") for n, batch in grid_of((1, 8), LR)),
            *(
                full_trial(n, batch, f"P3, batch {batch}", f"machine.instance=p3.{2 * n}xlarge",
                          "machine.as_of='2017-11-12'", gpu="V100", name=f"p3-{n}x{batch}")
                for n, batch in grid_of((1, 4), LR)
            ),
        ),
        ONE_PASS,
    ),
    small=Grid(
        (
            PRETRAIN,
            *(
                small_trial(f"threads{threads}-{batch}", f"{threads} thread{'s' * (threads > 1)}", f"batch {batch}",
                           "launch.ranks=1", f"launch.threads={threads}", f"batch.per_device={batch}",
                           f"optimizer.lr={SMALL_LR[batch]}", "epochs=48", *slice_of_p3(threads))
                for threads, batch in grid_of((1, 2), (16, 32))
            ),
        ),
        about=f"{ABOUT}; a slow and a fast device are one and two threads, each thread at an eighth of the price of a "
        "p3.2xlarge, which has 8; 48 epochs, since AWS bills at least a minute",
    ),
    claims=("p3-cheaper", "p3-price"),
)  # fmt: skip

# published name -> build of MXNet; a run measures that of its own environment or image
FULL_BUILDS = {"pip": "cu90", "source": "source", "NGC": "ngc"}
SMALL_BUILDS = {"pip": ("build:wheel",), "source": ("build:source",), "NGC": ("build:ngc", "gpus::1")}


BUILDS = Replay(
    "beeva-builds", WORK, "MXNet of pip, from source, and of NGC: ResNet-152 on 4 V100", "",
    (SPEED,),
    full=Grid(
        tuple(
            full_trial(4, batch, name, gpu="V100", x=f"batch {batch}", name=f"{name.lower()}-{batch}",
                      needs=(f"build:{build}", *FILES))
            for batch, (name, build) in grid_of(LR, FULL_BUILDS.items())
        ),
        ("experiment=beeva_kvstore", "comm=device", "claims=[build-pip-small,build-pip-large,build-source]"),
    ),
    small=Grid(
        (
            PRETRAIN,
            *(
                small_trial(f"{name}-{batch}", name, f"batch {batch}", "launch.ranks=2", f"batch.per_device={batch}",
                           f"optimizer.lr={SMALL_LR[batch]}", "epochs=4", needs=needs)
                for batch, (name, needs) in grid_of((16, 32), SMALL_BUILDS.items())
            ),
        ),
        about=f"{ABOUT}; run once per image",
    ),
    claims=("build-pip-small", "build-pip-large", "build-source"),
)  # fmt: skip

# name -> comm, what it needs
KVSTORES = {"local": ("kvstore_local", ()), "device": ("device", ()), "nccl": ("nccl", ("gpus::2",))}
KVSTORE = Replay(
    "beeva-kvstore", WORK, "kvstore local, device and nccl: ResNet-152 on 4 V100", "",
    (SPEED, ONE_EPOCH),
    full=Grid(
        tuple(
            full_trial(4, batch, name, f"comm={comm}", gpu="V100", x=f"batch {batch}", name=f"{name}-{batch}",
                      needs=(*FILES, *needs))
            for batch, (name, (comm, needs)) in grid_of(LR, KVSTORES.items())
        ),
        ("experiment=beeva_kvstore",),
    ),
    small=Grid(
        (
            PRETRAIN,
            *(
                small_trial(f"{name}-{batch}", name, f"batch {batch}", "launch.ranks=2", f"comm={comm}",
                           f"batch.per_device={batch}", f"optimizer.lr={SMALL_LR[batch]}", "epochs=4",
                           needs=needs)
                for batch, (name, (comm, needs)) in grid_of((16, 32), KVSTORES.items())
            ),
        ),
        about=ABOUT,
    ),
    claims=("kvstore-nccl", "kvstore-nccl-upstream"),
)  # fmt: skip


def decoding(*overrides: str, about: str = "") -> Grid:
    return Grid(
        tuple(
            Trial(f"{reader}-{n}", reader, str(n), (*overrides, f"io.threads=[{n}]", f"io.readers=[{reader}]",
                 f"data.reader={reader}", "io.seconds=3"), verb="test-io")
            for reader, n in grid_of(("record_iter", "turbojpeg"), (1, 2, 3))
        ),
        about=about,
    )  # fmt: skip


TEST_IO = Replay(
    "beeva-test-io", WORK, "the input pipeline alone, by decoding threads", "decoding threads",
    (Panel("io/images_per_s", LINES),),
    full=decoding("data=caltech256"),
    small=decoding("data=imagefolder", "data.root={photographs}", about="256 generated images of 500 by 400 pixels"),
    claims=("test-io",),
)  # fmt: skip

REPLAYS = (RESNET152, SIX_EPOCHS, RESNET50, P3, BUILDS, KVSTORE, TEST_IO)
