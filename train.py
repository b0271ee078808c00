"""Train a network: `python train.py`, the same as `mxscale train`. See conf/train.yaml."""

import sys

from mxscale.cli.main import main

# Hydra's shell completion of `python train.py` requires the text "@hydra.main" in this file.
if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
