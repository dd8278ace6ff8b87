"""The gallery: compare samples, look into trees, vote, share. `diffrl gallery [RUN ...]`.

    sources.py      what was given on the command line -> runs and folders
    site.py         pages by name; pages/ has a module for each, templates/ what they look like
    app.py          the server (FastAPI);  export.py  the same pages as files;  report.py  one file at the end of a run

Reading a run needs neither torch nor a lock.
"""
