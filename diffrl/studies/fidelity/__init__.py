"""How well cheap pools rank candidates, against the full one."""
