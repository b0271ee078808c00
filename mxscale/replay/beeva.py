"""Replays of BEEVA 2017: fine-tuning on AWS P2 and P3, its accuracy, its speed by build and kvstore, and its bill."""

from dataclasses import replace
from itertools import product

from mxscale.replay import inputs
from mxscale.replay.entry import Grid, Panel, Reference, Replay, Trial, devices, relative

WORK = "BEEVA 2017"
ONE_EPOCH = Panel("val/top1")
SPEED = relative("throughput/median", Reference("one device", published="1 GPU", here="1 device"))
FILES = ("file:data/models/resnet-152-symbol.json", "file:data/models/resnet-152-0000.params")
R50_FILES = ("file:data/models/resnet-50-symbol.json", "file:data/models/resnet-50-0000.params")
R50 = ("model.pretrained=symbol:data/models/resnet-50",)

# The analogue: the network of Horovod's MNIST example, trained on the digits 0 to 4 and fine-tuned on 5 to 9 by SGD at
# a constant rate that is proportional to the batch, in one process that drives CPU devices of one thread each
MNIST = ("data=mnist", "data.root={mnist}", "data.val_share=0")
CPU = ("launch.device=cpu", "launch.threads=1", "data.threads=1")
SGD = ("optimizer=sgd", "schedule=constant", "schedule.warmup_epochs=0", "schedule.reference_batch=${batch.per_device}")
PRETRAINING = Trial(
    "pretraining", None, "",
    (*MNIST, "data.classes=['0','1','2','3','4']", "model=mnist_convnet", *CPU, *SGD, "optimizer.lr=0.02",
     "batch.per_device=64", "max_steps=200", "epochs=1", "launch.ranks=1"), needs=(inputs.MNIST,),
)  # fmt: skip
TUNING = (
    "model=pretrained", "model.pretrained={run:pretraining}", *SGD, "optimizer.momentum=0.0",
    "optimizer.weight_decay=0.0", "comm=device", *CPU, "log_every=5", "validate_every=1000",
)  # fmt: skip
SMALL = (*MNIST, "data.classes=['5','6','7','8','9']", "data.train_per_class=3000", *TUNING)
ABOUT = (
    "Horovod's MNIST network on 15,000 images of the digits 5 to 9 in place of ResNet-152 on Caltech-256, validated on "
    "4,861 others; CPU devices in place of GPUs"
)
LR = {16: "0.00125", 32: "0.0025"}  # of one device, by its batch
SMALL_LR = {16: "0.005", 32: "0.01"}


def small_trial(name: str, series: str, x: str, ranks: int, batch: int, *overrides: str, needs: tuple = ()) -> Trial:
    """Return a trial of the analogue; its own settings replace those of SMALL."""
    sizes = (f"launch.ranks={ranks}", f"batch.per_device={batch}", f"optimizer.lr={SMALL_LR[batch]}", "epochs=1")
    return Trial(name, series, x, (*SMALL, *sizes, *overrides), "finetune", (inputs.MNIST, *needs))


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
    "beeva-p2-resnet152", WORK, "ResNet-152 on Caltech-256, one epoch: speed, efficiency, accuracy",
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
            small_trial(f"{n}x{batch}", f"batch {batch}", devices(n), n, batch)
            for n, batch in product((1, 2), (16, 32))
        ),
    ),
)  # fmt: skip


def slice_of_p3(threads: int) -> tuple:
    """Return the price of some of the 8 threads of a p3.2xlarge, without AWS's minimum of a minute."""
    return "machine=owned", f"machine.usd_per_hour={3.06 * threads / 8:.4f}"


FEW = "data.train_per_class=1000"  # so that the first epoch leaves room for five more
SIX = Reference("six epochs", published="6 epochs", here="6 epochs")
SIX_EPOCHS = Replay(
    "beeva-p2-six-epochs", WORK, "six epochs of ResNet-152 on Caltech-256: accuracy, minutes, euros",
    (ONE_EPOCH, relative("time/wall_s", SIX), relative("cost/total_eur", SIX)),
    full=Grid((full_trial("8x16", "ResNet-152", "6 epochs", "K80:8", 16),), EXPERIMENT),
    small=analogue(
        small_trial("one-epoch", "MNIST network", "1 epoch", 2, 16, FEW, "optimizer.lr=0.01", *slice_of_p3(2)),
        small_trial("six-epochs", "MNIST network", "6 epochs", 2, 16, FEW, "optimizer.lr=0.01", "epochs=6",
                    *slice_of_p3(2)),
        about=f"{ABOUT.replace('15,000', '5,000')}; at a quarter of the price of a p3.2xlarge",
    ),
)  # fmt: skip

