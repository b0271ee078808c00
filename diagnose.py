"""Where the time of a training step goes, and what would help: `python diagnose.py data=... model=...`."""

import hydra

from mxscale.cli import main as cli


@hydra.main(version_base="1.3", config_path="conf", config_name="diagnose")
def main(config):
    cli.diagnose(config)


if __name__ == "__main__":
    cli.run(main)
