"""The run-time type checker that conftest switches on for every function of hardcase."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
