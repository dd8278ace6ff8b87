"""What the words on a tree's page mean, for those that it uses."""

from __future__ import annotations

from diffrl.gallery.tree_drawn import precision
from diffrl.gallery.tree_words import Sums, known

FORMATS = {
    "nvfp4": "numbers of 4 bits in blocks of 16 that share a scale",
    "mxfp8": "numbers of 8 bits in blocks of 32 that share a scale",
    "fp8": "numbers of 8 bits with a floating point",
    "int8": "whole numbers of 8 bits with a scale",
    "bfloat16": "numbers of 16 bits with a floating point",
}


def glossary(given: Sums) -> list[tuple[str, str]]:
    """Words and a sentence each, in the order in which the story comes to them."""
    record, rule = given.record, given.record.rule
    explored, edges = record.explored or {}, given.edges
    found: list[tuple[str, str]] = []
    if any(node.leaf and known(node.leaf.proxy) for node in given.leaves):
        text = (
            "The reward of a candidate's picture as the exploring stage drew it; it only decides what is drawn again."
        )
        found.append(("proxy reward", text))
    if (name := str(explored.get("precision"))) in FORMATS:
        emulated = explored.get("engine") == "emulated"
        also = ": emulated means that the values are rounded to it and multiplied in float32" if emulated else ""
        found.append((precision(explored), f"The exploring stage computed with {FORMATS[name]}{also}."))
    if any(node.leaf and node.leaf.audit for node in given.leaves):
        found.append(
            ("audit", "A picture drawn at random to check how well the proxy reward ranks; it trains nothing.")
        )
    if edges or any(node.leaf and known(node.leaf.advantage) for node in given.leaves):
        text = "An advantage says how much better than its comparison a step did; above 0 it is made more likely."
        found.append(("advantage", text))
    if any(edge.turning for edge in edges):
        text = "A step that turns a path towards where it ends, up or down; its credit reaches as far as the end."
        found.append(("turning point", text))
    if rule.get("objective") == "nft":
        text = "It trains finished pictures: the network is drawn towards the better and away from the worse ones."
        found.append(("DiffusionNFT's contrast (nft)", text))
    if any(known(edge.log_ratio) for edge in edges):
        text = "A step changes many numbers at once; the change of its log-likelihood is divided by how many there are."
        found.append(("per dimension", text))
    return found
