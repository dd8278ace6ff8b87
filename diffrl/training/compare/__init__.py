"""Configurations compared at equal budget: `compare` trains and reports; `collect` and `write_report` read and draw."""

from diffrl.training.compare.execute import CompareRequest, compare, show_report
from diffrl.training.compare.report import write_report
from diffrl.training.compare.results import collect

__all__ = ["CompareRequest", "collect", "compare", "show_report", "write_report"]
