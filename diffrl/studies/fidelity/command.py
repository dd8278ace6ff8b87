"""`diffrl fidelity`: measured, written and shown."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console

from diffrl.config.schema import Config
from diffrl.studies.fidelity.request import FidelityRequest
from diffrl.studies.fidelity.study import measure_fidelity
from diffrl.studies.fidelity.tables import notes, tables, write_fidelity
from diffrl.terminal.watch import watched


def show_fidelity(config: Config, request: FidelityRequest, console: Console, as_json: bool = False) -> None:
    """Measure, write the three files and show the tables.

    Raises:
        ConfigError: the request does not fit the configuration or this machine.
    """
    where = Console(stderr=True) if as_json else console
    with watched(where, "loading", lambda: f"{request.out} is empty: some pools without the others are not kept."):
        result = measure_fidelity(config, request)
        written = write_fidelity(result, request.out)
    if as_json:
        print(json.dumps(asdict(result), indent=2))
        return
    for table in tables(result):
        console.print(table)
    for line in [*notes(result), f"Written: {', '.join(str(path) for path in written)}"]:
        console.print(line, highlight=False, markup=False)
