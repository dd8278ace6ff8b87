"""The configuration of a run: `load_config(path, overrides)`, `dump_config(config)`, and its type `Config`."""

from diffrl.config.load import dump_config, load_config
from diffrl.config.schema import Config

__all__ = ["Config", "dump_config", "load_config"]
