"""Train a network: `python train.py`, the same as `mxscale train`. See conf/train.yaml."""

import sys

from mxscale.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
