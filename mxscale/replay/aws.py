"""Replays of AWS 2019: Horovod against parameter servers, and the quick start on MNIST."""

from itertools import product

from mxscale.replay import inputs
from mxscale.replay.entry import Grid, Panel, Reference, Replay, Trial, on_devices, relative, slug

WORK = "AWS 2019"
MNIST = Replay(
    "aws-mnist", WORK, "MNIST on two processes of one machine",
    (Panel("throughput/median", "half", label="samples/s of one rank"), Panel("train/top1")),
    full=Grid((Trial("mnist", "two processes", "batches 50 to 100", ("max_steps=100",), needs=("mpi",)),
               Trial("speed", "two processes", "epoch 1", ("epochs=1",), needs=("mpi",))),
              ("experiment=aws_mnist",)),
    small=Grid(
        (Trial("mnist", "two processes", "batches 50 to 100", ("max_steps=100",), needs=(inputs.MNIST,)),
         Trial("speed", "two processes", "epoch 1", ("max_steps=400",), needs=(inputs.MNIST,))),
        ("experiment=aws_mnist", "claims=[]", "comm.transport=gloo", "data.root={mnist}"),
        "the same network, data and settings; Gloo in place of MPI, and this machine in place of a laptop",
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
    "data=mnist", "data.root={mnist}", "data.val_share=0", "model=mnist_convnet", "optimizer=sgd", "optimizer.lr=0.02",
    "schedule=constant", "launch.threads=1", "launch.device=cpu", "batch.per_device=64", "max_steps=100", "log_every=5",
    "data.threads=1", "validate_every=1000",
)  # fmt: skip
HOROVOD = Reference("Horovod", "Horovod")
SCALING = Replay(
    "aws-scaling", WORK, "ResNet-50 on ImageNet, Horovod against parameter servers: images/s, efficiency, cost",
    (relative("throughput/median", HOROVOD), Panel("scaling/efficiency"), relative("cost/total_eur", HOROVOD)),
    full=Grid(
        tuple(
            Trial(f"{slug(name)}-{gpus}", name, f"{gpus} GPU", settings, needs=NEEDS, nodes=nodes)
            for (name, settings), (gpus, nodes) in product(EXCHANGES.items(), NODES.items())
        ),
        about="the first 1, 2, 4 and 8 of launch.hosts",
    ),
    small=Grid(
        (
            on_devices("horovod-1", "Horovod", 1, needs=(inputs.MNIST,)),
            on_devices("horovod-2", "Horovod", 2, needs=(inputs.MNIST,), slow_hosts=2),
            on_devices("1-server-1", "1 server", 1, *PS, "comm.servers=1", needs=(inputs.MNIST,)),
            *(
                on_devices(f"{slug(name)}-2", name, 2, *PS, f"comm.servers={count}", needs=(inputs.MNIST,),
                           slow_hosts=2 + count)
                for name, count in SERVERS.items()
            ),
        ),
        SMALL,
        "the network of Horovod's MNIST example on MNIST, one and two workers of one CPU device",
    ),
)  # fmt: skip

REPLAYS = (MNIST, SCALING)