# A network with batch normalisation, which needs too long for MNIST
DIGITS = replace(PRETRAINING, overrides=("data=digits", "epochs=6", "launch.ranks=1"), needs=())
RESNET50 = Replay(
    "beeva-p2-resnet50", WORK, "ResNet-50 on Caltech-256: speed, efficiency, accuracy after six epochs",
    (SPEED, Panel("scaling/efficiency"), ONE_EPOCH),
    full=Grid(
        tuple(full_trial(f"{n}x32", "ResNet-50", f"{n} GPU", f"K80:{n}", 32, *R50, needs=R50_FILES) for n in (1, 8)),
        (*EXPERIMENT, "claims=[finetune-acc-r50,finetune-eff-r50]"),
    ),
    small=analogue(
        *(
            Trial(f"{n}x16", "small network", devices(n),
                  ("data=digits", "data.classes=['5','6','7','8','9']", *TUNING, f"launch.ranks={n}",
                   "batch.per_device=16", "optimizer.lr=0.03", "epochs=6"), "finetune")
            for n in (1, 2)
        ),
        about="another network than beeva-p2-resnet152, as published: the small one, with batch normalisation; on 540 "
        "scans of digits of 8 pixels, since it needs minutes for MNIST",
        pretraining=DIGITS,
    ),
)  # fmt: skip

SLOW, FAST = "P2 (here: 1 thread)", "P3 (here: 2 threads)"
P2 = Reference("a slow device, batch 32", SLOW, published="1 GPU, batch 32", here="batch 32")
P3 = Replay(
    "beeva-p3", WORK, "P2 against P3, one epoch of ResNet-152: images/s and euros",
    (relative("throughput/median", P2), relative("cost/total_eur", P2)),
    full=Grid(
        (
            *(
                full_trial(f"p2-{n}x{batch}", SLOW, f"{n} GPU, batch {batch}", f"K80:{n}", batch)
                for n, batch in product((1, 8), LR)
            ),
            *(
                full_trial(f"p3-{n}x{batch}", FAST, f"{n} GPU, batch {batch}", f"V100:{n}", batch,
                           f"machine.instance=p3.{2 * n}xlarge", "machine.as_of='2017-11-12'")
                for n, batch in product((1, 4), LR)
            ),
        ),
        ONE_PASS,
    ),
    small=analogue(
        *(
            small_trial(f"threads{threads}-32", series, "batch 32", 1, 32, f"launch.threads={threads}",
                        *slice_of_p3(threads))
            for threads, series in ((1, SLOW), (2, FAST))
        ),
        about=f"{ABOUT}; a slow and a fast device are one and two threads, each thread at an eighth of the price of a "
        "p3.2xlarge, which has 8",
    ),
)  # fmt: skip

STEPS = "max_steps=150"  # of replays that compare rates

# published name -> build of MXNet; a run measures that of its own environment or image
FULL_BUILDS = {"pip": "cu90", "source": "source", "NGC": "ngc"}
SMALL_BUILDS = {"pip": ("build:wheel",), "source": ("build:source",), "NGC": ("build:ngc", "gpus::1")}
BUILDS = Replay(
    "beeva-builds", WORK, "MXNet of pip, from source, and of NGC: ResNet-152 on 4 V100",
    (relative("throughput/median", Reference("the build of pip", "pip")),),
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
            small_trial(f"{name}-{batch}", name, f"batch {batch}", 2, batch, STEPS, needs=needs)
            for batch, (name, needs) in product((16, 32), SMALL_BUILDS.items())
        ),
        about=f"{ABOUT}; run once per image",
    ),
)  # fmt: skip

# name -> comm, what it needs at reduced scale
KVSTORES = {"local": ("kvstore_local", ()), "device": ("device", ()), "nccl": ("nccl", ("gpus::2",))}
KVSTORE = Replay(
    "beeva-kvstore", WORK, "kvstore local, device and nccl: ResNet-152 on 4 V100",
    (relative("throughput/median", Reference("kvstore device", "device")), ONE_EPOCH),
    full=Grid(
        tuple(
            full_trial(f"{name}-{batch}", name, f"batch {batch}", "V100:4", batch, f"comm={comm}")
            for batch, (name, (comm, _)) in product(LR, KVSTORES.items())
        ),
        ("experiment=beeva_kvstore",),
    ),
    small=analogue(
        *(
            small_trial(f"{name}-16", name, "batch 16", 2, 16, STEPS, f"comm={comm}", needs=needs)
            for name, (comm, needs) in KVSTORES.items()
        ),
    ),
)  # fmt: skip

REPLAYS = (RESNET152, SIX_EPOCHS, RESNET50, P3, BUILDS, KVSTORE)
