"""Whole models through the command: real ones, traps, large ones; `tests/model` tests `model/`."""
