"""Measuring: verify, evaluation on public tasks, speed, plots.

May import all layers but the command line.
"""
