"""Fine-tune a trained network: `python finetune.py`, the same as `mxscale finetune`. See conf/finetune.yaml."""

import sys

from mxscale.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["finetune", *sys.argv[1:]]))
