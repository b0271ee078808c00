"""A page of Python over OpenCV that does im2rec's work: the reference of bench/packing.py.

python bench/im2rec_page.py TREE FOLDER WORKERS METHOD
"""

import multiprocessing
import os
import struct
import sys
from functools import partial
from pathlib import Path

import cv2
import numpy as np


def packed(path: str, method: int) -> bytes:
    """Return an image with a shorter side of 256 pixels, as JPEG of quality 95."""
    image = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)
    height, width = image.shape[:2]
    scale = 256 / min(height, width)
    image = cv2.resize(image, (round(width * scale), round(height * scale)), interpolation=method)
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()


def main(tree: str, folder: str, workers: str, method: str) -> None:
    cv2.setNumThreads(1)
    files = sorted(map(str, Path(tree).glob("*/*")))
    work = partial(packed, method=getattr(cv2, method))
    rec, idx = open(f"{folder}/rec", "wb"), open(f"{folder}/idx", "w")
    with multiprocessing.Pool(int(workers)) as pool, rec, idx:
        for number, image in enumerate(pool.imap(work, files, chunksize=8)):
            idx.write(f"{number}\t{rec.tell()}\n")
            body = struct.pack("<IfQQ", 0, 0, number, 0) + image
            rec.write(struct.pack("<II", 0xCED7230A, len(body)) + body + bytes(-len(body) % 4))
        rec.flush()
        os.fsync(rec.fileno())


if __name__ == "__main__":
    main(*sys.argv[1:])
