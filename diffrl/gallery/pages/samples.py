"""All samples of one state of a run or folder, as cards."""

from __future__ import annotations

from diffrl.gallery.asked import orders, paged, wanted
from diffrl.gallery.columns import evaluations_left_out, exported_states, label, main_states, named, options
from diffrl.gallery.compare import arrange, filter_by_prompt, filter_by_range, match
from diffrl.gallery.pages.compare import of_folders
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer, State
from diffrl.gallery.rows import views
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import Site

PAGE = 60


def samples(site: Site, query: Query) -> Answer:
    """Return the page."""
    source = site.source(query.text("run"))
    run = source if isinstance(source, RunSource) else None
    states = source.states()
    if not states:
        return Answer(site.render("samples.html", source=source, run=run, views=[], state=None))
    last, key = main_states(states)[-1], query.text("state")
    state = site.state(f"{source.key}@{key}")[1] if key else last
    columns = named([(source, state)])
    asked = wanted(query, columns, list(orders(False, "any")))
    matched = match([source.briefs(state, asked.reward)], [columns[0].stream]).rows
    rows = arrange(filter_by_range(filter_by_prompt(matched, asked.prompt), asked.low, asked.high), asked.sort)
    shown, number, pages = paged(query, rows, PAGE, site.links.exported)

    def address(of: State) -> str:
        return site.links.page("samples", run=source.key, state=None if of == last else of.key)

    known = [value for row in matched if (value := row.values[0]) is not None]
    values = {
        "source": source,
        "run": run,
        "state": state,
        "columns": columns,
        "label": label(state),
        "notes": [*([asked.note] if asked.note else []), *of_folders(columns)],
        "asked": asked,
        "mean": sum(known) / len(known) if known else None,
        "scored": len(known),
        "sorts": orders(False, asked.reward),
        "found": len(rows),
        "views": views(columns, shown, asked.names, asked.lower),
        "number": number,
        "pages": pages,
        "size": PAGE,
        "before": (number - 1) * PAGE,
        "turn": lambda n: site.links.page(
            "samples", run=source.key, state=state.key, **asked.parameters, page=n if n > 1 else None
        ),
        "plain": site.links.page("samples", run=source.key, state=None if site.links.exported else state.key),
        "states": [(s.key, f"{label(s)} ({s.samples:,})") for s in options(source, [state])],
        "exits": [(address(s), label(s)) for s in exported_states(site, source)[0]] if site.links.exported else [],
        "left_out": evaluations_left_out(site, [source]) if site.links.exported else 0,
    }
    return Answer(site.render("samples.html", **values), status=asked.status)
