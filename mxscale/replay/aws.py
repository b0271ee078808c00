"""Replays of AWS 2019: Horovod against parameter servers, and the quick start on MNIST."""

from itertools import product

from mxscale.replay.entry import Grid, Panel, Replay, Trial, devices, slug

WORK = "AWS 2019"
MNIST = Replay(
    "aws-mnist", WORK, "MNIST on two processes of one machine", "",
    (Panel("throughput/median", way="half", label="samples/s of one rank"), Panel("train/top1")),
    full=Grid((Trial("mnist", "two processes", "batches 50 to 100", ("max_steps=100",), needs=("mpi",)),
               Trial("speed", "two processes", "epoch 1", ("epochs=1",), needs=("mpi",))),
              ("experiment=aws_mnist",)),
    small=Grid(
        (Trial("mnist", "two processes", "batches 50 to 100", ("max_steps=100",)),
         Trial("speed", "two processes", "epoch 1", ("max_steps=400",))),
        ("experiment=aws_mnist", "claims=[]", "comm.transport=gloo", "data.root={mnist}", "data.checksum=first_use"),
        "60,000 synthetic digits of MNIST's shape in its idx files, which nobody has to download; Gloo in place of MPI",
    ),
)  # fmt: skip

# x of the figure -> nodes of 8 GPUs; a series -> its settings
NODES = {8: 1, 16: 2, 32: 4, 64: 8}
EXCHANGES = {
    "Horovod": ("experiment=aws_horovod",),
    "1 server": ("experiment=aws_parameter_server", "comm.servers=1"),
    "1 server per worker": ("experiment=aws_parameter_server", "comm.servers=1x"),
    "2 servers per worker": ("experiment=aws_parameter_server", "comm.servers=2x"),
}
NEEDS = ("gpus:V100:8", "set:data.train", "set:data.val")
# The analogue: workers of one CPU device, and for two of them 1, 2 or 4 servers
SERVERS = {"1 server": 1, "1 server per worker": 2, "2 servers per worker": 4}
PS = ("comm=parameter_server",)
SMALL = (
    "data=digits", "data.classes=null", "launch.threads=1", "launch.device=cpu", "batch.per_device=16",
    "max_steps=60", "log_every=5", "data.threads=1", "validate_every=1000",
)  # fmt: skip
SCALING = Replay(
    "aws-scaling", WORK, "ResNet-50 on ImageNet, Horovod against parameter servers: images/s, efficiency, cost",
    "devices",
    (Panel("throughput/median"), Panel("scaling/efficiency"), Panel("cost/total_eur")),
    full=Grid(
        tuple(
            Trial(f"{slug(name)}-{gpus}", name, f"{gpus} GPU", settings, needs=NEEDS, nodes=nodes)
            for (name, settings), (gpus, nodes) in product(EXCHANGES.items(), NODES.items())
        ),
        about="the first 1, 2, 4 and 8 of launch.hosts",
    ),
    small=Grid(
        (
            Trial("horovod-1", "Horovod", devices(1), ("launch.ranks=1",)),
            Trial("horovod-2", "Horovod", devices(2), ("launch.ranks=2",), slow_hosts=2),
            Trial("1-server-1", "1 server", devices(1), (*PS, "launch.ranks=1", "comm.servers=1")),
            *(
                Trial(f"{slug(name)}-2", name, devices(2), (*PS, "launch.ranks=2", f"comm.servers={count}"),
                     slow_hosts=2 + count)
                for name, count in SERVERS.items()
            ),
        ),
        SMALL,
        "the small network on digits, one and two workers of one CPU device",
    ),
)  # fmt: skip

REPLAYS = (MNIST, SCALING)
