"""Sequential updates: the posterior of the last observation is the prior of the next one (`reprior.update`)."""

from reprior.sequential.coordinates import Coordinates
from reprior.sequential.result import Update, Updates
from reprior.sequential.run import update
from reprior.sequential.settings import AccumulateSettings, RatioUpdateSettings

__all__ = ["AccumulateSettings", "Coordinates", "RatioUpdateSettings", "Update", "Updates", "update"]
