"""`python -m reward_models`: score images and videos without diffrl."""

from reward_models.common.own_modules import leave_current_folder

leave_current_folder()

from reward_models.cli import main  # noqa: E402 - which imports libraries

main()
