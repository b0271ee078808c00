"""A training step of PyTorch's ResNet-50: torch_step.py KIND BATCH THREADS INTERVAL, run by a Python that has PyTorch.

KIND is float32 or bf16 (autocast), with `-compiled` for torch.compile. It prints images/s, the median over intervals.
"""

import statistics
import sys
import time

import torch
from torch_resnet import ResNet

INTERVALS = 6  # the first one warms up


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
    for _ in range(INTERVALS):
        began = time.perf_counter()
        for _ in range(interval):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = objective(step(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rates.append(interval * batch / (time.perf_counter() - began))
    print(statistics.median(rates[1:]))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
