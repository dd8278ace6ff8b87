"""Which layers a LoRA target names; read without loading anything."""


def names_layer(target: str, layer: str) -> bool:
    """Whether a target is the layer's whole name, or an ending of it after a dot: as peft matches a list of targets."""
    return layer == target or layer.endswith(f".{target}")
