"""Sequential updates: the posterior of the last observation is the prior of the next one (`reprior.update`)."""
