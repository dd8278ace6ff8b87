"""`python -m reward_models`: score pictures and videos without diffrl."""

from reward_models.cli import main

main()
