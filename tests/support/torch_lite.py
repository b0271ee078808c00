"""EfficientNet-Lite in plain PyTorch, with TensorFlow's SAME padding and the names of the published files.

After arXiv:1905.11946 and tensorflow/tpu, models/official/efficientnet/lite, neither of which is needed.
"""

import torch
from torch import nn
from torch.nn import functional as F

# width, depth: of the networks 0 to 4
SCALES = [(1.0, 1.0), (1.0, 1.1), (1.1, 1.2), (1.2, 1.4), (1.4, 1.8)]
# blocks, kernel, stride, expansion, channels
STAGES = [(1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192)]
LAST = (1, 3, 1, 6, 320)


class SameConv(nn.Conv2d):
    """A convolution to ceil(side / stride) pixels, without bias; an odd zero is at the bottom and right."""

    def __init__(self, inputs, outputs, kernel, stride=1, groups=1):
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x):
        kernel, stride, side = self.kernel_size[0], self.stride[0], x.shape[-1]
        zeros = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        before, after = zeros // 2, zeros - zeros // 2
        return super().forward(F.pad(x, (before, after, before, after)))


def norm(channels):
    return nn.BatchNorm2d(channels, eps=1e-3)


class Block(nn.Module):
    def __init__(self, kernel, stride, expansion, inputs, outputs):
        super().__init__()
        inner = inputs * expansion
        if expansion > 1:
            self._expand_conv, self._bn0 = SameConv(inputs, inner, 1), norm(inner)
        self._depthwise_conv, self._bn1 = SameConv(inner, inner, kernel, stride, groups=inner), norm(inner)
        self._project_conv, self._bn2 = SameConv(inner, outputs, 1), norm(outputs)
        self.expands, self.adds = expansion > 1, stride == 1 and inputs == outputs

    def forward(self, x):
        y = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.adds else y


class EfficientNetLite(nn.Module):
    def __init__(self, number, classes=10):
        super().__init__()
        width, depth = SCALES[number]
        self._conv_stem, self._bn0 = SameConv(3, 32, 3, 2), norm(32)
        blocks, inputs = [], 32
        for index, (count, kernel, stride, expansion, channels) in enumerate([*STAGES, LAST]):
            outputs = round_to_8(channels * width)
            for k in range(count if index in (0, len(STAGES)) else -int(-count * depth // 1)):
                blocks.append(Block(kernel, 1 if k else stride, expansion, inputs, outputs))
                inputs = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = SameConv(inputs, 1280, 1), norm(1280)
        self._fc = nn.Linear(1280, classes)

    def forward(self, x):
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return self._fc(F.relu6(self._bn1(self._conv_head(x))).mean((2, 3)))


def round_to_8(channels):
    rounded = int(channels / 8 + 0.5) * 8
    return rounded + 8 if rounded < 0.9 * channels else rounded


def randomised(number):
    """Return a network with random values of a size that keeps its activations finite and different."""
    torch.manual_seed(number)
    net = EfficientNetLite(number)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return net.eval()
