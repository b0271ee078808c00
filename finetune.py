"""Fine-tune a trained network: `python finetune.py`.  See conf/finetune.yaml, and README.md."""

import hydra

from mxscale.cli import main as cli


@hydra.main(version_base="1.3", config_path="conf", config_name="finetune")
def main(config):
    return cli.train(config)


if __name__ == "__main__":
    cli.run(main)
