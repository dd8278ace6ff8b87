"""Which layers a LoRA target names; read without loading anything."""


def names_layer(target: str, layer: str) -> bool:
    """Return whether a target is a layer's name or an ending of it after a dot, as peft matches its list."""
    return layer == target or layer.endswith(f".{target}")
