"""Replays of BEEVA 2017: fine-tuning on AWS P2 and P3, its accuracy, its speed by build and kvstore, and its bill."""

from dataclasses import replace
from itertools import product

from mxscale.replay.entry import Grid, Panel, Replay, Trial, devices

WORK = "BEEVA 2017"
SPEED, ONE_EPOCH = Panel("throughput/median"), Panel("val/top1")
FILES = ("file:data/models/resnet-152-symbol.json", "file:data/models/resnet-152-0000.params")
R50_FILES = ("file:data/models/resnet-50-symbol.json", "file:data/models/resnet-50-0000.params")
R50 = ("model.pretrained=symbol:data/models/resnet-50",)

# The analogue: the small network, trained on the digits 0 to 4, fine-tuned on 5 to 9 by SGD at a constant rate that is
# proportional to the batch, in one process that drives CPU devices of one thread each
PRETRAINING = Trial("pretraining", None, "", ("data=digits", "epochs=6", "launch.ranks=1"))
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


def small_trial(name: str, series: str, x: str, ranks: int, batch: int, *overrides: str, needs: tuple = ()) -> Trial:
    """Return a trial of the analogue; its own settings replace those of SMALL."""
    sizes = (f"launch.ranks={ranks}", f"batch.per_device={batch}", f"optimizer.lr={SMALL_LR[batch]}")
    return Trial(name, series, x, (*SMALL, *sizes, *overrides), "finetune", needs)


def analogue(*trials: Trial, about: str = ABOUT, pretraining: Trial = PRETRAINING) -> Grid:
    """Return the grid of trials that fine-tune the result of a first one."""
    return Grid((pretraining, *trials), about=about)


def full_trial(name: str, series: str, x: str, gpus: str, batch: int, *overrides: str, needs: tuple = FILES) -> Trial:
    """Return a trial with the published batch and learning rate per GPU, on GPUs such as K80:8."""
    one = ("machine.instance=p2.xlarge",) if gpus == "K80:1" else ()  # more are a p2.8xlarge
    sizes = (f"launch.ranks={gpus.split(':')[1]}", f"batch.per_device={batch}", f"optimizer.lr={LR[batch]}")
    return Trial(name, series, x, (*one, *sizes, *overrides), "finetune", (f"gpus:{gpus}", *needs))


EXPERIMENT = ("experiment=beeva_caltech256",)
ONE_PASS = (*EXPERIMENT, "epochs=1")
RESNET152 = Replay(
    "beeva-p2-resnet152", WORK, "ResNet-152 on Caltech-256, one epoch: speed, efficiency, accuracy", "devices",
    (SPEED, Panel("scaling/efficiency"), ONE_EPOCH),
    full=Grid(
        tuple(
            full_trial(f"{n}x{batch}", f"batch {batch}", f"{n} GPU", f"K80:{n}", batch)
            for n, batch in product((1, 8), (16, 32))
        ),
        ONE_PASS,
    ),
    small=analogue(
        *(
            small_trial(f"{n}x{batch}", f"batch {batch}", devices(n), n, batch, "epochs=4")
            for n, batch in product((1, 2), (16, 32))
        ),
        about=f"{ABOUT}; four epochs",
    ),
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
    full=Grid((full_trial("8x16", "ResNet-152", "6 epochs", "K80:8", 16),), EXPERIMENT),
    small=analogue(
        small_trial("one-epoch", "small network", "1 epoch", 2, 16, "epochs=1", *slice_of_p3(2)),
        small_trial("six-epochs", "small network", "6 epochs", 2, 16, "epochs=6", *slice_of_p3(2)),
        about=f"{ABOUT}; at a quarter of the price of a p3.2xlarge, of which AWS bills at least a minute",
    ),
)  # fmt: skip

