"""The settings that Hydra composes from a command line, without starting a process."""

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from mxscale.cli import CONF, composition, main
from mxscale.config.schema import Config, checked, from_dict
from mxscale.config.validation import validate


def composed_values(verb: str, *overrides) -> tuple:
    """Return the settings of a run, and the verb's own ones. Raises what Hydra raises, and ConfigError."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(verb, overrides=list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    values = OmegaConf.to_container(composition.of_run(config), resolve=True)
    own = {key: values.pop(key) for key in main.own_settings(verb)}
    return values, checked(own, main.VERBS[verb].settings) if own else None


def composed(verb: str, *overrides) -> Config:
    """Return the validated config. Raises what Hydra raises, and ConfigError."""
    return validate(from_dict(composed_values(verb, *overrides)[0]))
