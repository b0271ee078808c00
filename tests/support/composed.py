"""The settings that Hydra composes from a command line, without starting a process."""

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig

from mxscale.cli import CONF, composition
from mxscale.config.schema import Config, from_dict
from mxscale.config.validation import validate


def composed_values(verb: str, *overrides) -> tuple:
    """Return the settings of a run, and the verb's own ones. Raises what Hydra raises, and ConfigError."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(verb, overrides=list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    return composition.separated(composition.of_run(config), verb)


def composed(verb: str, *overrides) -> Config:
    """Return the validated config. Raises what Hydra raises, and ConfigError."""
    return validate(from_dict(composed_values(verb, *overrides)[0]))
