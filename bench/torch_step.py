"""A training step of PyTorch's ResNet-50: torch_step.py KIND BATCH THREADS INTERVAL, run by a Python that has PyTorch.

KIND is float32 or bf16 (autocast), with `-compiled` for torch.compile. It prints images/s, the median over intervals.
"""

import contextlib
import statistics
import sys
import time

import torch
from torch_resnet import ResNet

WARM_UP, INTERVALS = 3, 5


def main(kind: str, batch: int, threads: int, interval: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    precision, _, compiled = kind.partition("-")
    net = ResNet(50, classes=1000).to(memory_format=torch.channels_last).train()
    step = torch.compile(net) if compiled else net
    optimizer = torch.optim.SGD(net.parameters(), 0.001, momentum=0.9, weight_decay=1e-4, nesterov=True)
    objective = torch.nn.CrossEntropyLoss()
    images = torch.rand(batch, 3, 224, 224).to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,))
    rates = []
    for number in range(WARM_UP + INTERVALS * interval):
        if number >= WARM_UP and (number - WARM_UP) % interval == 0:
            began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext():
            loss = objective(step(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number >= WARM_UP and (number - WARM_UP) % interval == interval - 1:
            rates.append(interval * batch / (time.perf_counter() - began))
    print(statistics.median(rates))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
