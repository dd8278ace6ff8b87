"""`diffrl doctor`: does this machine compute what diffrl needs, and how fast. Nothing is downloaded."""
