"""What the recorded runs say: `python report.py report.experiment=NAME`.  See conf/report.yaml and docs/report.md."""

import hydra

from mxscale.cli import main as cli


@hydra.main(version_base="1.3", config_path="conf", config_name="report")
def main(config):
    cli.report(config)


if __name__ == "__main__":
    cli.run(main)
