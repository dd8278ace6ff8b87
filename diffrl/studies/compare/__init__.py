"""Configurations compared at equal budget: `compare` trains and reports; `collect` and `write_report` read and draw."""

from diffrl.studies.compare.execute import CompareRequest, compare, show_report
from diffrl.studies.compare.results import collect
from diffrl.studies.compare.tables import write_report

__all__ = ["CompareRequest", "collect", "compare", "show_report", "write_report"]
