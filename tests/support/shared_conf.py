"""Hydra parses each file of conf/ once for all tests of a process, not for each composition: a third of its time."""

import pickle
from typing import ClassVar, Dict

from hydra._internal import config_loader_impl
from hydra._internal.config_repository import CachingConfigRepository


class SharedRepository(CachingConfigRepository):
    """Like Hydra's own, with copies of what earlier compositions parsed. The search path stays."""

    parsed: ClassVar[Dict[str, bytes]] = {}

    def __init__(self, delegate):
        self.delegate, self.cache = delegate, {}

    def initialize_sources(self, config_search_path):
        raise NotImplementedError("tests share conf/: hydra.searchpath= needs a process of its own")

    def load_config(self, config_path):
        if config_path not in self.cache:
            if config_path not in self.parsed:
                self.parsed[config_path] = pickle.dumps(self.delegate.load_config(config_path))
            self.cache[config_path] = pickle.loads(self.parsed[config_path])
        return self.cache[config_path]


def share() -> None:
    """Share the files from now on."""
    config_loader_impl.CachingConfigRepository = SharedRepository
