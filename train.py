"""Train a network: `python train.py`.  See conf/train.yaml, and README.md."""

import hydra

from mxscale.cli import main as cli


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(config):
    return cli.train(config)


if __name__ == "__main__":
    cli.run(main)
