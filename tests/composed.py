"""What an entry script's Hydra makes of a command line, without starting it."""

from conftest import ROOT
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from mxscale.cli import main
from mxscale.config.schema import Config


def composed(entry: str, *overrides) -> Config:
    """The validated config; raises what Hydra raises, and ConfigError."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        values = compose(entry, overrides=list(overrides))
    return main.validate(main.from_dict(OmegaConf.to_container(values, resolve=True)))
