"""What `diffrl gallery` does with its arguments."""

from __future__ import annotations

import errno
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from diffrl import __version__
from diffrl.errors import ConfigError
from diffrl.files import replacing
from diffrl.gallery.app import LOOPBACK, serve
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.links import ServerLinks
from diffrl.gallery.numbers import counted
from diffrl.gallery.preferences import jsonl
from diffrl.gallery.records import Source
from diffrl.gallery.request import GalleryRequest
from diffrl.gallery.scoring import score_folders
from diffrl.gallery.site import Site
from diffrl.gallery.sources import Watched, find_sources, left_out
from diffrl.gallery.votes import read_votes, source_of

HOSTS = "--host takes a name or an address of this machine."
ELSEWHERE = "Leave it out to listen to this machine alone, or take 0.0.0.0 for all its addresses."


def take_votes(request: GalleryRequest, out: Path, say: Callable[[str], None]) -> None:
    """Serve the ballot until Ctrl-C, then write the votes on what was shown as pairs that `objective.kind: dpo` reads.

    Raises:
        ConfigError: as `show_gallery`, or there is no folder for the pairs.
    """
    if request.export is not None:
        raise ConfigError("Votes are taken by a live gallery. Got --export. Leave it out, or use diffrl gallery.")
    if not request.paths:
        raise ConfigError("A vote compares images: name a run, or two folders, such as diffrl vote a b. Got none.")
    if out.suffix != ".jsonl" or out.is_dir() or not out.absolute().parent.is_dir():
        raise ConfigError(
            f"--out takes a file that ends in .jsonl, in a folder that is there. Got {out}. Name another."
        )
    if out.resolve() == request.votes.resolve():
        raise ConfigError(f"--out and --votes take two files: votes are kept as they were given. Got {out} for both.")
    sources = find_sources(request.paths)
    show_gallery(request, say, "vote")
    votes = read_votes(request.votes).votes
    shown = [vote for vote in votes if all(source_of(sources, side) is not None for side in (vote.a, vote.b))]
    lines = jsonl(shown)
    pairs = lines.count("\n")
    left = f"{counted(len(shown) - pairs, 'vote')} of a tie or of small copies left out"
    others = f"; {counted(len(votes) - len(shown), 'vote')} on other images in {request.votes}"
    if not lines:
        say(f"No vote prefers one of two exact images, so {out} is not written ({left}{others}).")
        return
    with replacing(out) as temporary:
        temporary.write_text(lines, encoding="utf-8")
    say(f"{counted(pairs, 'pair')} in {out} ({left}{others}).")
    say(f"Next: diffrl train configs/FAMILY/dpo.yaml prompts.train={out}")


def show_gallery(request: GalleryRequest, say: Callable[[str], None], page: str = "") -> None:
    """Serve until Ctrl-C, or export.

    Raises:
        ConfigError: nothing to show, no such address, or an export that would overwrite something.
        RewardError: a reward that there is not.
    """
    require_votes(request.votes)
    paths = request.paths or ()
    sources = find_sources(paths)
    for line in left_out(paths):
        say(line)
    if not sources and request.export is not None:
        raise ConfigError(
            f"An export needs something to show. {_named(paths)} is empty. Train a run first: diffrl train "
            "configs/quickstart.yaml."
        )
    score_folders(sources, request.reward or (), say)
    options = {"votes": request.votes}
    if request.export is not None:
        for line in _export(sources, request.export, options, Console(stderr=True)):
            say(line)
        return
    host, port = request.host, free_port(request.host, request.port)
    site = Site(Watched(paths, sources), ServerLinks(__version__), options)
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/{page}"

    def ready() -> None:
        say(f"{counted(len(sources), 'source')} at {address}   (Ctrl-C ends)")
        if not sources:
            say(f"{_named(paths)} is empty so far: runs are shown as they begin.")
        if host not in LOOPBACK:
            say(f"Everybody who reaches {host} can see these runs and vote: there is no password.")
        if request.browser and sys.stdout.isatty():
            threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()

    serve(site, host, port, ready)


def _export(sources: Sequence[Source], folder: Path, options: Mapping[str, Any], console: Console) -> list[str]:
    """Write a site; a terminal shows how far it is in one line that goes at last."""
    from diffrl.gallery.export import export_site

    with console.status("Exporting") as status:
        words = "{:,} pages written, {:,} more are known…"
        return export_site(sources, folder, options, lambda done, left: status.update(words.format(done, left)))


def require_votes(path: Path) -> None:
    """Refuse what no votes can be read from or added to, before anybody votes.

    Raises:
        ConfigError: it is a directory, in none, cannot be read, or holds other things and not one vote.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "is a directory" if path.is_dir() else "is in no directory that there is"
        raise ConfigError(f"--votes takes a file, which is made with the first vote. {path} {what}. Name another.")
    try:
        read = read_votes(path)
    except GalleryError as error:
        raise ConfigError(str(error)) from error
    if read.unreadable and not read.votes and not read.voided:
        count = read.unreadable
        lines = "its only line is no vote" if count == 1 else f"none of its {count:,} lines is a vote"
        raise ConfigError(
            f"--votes takes a file that a gallery wrote, or a new one. Got {path}: {lines}. Nothing was changed in it. "
            "Name another."
        )


def free_port(host: str, port: int) -> int:
    """Return the port if it is free, else an error; 0 finds one.

    Raises:
        ConfigError: somebody listens there, or the host is no name or address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except (socket.gaierror, UnicodeError) as error:  # of the latter are names that no machine can have
        raise ConfigError(f"{HOSTS} Got {host!r}, which is not known: {error}. {ELSEWHERE}") from error
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
            raise ConfigError(f"{HOSTS} Got {host!r}, which is another's. {ELSEWHERE}") from error
        raise ConfigError(
            f"The gallery cannot listen on {host}, port {port}: {error}. "
            "Choose another: --port 0 takes any that is free."
        ) from error


def _named(paths: Sequence[Path]) -> str:
    return " and ".join(map(str, paths or [Path("runs")]))
