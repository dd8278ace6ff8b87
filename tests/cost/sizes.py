"""Made-up sizes of samples, with which plans can be added up by hand."""

from diffrl.cost.activations import Activations, Bytes

SIZES = Activations(
    latents=3 * 6 * 6, pixels=24 * 24, encoding=2 * ((77 + 256) * 19 + 23), flops=97, forward=Bytes(101, 1009),
    graph=Bytes(211, 5003), update=Bytes(307, 7001), decode=40_009, tile=10_007,
)  # fmt: skip
