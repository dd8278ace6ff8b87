"""Files as people have them, each with what every reader is to make of it.

Images show `SCENE`: two gradients, and a white corner at the top left that tells how it is turned. Clips hold `MOVING`,
or frames of one grey each. What is expected is written down here, from numpy, before anything reads a file.
"""

import io
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin

HEIGHT, WIDTH = 107, 163
rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
SCENE = np.stack([40 + columns, 60 + rows, np.full_like(rows, 90)], -1).astype(np.uint8)
SCENE[:40, :50] = 255
GREY = (SCENE[..., 0] // 2 + SCENE[..., 1] // 2).astype(np.uint8)
SHADES = (20, 90, 160, 230)
MOVING = np.stack([np.full((32, 48, 3), shade, np.uint8) for shade in SHADES])
LOSSY = 6.0
"""Mean difference of pixels that a codec may make, of 255."""


@dataclass(frozen=True)
class Expected:
    """What is in a file: uint8 (H, W, 3), or (F, H, W, 3) and its rate; or why it cannot be read, as a pattern."""

    pixels: np.ndarray | None = None
    fps: float | None = None
    why: str | None = None
    near: float = 0.0


@dataclass(frozen=True)
class File:
    """A file, and what is to be read in it."""

    write: Callable[[Path], None]
    expected: Expected


def still(pixels=SCENE, near=0.0):
    return Expected(np.stack([pixels] * 3, -1) if pixels.ndim == 2 else pixels, near=near)


def clip(shades, fps, near=0.0):
    frames = np.stack([np.full((32, 48, 3), shade, np.uint8) for shade in shades])
    return Expected(frames, fps, near=near)


def bad(why):
    return Expected(why=why)


def image(mode=None, pixels=SCENE, orientation=None, **options):
    """Write an image, converted to a mode, with an EXIF orientation."""

    def write(path):
        made = Image.fromarray(pixels)
        made = made.convert(mode) if mode is not None else made
        if orientation is not None:
            exif = made.getexif()
            exif[0x0112] = orientation
            options["exif"] = exif.tobytes()
        made.save(path, **options)

    return write


def frames(durations, shades=SHADES, **options):
    """Write an animation with the duration of each frame in milliseconds."""

    def write(path):
        first, *others = [Image.fromarray(np.full((32, 48, 3), shade, np.uint8)) for shade in shades]
        first.save(path, save_all=True, append_images=others, duration=durations, loop=0, **options)

    return write


def changed(write, change):
    """Write a file, then change its bytes."""

    def both(path):
        write(path)
        path.write_bytes(change(path.read_bytes()))

    return both


def half(data):
    return data[: len(data) // 2]


def raw(data):
    return lambda path: path.write_bytes(data)


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, depth, colour, body, *before):
    """A PNG by hand, for what Pillow does not write."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(before) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


def deep_png(values):
    """16 bits a channel, of 8-bit values: v is v * 257."""
    wide = (values.astype(np.uint16) * 257).astype(">u2")
    return png(WIDTH, HEIGHT, 16, 0 if values.ndim == 2 else 2, b"".join(b"\0" + row.tobytes() for row in wide))


def tiff(values, bits, photometric):
    """A grey TIFF by hand, of 12 or 16 bits."""
    height, width = values.shape
    data = values.astype("<u2").tobytes()
    if bits == 12:
        left, right = values[:, ::2], values[:, 1::2]
        data = np.stack([left >> 4, (left & 15) << 4 | right >> 8, right & 255], -1).astype(np.uint8).tobytes()
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1, 278: height, 279: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4 if tag in (273, 279) else 3, 1, tags[tag]) for tag in tags)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + b"\0" * 4


def turned_back(pixels, orientation):
    """Pixels as a camera held so stores them: what shows `pixels` once the EXIF orientation is undone."""
    ways = {
        2: lambda p: p[:, ::-1],
        3: lambda p: p[::-1, ::-1],
        5: lambda p: p.swapaxes(0, 1),
        6: lambda p: np.rot90(p, 1),
        7: lambda p: np.rot90(p, 2).swapaxes(0, 1),
        8: lambda p: np.rot90(p, -1),
    }
    return np.ascontiguousarray(ways[orientation](pixels))


def transparent(path):
    alpha = np.full((HEIGHT, WIDTH), 255, np.uint8)
    alpha[:40, :50] = 0  # what is white in the scene
    hidden = SCENE.copy()
    hidden[:40, :50] = (0, 200, 0)
    Image.fromarray(np.dstack([hidden, alpha])).save(path, lossless=True)


def grey_transparent(path):
    alpha = np.full((HEIGHT, WIDTH), 255, np.uint8)
    alpha[:9] = 0
    Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(alpha)]).save(path)


def palette(path):
    made = Image.fromarray(np.where(SCENE[..., :1] == 255, 1, 0).astype(np.uint8)[..., 0], "P")
    made.putpalette([200, 10, 30, 0, 200, 0])
    made.save(path, transparency=1)


def photo_with_a_second_image(path):
    made, exif = Image.fromarray(turned_back(SCENE, 6)), Image.Exif()
    exif[0x0112] = 6
    small = Image.fromarray(SCENE[::3, ::3].copy())
    made.save(path, "MPO", save_all=True, append_images=[small], exif=exif.tobytes(), quality=95)


def pages(path):
    Image.fromarray(SCENE).save(path, save_all=True, append_images=[Image.fromarray(SCENE[::2].copy())])


def noted(note, shades=SHADES):
    """A WebP animation with XMP data."""
    return frames(125, shades, lossless=True, xmp=note)


def video(pixels, codec, rotation=None, form="yuv420p", **options):
    def write(path):
        import av

        with av.open(str(path), "w") as out:
            stream = out.add_stream(codec, rate=8, options=options)
            stream.height, stream.width, stream.pix_fmt = *pixels.shape[1:3], form
            for frame in pixels:
                out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            out.mux(stream.encode(None))
        if rotation is not None:  # a quarter clockwise, in the header of its track
            data = bytearray(path.read_bytes())
            at = data.find(b"tkhd") + 4 + 4 + 20 + 16
            data[at : at + 36] = struct.pack(">9i", *rotation)
            path.write_bytes(data)

    return write


def upright(pixels):
    return np.rot90(pixels, -1, (1, 2))


QUARTER = (0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
MIRRORED = (-(1 << 16), 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
SCENES = np.stack([SCENE[:96, :160]] * 3)
RED_ON_WHITE = np.where(SCENE[..., :1] == 255, 255, np.array([200, 10, 30])).astype(np.uint8)
ON_WHITE = GREY.copy()
ON_WHITE[:9] = 255
STEP = np.where(SCENE[..., 0] > 127, 255, 0).astype(np.uint8)
EVEN = GREY[:, :-1].copy()
FORTY = frames(100, lossless=True)

FILES = {
    "plain.png": File(image(), still()),
    "plain.jpg": File(image(quality=95), still(near=LOSSY)),
    "plain.webp": File(image(lossless=True), still()),
    "plain.tif": File(image(), still()),
    "plain.gif": File(image("L", GREY), still(GREY)),
    "a jpeg.png": File(image(format="JPEG", quality=95), still(near=LOSSY)),
    "grey.png": File(image(pixels=GREY), still(GREY)),
    "grey.jpg": File(image(pixels=GREY, quality=95), still(GREY, LOSSY)),
    "bits.png": File(image("1", STEP), still(STEP)),
    "transparent.png": File(transparent, still()),
    "transparent.webp": File(transparent, still()),
    "grey-transparent.png": File(grey_transparent, still(ON_WHITE)),
    "palette.png": File(palette, still(RED_ON_WHITE)),
    "cmyk.jpg": File(image("CMYK", quality=95), still(near=LOSSY)),
    "cmyk.tif": File(image("CMYK"), still()),
    "deep-grey.png": File(raw(deep_png(GREY)), still(GREY)),
    "deep.png": File(raw(deep_png(SCENE)), still()),
    "deep-grey.tif": File(lambda path: Image.fromarray(GREY.astype(np.uint16) * 257).save(path), still(GREY)),
    "twelve-bits.tif": File(raw(tiff(EVEN.astype(int) * 4095 // 255, 12, 1)), still(EVEN)),
    "white-is-zero.tif": File(raw(tiff(65535 - GREY.astype(int) * 257, 16, 0)), still(GREY)),
    "float.tif": File(image(pixels=GREY.astype(np.float32)), bad("8 or 16 bits a channel. Got floats")),
    "whole-numbers.tif": File(image(pixels=GREY.astype(np.int32)), bad("Got 32-bit integers")),
    **{
        f"turned-{n}.jpg": File(image(pixels=turned_back(SCENE, n), orientation=n, quality=95), still(near=LOSSY))
        for n in (2, 3, 5, 6, 7)
    },
    "turned.png": File(image(pixels=turned_back(SCENE, 6), orientation=6), still()),
    "turned.webp": File(image(pixels=turned_back(SCENE, 8), orientation=8, lossless=True), still()),
    "broken-exif.jpg": File(image(quality=95, exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff broken"), still(near=LOSSY)),
    "second-image.jpg": File(photo_with_a_second_image, still(near=LOSSY)),
    "pages.tif": File(pages, still()),
    "clip.gif": File(frames(100), clip(SHADES, 10)),
    "clip.webp": File(FORTY, clip(SHADES, 10)),
    "clip.png": File(frames(100), clip(SHADES, 10)),
    "held.gif": File(frames([130, 120, 370, 120]), clip((20, 90, 160, 160, 160, 230), 6000 / 740)),
    "held.webp": File(frames([40, 80, 40, 120], lossless=True), clip((20, 90, 90, 160, 230, 230, 230), 25)),
    "held.png": File(frames([200, 100, 100, 100]), clip((20, 20, 90, 160, 230), 10)),
    "no-times.gif": File(frames(0), clip(SHADES, 10)),
    "default.png": File(frames(100, default_image=True), clip(SHADES[1:], 10)),
    "turned-clip.webp": File(
        frames(100, lossless=True, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"),
        Expected(np.ascontiguousarray(MOVING.swapaxes(1, 2)), 10),
    ),
    "own.webp": File(noted(b"frames=4"), clip(SHADES, 8)),
    "own-still.webp": File(noted(b"frames=9 fps=8", (90, 90)), clip((90,) * 9, 8)),
    "no-frames.webp": File(noted(b"frames=0"), bad("XMP data say that it has 0 frames, and it holds 4")),
    "many-frames.webp": File(noted(b"frames=400000000"), bad(r"400,000,000 frames of 48 x 32.*At most 2.1 GB")),
    "long-note.webp": File(noted(b"frames=100000"), bad("100,000 frames, and it lasts 500 ms")),
    "odd-note.webp": File(noted(b"frames=-1"), bad("its number of frames")),
    "cut.png": File(changed(image(pixels=SCENE ^ rows[..., None].astype(np.uint8)), half), bad("cut.png")),
    "cut.jpg": File(changed(image(quality=95), half), bad("cut.jpg")),
    "cut.webp": File(changed(image(lossless=True), half), bad("cut.webp")),
    "cut.gif": File(changed(frames(100), half), bad("cut.gif")),
    "empty.png": File(raw(b""), bad("empty.png")),
    "text.png": File(raw(b"hello"), bad("text.png is no image that can be read")),
    "huge.png": File(raw(png(60_000, 60_000, 8, 0, b"")), bad("huge.png has more than")),
    "many-frames.png": File(
        raw(png(48, 32, 8, 0, b"\0" * 49 * 32, chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)))),
        bad("many-frames.png has 2,147,483,6.. frames"),
    ),
    "swollen.png": File(
        raw(png(48, 32, 8, 0, b"\0" * 49 * 32, chunk(b"zTXt", b"a\0\0" + zlib.compress(b"\0" * 2**24)))),
        bad("swollen.png cannot be read"),
    ),
    "clip.mp4": File(video(MOVING, "mpeg4"), clip(SHADES, 8, LOSSY)),
    "clip.webm": File(video(MOVING, "libvpx-vp9"), clip(SHADES, 8, LOSSY)),
    "clip.mkv": File(video(MOVING, "ffv1", form="bgr0"), clip(SHADES, 8)),
    "turned.mp4": File(video(SCENES, "mpeg4", QUARTER), Expected(upright(SCENES), 8, near=LOSSY)),
    "mirrored.mov": File(video(SCENES, "mpeg4", MIRRORED), Expected(SCENES[:, :, ::-1], 8, near=LOSSY)),
    "cut.mp4": File(changed(video(MOVING, "mpeg4"), half), bad("cut.mp4 cannot be read as a video")),
    "text.mp4": File(raw(b"hello"), bad("text.mp4 cannot be read as a video")),
}


def write_all(folder):
    """Write every file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in FILES.items():
        file.write(folder / name)
    return folder


def graph(text="a red circle"):
    """A ComfyUI graph of two samplers, its text behind a node that both conditionings pass."""
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a.safetensors"}},
        "2": {"class_type": "PrimitiveString", "inputs": {"value": text}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": ["2", 0]}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "blurry"}},
        "5": {"class_type": "ControlNetApplyAdvanced", "inputs": {"positive": ["3", 0], "negative": ["4", 0]}},
        "6": {"class_type": "KSampler", "inputs": {"model": ["1", 0], "positive": ["5", 0], "negative": ["5", 1]}},
        "7": {"class_type": "VAEDecode", "inputs": {"samples": ["6", 0], "vae": ["1", 2]}},
        "8": {"class_type": "SaveImage", "inputs": {"images": ["7", 0], "filename_prefix": "ComfyUI"}},
    }


def with_text(path, **texts):
    """Write a PNG with texts in it."""
    notes = PngImagePlugin.PngInfo()
    for key, text in texts.items():
        notes.add_text(key, text if isinstance(text, str) else json.dumps(text))
    Image.fromarray(SCENE[:32, :32]).save(path, pnginfo=notes)


def encoded(pixels):
    """A PNG's bytes."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()