CONVNET = replace(
    PRETRAINING, overrides=(*PRETRAINING.overrides, "model=mnist_convnet", "optimizer.lr=0.005", "epochs=10")
)
RESNET50 = Replay(
    "beeva-p2-resnet50", WORK, "ResNet-50 on Caltech-256: speed, efficiency, accuracy after six epochs", "devices",
    (SPEED, Panel("scaling/efficiency"), ONE_EPOCH),
    full=Grid(
        tuple(full_trial(f"{n}x32", "ResNet-50", f"{n} GPU", f"K80:{n}", 32, *R50, needs=R50_FILES) for n in (1, 8)),
        (*EXPERIMENT, "claims=[finetune-acc-r50,finetune-eff-r50]"),
    ),
    small=analogue(
        *(
            small_trial(f"{n}x16", "MNIST convnet", devices(n), n, 16, "optimizer.lr=0.01", "epochs=6")
            for n in (1, 2)
        ),
        about=f"{ABOUT}; another network than beeva-p2-resnet152, as published",
        pretraining=CONVNET,
    ),
)  # fmt: skip

P3 = Replay(
    "beeva-p3", WORK, "P2 against P3, one epoch of ResNet-152: images/s and euros", "",
    (SPEED, Panel("cost/total_eur")),
    full=Grid(
        (
            *(
                full_trial(f"p2-{n}x{batch}", f"P2, batch {batch}", f"{n} GPU", f"K80:{n}", batch)
                for n, batch in product((1, 8), LR)
            ),
            *(
                full_trial(f"p3-{n}x{batch}", f"P3, batch {batch}", f"{n} GPU", f"V100:{n}", batch,
                           f"machine.instance=p3.{2 * n}xlarge", "machine.as_of='2017-11-12'")
                for n, batch in product((1, 4), LR)
            ),
        ),
        ONE_PASS,
    ),
    small=analogue(
        *(
            small_trial(f"threads{threads}-{batch}", f"{threads} thread{'s' * (threads > 1)}", f"batch {batch}", 1,
                        batch, f"launch.threads={threads}", "epochs=48", *slice_of_p3(threads))
            for threads, batch in product((1, 2), (16, 32))
        ),
        about=f"{ABOUT}; a slow and a fast device are one and two threads, each thread at an eighth of the price of a "
        "p3.2xlarge, which has 8; 48 epochs, since AWS bills at least a minute",
    ),
)  # fmt: skip

# published name -> build of MXNet; a run measures that of its own environment or image
FULL_BUILDS = {"pip": "cu90", "source": "source", "NGC": "ngc"}
SMALL_BUILDS = {"pip": ("build:wheel",), "source": ("build:source",), "NGC": ("build:ngc", "gpus::1")}
BUILDS = Replay(
    "beeva-builds", WORK, "MXNet of pip, from source, and of NGC: ResNet-152 on 4 V100", "",
    (SPEED,),
    full=Grid(
        tuple(
            full_trial(f"{name.lower()}-{batch}", name, f"batch {batch}", "V100:4", batch,
                       needs=(f"build:{build}", *FILES))
            for batch, (name, build) in product(LR, FULL_BUILDS.items())
        ),
        ("experiment=beeva_kvstore", "comm=device", "claims=[build-pip-small,build-pip-large,build-source]"),
    ),
    small=analogue(
        *(
            small_trial(f"{name}-{batch}", name, f"batch {batch}", 2, batch, "epochs=4", needs=needs)
            for batch, (name, needs) in product((16, 32), SMALL_BUILDS.items())
        ),
        about=f"{ABOUT}; run once per image",
    ),
)  # fmt: skip

# name -> comm, what it needs at reduced scale
KVSTORES = {"local": ("kvstore_local", ()), "device": ("device", ()), "nccl": ("nccl", ("gpus::2",))}
KVSTORE = Replay(
    "beeva-kvstore", WORK, "kvstore local, device and nccl: ResNet-152 on 4 V100", "",
    (SPEED, ONE_EPOCH),
    full=Grid(
        tuple(
            full_trial(f"{name}-{batch}", name, f"batch {batch}", "V100:4", batch, f"comm={comm}")
            for batch, (name, (comm, _)) in product(LR, KVSTORES.items())
        ),
        ("experiment=beeva_kvstore",),
    ),
    small=analogue(
        *(
            small_trial(f"{name}-{batch}", name, f"batch {batch}", 2, batch, "epochs=4", f"comm={comm}", needs=needs)
            for batch, (name, (comm, needs)) in product((16, 32), KVSTORES.items())
        ),
    ),
)  # fmt: skip

REPLAYS = (RESNET152, SIX_EPOCHS, RESNET50, P3, BUILDS, KVSTORE)
