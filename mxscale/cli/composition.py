"""What Hydra composes settings from: the files of conf/, and the defaults that are defined in Python."""

from typing import Any, List, Optional, Tuple

from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from mxscale.cli.verbs import VERBS, own_settings
from mxscale.config.networks import NETWORKS
from mxscale.config.schema import Config, checked, to_dict
from mxscale.config.training_settings import MAX_PIXELS

# Every key with its default; the YAML files of conf/ choose other values.
DEFAULTS = OmegaConf.create(to_dict(Config()))
OmegaConf.set_struct(DEFAULTS.optimizer.params, False)  # accepts any name; the optimizer validates them
ConfigStore.instance().store(name="defaults", node=DEFAULTS)
for name, verb in VERBS.items():  # the settings besides those of a run
    if verb.settings:
        ConfigStore.instance().store(name=f"{name}_settings", node=own_settings(name))
for network in NETWORKS:  # model=NAME without a file in conf/model
    ConfigStore.instance().store(group="model", name=network, node={"name": network})


def with_margin(side) -> Optional[int]:
    """Return the shorter side of an image whose centre of `side` pixels is cropped: 256 for 224."""
    return min(MAX_PIXELS, round(side * 8 / 7)) if isinstance(side, int) else None


OmegaConf.register_new_resolver("with_margin", with_margin, replace=True)  # for conf/data
SILENT = ["hydra/hydra_logging=disabled", "hydra/job_logging=disabled"]  # Hydra prints nothing itself


def compose(name: str, overrides: List[str], mode: RunMode = RunMode.RUN) -> DictConfig:
    """Return the settings of a verb, Hydra's own ones in the key `hydra`. Raises what Hydra raises."""
    settings = [*SILENT, *overrides, f"hydra.mode={mode.name}"]
    return GlobalHydra.instance().hydra.compose_config(name, settings, mode, with_log_configuration=True)


def separated(composed: DictConfig, name: str) -> Tuple[dict, Any]:
    """Return the settings of a run as plain values, and the verb's own ones, None without any. Raises ConfigError."""
    values, settings = OmegaConf.to_container(composed, resolve=True), VERBS[name].settings
    own = {key: values.pop(key) for key in own_settings(name)}
    return values, settings and checked(own, settings)


def of_run(config: DictConfig) -> DictConfig:
    """Return composed settings without Hydra's own."""
    return OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
