"""Going over data wherever they lie: passes, who takes them, and the survey that comes first."""
