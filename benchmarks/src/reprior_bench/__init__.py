"""The measurements behind the docs."""

__all__ = ["DEVELOPMENT_SEED", "EVALUATION_SEED", "TASKS"]

TASKS: tuple[str, ...] = ("two_moons", "slcp", "gaussian_linear", "oup", "turin")
EVALUATION_SEED = 20_000  # of the observations that results are judged on
DEVELOPMENT_SEED = 30_000  # of observations that settings may be tuned on
