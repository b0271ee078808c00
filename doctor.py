"""What stands in the way of a run here: `python doctor.py`, with the settings of train.py.  See conf/doctor.yaml."""

import hydra

from mxscale.cli import main as cli


@hydra.main(version_base="1.3", config_path="conf", config_name="doctor")
def main(config):
    cli.doctor(config)


if __name__ == "__main__":
    cli.run(main)
