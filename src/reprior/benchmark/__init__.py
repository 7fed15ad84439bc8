"""The measurements behind the docs."""

__all__ = ["TASKS"]

TASKS: tuple[str, ...] = ("two_moons", "slcp", "gaussian_linear", "oup", "turin")
