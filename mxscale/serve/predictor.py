"""Predictions of an exported network on all cores."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional

import numpy as np
import onnxruntime

from mxscale.data.central_crop import CentralCrop
from mxscale.data.images import BadImage, one_line
from mxscale.environment.container_limits import available_cores
from mxscale.models.model_card import INPUT, LOGITS, PROBABILITIES
from mxscale.serve.trained_models import Exported
from mxscale.util.errors import ConfigError

BATCH = 16  # images of a forward


class Predicted(NamedTuple):
    """Some items in their order; the arrays have those that can be used."""

    items: List[Any]
    reasons: List[Optional[str]]  # why an item cannot be used; None: it can
    pixels: np.ndarray  # (n, side, side, 3) uint8
    probabilities: np.ndarray  # (n, classes) float32
    logits: np.ndarray  # (n, classes) float32


def _session(exported: Exported, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    """Return a session of an exported network. Raises ConfigError for a file that another program changed."""
    try:
        session = onnxruntime.InferenceSession(exported.content, options, onnxruntime.get_available_providers())
    except Exception as error:  # its own classes, which have no common base
        problem = f"ONNX Runtime {onnxruntime.__version__} cannot load the network: {one_line(error)}"
        raise ConfigError(f"{exported.path}: {problem}; export it again") from None
    side, classes = exported.card.image_size, len(exported.card.class_names)
    ports = [f"{port.name} {port.type}{port.shape[1:]}" for port in (*session.get_inputs(), *session.get_outputs())]
    expected = [f"{INPUT} tensor(uint8){[side, side, 3]}"]
    expected += [f"{name} tensor(float){[classes]}" for name in (PROBABILITIES, LOGITS)]
    if ports != expected:
        problem = f"the network has {', '.join(ports)[:300]}; its metadata states {', '.join(expected)}"
        raise ConfigError(f"{exported.path}: {problem}: export it again")
    return session


class Predictor:
    """Each thread decodes some images and evaluates them on one core, so that no core waits for another."""

    def __init__(self, exported: Exported, threads: Optional[int] = None):  # None: the cores that it may use
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        onnxruntime.set_default_logger_severity(4)  # its errors are raised as well
        self.session = _session(exported, options)
        self.threads, self.card, self.path = threads or available_cores(), exported.card, exported.path
        # Of validation images in the network's training
        self.crop = CentralCrop(self.card.image_size, self.card.resize, self.card.interpolation)

    def predict(self, items: Iterable[Any], pixels: Callable[[Any], np.ndarray]) -> Iterator[Predicted]:
        """Yield the predictions of all items in their order.

        Args:
            pixels: Returns the network's input (side, side, 3) uint8 of an item, in a thread. Raises BadImage.
        """
        remaining, pending = iter(items), deque()
        with ThreadPoolExecutor(self.threads, "predict") as pool:
            try:
                while True:
                    while len(pending) <= 2 * self.threads and (batch := list(islice(remaining, BATCH))):
                        pending.append(pool.submit(self._predicted, batch, pixels))
                    if not pending:
                        return
                    yield pending.popleft().result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _predicted(self, items: List[Any], pixels: Callable[[Any], np.ndarray]) -> Predicted:
        side, reasons = self.card.image_size, []
        images, count = np.empty((len(items), side, side, 3), "uint8"), 0
        for item in items:
            try:
                images[count] = pixels(item)
            except BadImage as error:
                reasons.append(str(error))
            else:
                reasons.append(None)
                count += 1
        return Predicted(items, reasons, images[:count], *self.scores(images[:count]))

    def scores(self, images: np.ndarray) -> List[np.ndarray]:
        """Return the probabilities and logits of images (n, side, side, 3) uint8, each (n, classes) float32."""
        if not len(images):
            return [np.empty((0, len(self.card.class_names)), "float32")] * 2
        try:
            scores = self.session.run([PROBABILITIES, LOGITS], {INPUT: images})
        except Exception as error:  # as in _session
            reason = f"ONNX Runtime cannot evaluate the network: {one_line(error)}"
            raise ConfigError(f"{self.path}: {reason}; export it again") from None
        if any(array.shape != (len(images), len(self.card.class_names)) for array in scores):
            returned = f"the network returns {scores[0].shape} for {len(images)} images"
            raise ConfigError(f"{self.path}: {returned}; export it again")
        return scores
