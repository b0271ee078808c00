"""ResNets as PyTorch's libraries name and lay out their tensors, with random values, made without PyTorch."""

import numpy as np

# layers -> (convolutions of a block, blocks of each stage): arXiv:1512.03385, table 1
LAYOUTS = {
    18: (2, [2, 2, 2, 2]),
    34: (2, [3, 4, 6, 3]),
    50: (3, [3, 4, 6, 3]),
    101: (3, [3, 4, 23, 3]),
    152: (3, [3, 8, 36, 3]),
}


def shapes(layers: int, classes: int) -> dict:
    """name -> shape, in the order of `state_dict()`: torchvision/models/resnet.py, with the stride in the 3x3."""
    convolutions, blocks = LAYOUTS[layers]
    expansion = 4 if convolutions == 3 else 1
    found = {"conv1.weight": (64, 3, 7, 7), **_norm("bn1", 64)}
    channels = 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for index in range(count):
            block, out = f"layer{stage + 1}.{index}", width * expansion
            kernels = [(width, channels, 1), (width, width, 3), (out, width, 1)]
            if convolutions == 2:
                kernels = [(width, channels, 3), (width, width, 3)]
            for k, (outputs, inputs, side) in enumerate(kernels, 1):
                found[f"{block}.conv{k}.weight"] = (outputs, inputs, side, side)
                found.update(_norm(f"{block}.bn{k}", outputs))
            if index == 0 and channels != out:
                found[f"{block}.downsample.0.weight"] = (out, channels, 1, 1)
                found.update(_norm(f"{block}.downsample.1", out))
            channels = out
    return {**found, "fc.weight": (classes, channels), "fc.bias": (classes,)}


def _norm(name: str, channels: int) -> dict:
    each = {f"{name}.{part}": (channels,) for part in ("weight", "bias", "running_mean", "running_var")}
    return {**each, f"{name}.num_batches_tracked": ()}


def state(layers: int, classes: int = 10, seed: int = 0) -> dict:
    """name -> array: float32, and int64 of num_batches_tracked.  numpy promises RandomState's values for ever.

    Values keep the scale of signals from layer to layer and differ between statistics, so that a mix-up of two
    tensors changes the scores.
    """
    stream = np.random.RandomState([seed, layers])
    return {name: _values(name, shape, stream, LAYOUTS[layers][0]) for name, shape in shapes(layers, classes).items()}


def _values(name: str, shape: tuple, stream, convolutions: int) -> np.ndarray:
    part = name.rpartition(".")[2]
    if part == "num_batches_tracked":
        return np.array(7, dtype="i8")
    draw = stream.random_sample(shape).astype("f4")  # 0 to 1
    if len(shape) > 1:
        return (2 * draw - 1) * np.float32(np.sqrt(6.0 / np.prod(shape[1:])))  # He, uniform
    if part == "running_var":
        return draw + np.float32(0.5)
    if part == "weight":  # of the last normalisation in a block: small, or a hundred blocks would add up to inf
        return (draw + np.float32(0.5)) * np.float32(0.2 if f".bn{convolutions}." in name else 1)
    return (draw - np.float32(0.5)) * np.float32(0.4)


def images(count: int, side: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal((count, 3, side, side)).astype("f4")
