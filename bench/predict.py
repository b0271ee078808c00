"""Differences of exported networks from MXNet, and images/s of `mxscale predict` beside its parts.

    python bench/predict.py [--quick] [--photographs DIR] [--network mobilenet0.25]

First every network is exported with random weights, its head scaled so that logits have a standard deviation of 3, and
the largest difference of a probability between ONNX Runtime and MXNet on eight random images is printed.

Then 10,000 JPEGs (those of a folder in turn; without one, generated images) are decoded and cropped to 224 pixels,
predicted from ready arrays by bare ONNX Runtime, and predicted from files, each on all cores. The three take turns. The
rate of both parts one after the other, 1 / (1 / decoder + 1 / ONNX Runtime), is what predictions from files can reach.
"""

import itertools
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import measure
import mxnet as mx
import numpy as np
from input import photograph

from mxscale.config.networks import NAMES, network
from mxscale.environment.container_limits import available_cores
from mxscale.models import weights, zoo
from mxscale.models.model_card import ModelCard
from mxscale.serve import export
from mxscale.serve.predictor import BATCH, Predictor
from mxscale.serve.trained_models import Exported, Network

SIDE, RESIZE, CLASSES = 224, 256, 1000


def random_network(name: str, side: int) -> Network:
    """Return a network with random weights and logits of a few units."""
    net = zoo.build(name, CLASSES)
    zoo.initialise(net, 1, mx.cpu(), zero_gamma=False)
    zoo.finish(net, (1, 3, side, side), mx.cpu())
    spread = net(mx.nd.random.normal(shape=(4, 3, side, side))).asnumpy().std()
    for key, parameter in weights.parameters(net).items():
        if key.startswith("output."):
            parameter.set_data(parameter.data() * (3 / spread))
    names = tuple(map(str, range(CLASSES)))
    card = ModelCard(name, names, side, RESIZE, "bilinear", (123.7, 116.3, 103.5), (58.4, 57.1, 57.4), "")
    return Network(net, card)


def exported(trained: Network) -> Exported:
    return Exported(export.of_network(*trained).SerializeToString(), trained.card)


def differences(names) -> dict:
    """Print and return the largest difference of a probability of each network."""
    found = {}
    for name in names:
        trained = random_network(name, network(name).side)
        found[name] = export.difference(trained, exported(trained))
        print(f"  {name:20} {found[name]:.1e}", flush=True)
    return found


class Rates:
    """Images/s of the parts and of the whole, on all cores."""

    def __init__(self, name: str, files, count: int):
        self.files, self.count, self.threads = files, count, available_cores()
        self.predictor = Predictor(exported(random_network(name, SIDE)), self.threads)

    def pixels(self, path) -> np.ndarray:
        return self.predictor.crop.of_file(path)

    def _each(self, function, items) -> float:
        start = time.perf_counter()
        with ThreadPoolExecutor(self.threads) as pool:
            for _ in pool.map(function, items):
                pass
        return self.count / (time.perf_counter() - start)

    def decoder(self) -> float:
        paths = list(itertools.islice(itertools.cycle(self.files), self.count))
        parts = [paths[first : first + BATCH] for first in range(0, self.count, BATCH)]
        return self._each(lambda part: [self.pixels(path) for path in part], parts)

    def runtime(self) -> float:
        ready = np.random.RandomState(0).randint(0, 256, (BATCH, SIDE, SIDE, 3)).astype("uint8")
        return self._each(lambda _: self.predictor.scores(ready), range(-(-self.count // BATCH)))

    def whole(self) -> float:
        paths = itertools.islice(itertools.cycle(self.files), self.count)
        start = time.perf_counter()
        predicted = sum(len(some.items) for some in self.predictor.predict(paths, self.pixels))
        return predicted / (time.perf_counter() - start)


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        photographs=("", "folder of JPEGs"), network=("mobilenet0.25", "network of the rates"),
        images=(10_000, "images of a measurement"), rounds=(5, "measurements of each"),
    )  # fmt: skip
    print("largest difference of a probability, ONNX Runtime against MXNet:")
    found = differences(NAMES[:3] if options.quick else NAMES)
    count, rounds = (200, 2) if options.quick else (options.images, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(Path(options.photographs).rglob("*.[jJ][pP]*[gG]")) if options.photographs else []
        for number in range(0 if files else 200):
            path = Path(folder) / f"{number:03}.jpg"
            path.write_bytes(photograph(number))
            files.append(path)
        rates = Rates(options.network, files[: len(files) if options.photographs else 200], count)
        rows = {"decoder alone": rates.decoder, "ONNX Runtime alone": rates.runtime, "predict": rates.whole}
        measured = {name: [] for name in rows}
        for _ in range(rounds):
            for name, row in rows.items():
                measured[name].append(row())
    parts = zip(measured["decoder alone"], measured["ONNX Runtime alone"], measured["predict"])
    measured["predict / 1 / (1/decoder + 1/runtime)"] = [both * (1 / one + 1 / other) for one, other, both in parts]
    spreads = {name: measure.spread(values) for name, values in measured.items()}
    print(f"\n{options.network}, {count:,} images of {SIDE} px, images/s:")
    for name, value in spreads.items():
        print(f"  {name:40} {measure.show(value, '{:,.0f}' if 'predict /' not in name else '{:.2f}')}")
    measure.finish({"differences": found, "rates": spreads})


if __name__ == "__main__":
    main()
