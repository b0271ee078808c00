"""How many images/s the cores of this machine decode and augment: `python -m mxscale.data.reader.speed CORES`.

Prints one line of JSON. The images are generated JPEGs of ImageNet's usual size, augmented as for ImageNet. The rate is
per second of CPU time, so that other processes do not change it much. `mxscale test-io` measures a data set.
"""

import io
import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from typing import List

import cv2
import numpy as np
from PIL import Image

from mxscale.config.schema import Data
from mxscale.data.reader import philox
from mxscale.data.reader.transforms import Training

SECONDS = 1.0
HEIGHT, WIDTH, SIDE = 400, 500, 224  # pixels
IMAGES, QUALITY = 4, 89  # 110 KB each, as ImageNet's have on average
TASK = 16  # images that random numbers are taken for at a time


def measure(cores: int) -> float:
    """Return images/s of `cores` processes together, one per core."""
    contents, context, receivers = [jpeg(seed) for seed in range(IMAGES)], multiprocessing.get_context("fork"), []
    for _ in range(cores):  # a pool of processes would need /dev/shm
        receiver, sender = context.Pipe(duplex=False)
        context.Process(target=rate_of_core, args=(contents, sender), daemon=True).start()
        sender.close()
        receivers.append(receiver)
    return sum(receiver.recv() for receiver in receivers)


def rate_of_core(contents: List[bytes], sender: Connection) -> None:
    """Send images per second of CPU time, measured for `SECONDS` of wall time."""
    transform, out = Training(Data(image_size=SIDE)), np.empty((3, SIDE, SIDE), "uint8")
    until, images = time.perf_counter() + SECONDS, 0
    began = time.process_time()
    while time.perf_counter() < until:
        for draws in philox.uniform(0, 0, np.arange(images, images + TASK), transform.draws).tolist():
            transform(contents[images % len(contents)], draws, out)
            images += 1
    sender.send(images / (time.process_time() - began))


def jpeg(seed: int) -> bytes:
    """Return a JPEG with as much detail at each scale, as photographs have it."""
    random, pixels = np.random.RandomState(seed), np.full((HEIGHT, WIDTH, 3), 128.0, "float32")
    for power in range(8):
        coarse = random.normal(0, 18, ((HEIGHT >> power) + 2, (WIDTH >> power) + 2, 3)).astype("float32")
        pixels += cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


if __name__ == "__main__":
    print(json.dumps({"images_per_s": measure(int(sys.argv[1]))}))
