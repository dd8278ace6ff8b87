"""What `score`, `rewards` and `serve` do, of diffrl and of `python -m reward_models`: files in, a table of scores out.

    sources, runs, captions   which images and videos, with which prompts and metadata
    choices                   which rewards, with which options
    checks                    what is refused before anything is scored
    identity, cache           what a score depends on, and scores that are known already
    run, groups, samples      the work itself, a window of images at a time
    output, summary, plots    rows in files, statistics, figures
    catalogue                 all scorers, their self-tests and the contract
    command                   a command each, from its options to the exit code

Nothing of it is imported before a command runs.
"""
