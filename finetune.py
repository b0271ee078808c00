"""Fine-tune a trained network: `python finetune.py`, the same as `mxscale finetune`. See conf/finetune.yaml."""

import sys

from mxscale.cli.main import main

# Hydra's shell completion of `python finetune.py` requires the text "@hydra.main" in this file.
if __name__ == "__main__":
    sys.exit(main(["finetune", *sys.argv[1:]]))
