"""The measurements behind the docs."""

__all__ = ["TASKS"]

TASKS = ("two_moons", "slcp", "gaussian_linear", "oup", "turin")
