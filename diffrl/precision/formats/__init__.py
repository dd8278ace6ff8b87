"""The precisions in which a copy may explore, a file each: all their facts, and how each engine is made for them."""

from collections.abc import Mapping

from diffrl import registry
from diffrl.precision.facts import Precision

PRECISIONS: Mapping[str, Precision] = {
    name: registry.resolve("precision", registry.PRECISIONS, name) for name in registry.PRECISIONS
}
