"""The reference ResNets in plain PyTorch, with the submodules' names of torchvision and of timm.

After torchvision/models/resnet.py and timm/models/resnet.py, neither of which is needed.
"""

import torch
from torch import nn
from torch_state import LAYOUTS


class Block(nn.Module):
    def __init__(self, channels, width, stride, convolutions):
        super().__init__()
        out = width * (4 if convolutions == 3 else 1)
        if convolutions == 3:
            kernels = [(channels, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
        else:
            kernels = [(channels, width, 3, stride), (width, width, 3, 1)]
        for k, (inputs, outputs, side, step) in enumerate(kernels, 1):
            setattr(self, f"conv{k}", nn.Conv2d(inputs, outputs, side, step, side // 2, bias=False))
            setattr(self, f"bn{k}", nn.BatchNorm2d(outputs))
            self.add_activation(k)
        self.convolutions = convolutions
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def add_activation(self, k):
        self.relu = nn.ReLU()

    def activation(self, k):
        return self.relu

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        for k in range(1, self.convolutions + 1):
            x = getattr(self, f"bn{k}")(getattr(self, f"conv{k}")(x))
            if k == self.convolutions:
                x = x + shortcut
            x = self.activation(k)(x)
        return x


class TimmBlock(Block):
    def add_activation(self, k):
        setattr(self, f"act{k}", nn.ReLU())
        self.drop_block, self.aa, self.se, self.drop_path = nn.Identity(), nn.Identity(), None, None

    def activation(self, k):
        return getattr(self, f"act{k}")


class ResNet(nn.Module):
    """A ResNet with torchvision's names."""

    block, activation, pool = Block, "relu", "avgpool"

    def __init__(self, layers, classes=10):
        super().__init__()
        convolutions, blocks = LAYOUTS[layers]
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        setattr(self, self.activation, nn.ReLU())
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = 64
        for stage, count in enumerate(blocks):
            made = []
            for index in range(count):
                stride = 2 if index == 0 and stage > 0 else 1
                made.append(self.block(channels, 64 * 2**stage, stride, convolutions))
                channels = 64 * 2**stage * (4 if convolutions == 3 else 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*made))
        setattr(self, self.pool, nn.AdaptiveAvgPool2d(1))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.maxpool(getattr(self, self.activation)(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(getattr(self, self.pool)(x), 1))


class TimmResNet(ResNet):
    """A ResNet with timm's names of submodules; names of tensors equal torchvision's."""

    block, activation, pool = TimmBlock, "act1", "global_pool"


def loaded(layers: int, state: dict, kind=ResNet) -> nn.Module:
    """Return a network with that state in inference mode."""
    net = kind(layers, len(state["fc.bias"]))
    net.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in state.items()}, strict=True)
    return net.eval()
