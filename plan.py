"""What training would take before anything is rented: `python plan.py machine.instance=p3.16xlarge`; conf/plan.yaml."""

import hydra

from mxscale.cli import main as cli


@hydra.main(version_base="1.3", config_path="conf", config_name="plan")
def main(config):
    cli.plan(config)


if __name__ == "__main__":
    cli.run(main)
